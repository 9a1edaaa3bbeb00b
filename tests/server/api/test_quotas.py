"""Quotas of keys, as their holders meet them."""

import asyncio

import pytest


def bearer(number):
    return {"authorization": f"Bearer key-{number}"}


@pytest.fixture
def limited(serve, key_file):
    """Run a server with a key of a tenant of its own for each of these quotas; its client has the first."""

    def running(*quotas):
        keys = {f"key-{number}": {"tenant": f"t{number}", "quotas": own} for number, own in enumerate(quotas)}
        return serve(api_keys_file=key_file(keys), headers=bearer(0))

    return running


def refused(answer, detail):
    """Whether it is a 429 that says so, with a time."""
    document = answer.json()
    assert answer.status_code == 429, document
    assert document["type"].endswith(":rate_limited")
    assert detail in document["detail"]
    assert document["given"] >= document["limit"]
    assert int(answer.headers["retry-after"]) >= 1
    return True


TOKENS = [
    ("tokens_per_second", "/score", {"text": "abcdef"}, "tokens: "),
    ("tokens_per_second", "/sessions/{id}/append", {"text": "abcdef"}, "tokens: "),
    ("tokens_per_second", "/sessions/{id}/score", {"candidates": [{"text": "abcdef"}]}, "tokens: "),
    ("tokens_per_second", "/generate", {"prompt": "abcdef", "max_tokens": 1}, "tokens: "),
    ("learned_tokens_per_second", "/score", {"text": "abcdef", "adapt": True}, "tokens learned from: "),
    ("learned_tokens_per_second", "/sessions/{id}/append", {"text": "abcdef"}, "tokens learned from: "),
    ("generated_tokens_per_second", "/generate", {"max_tokens": 6}, "tokens generated: "),
    ("generated_tokens_per_second", "/sessions/{id}/generate", {"max_tokens": 6}, "tokens generated: "),
    (
        "generated_tokens_per_second",
        "/sessions/{id}/generate",
        {"max_tokens": 6, "commit": True},
        "tokens generated: ",
    ),
]


async def test_tokens_are_counted_by_what_is_done_with_them(limited):
    """A first request may go over the rate; the next waits, and says how long."""
    async with limited(*({quota: 0.1} for quota, *_ in TOKENS)) as client:
        for number, (quota, path, body, detail) in enumerate(TOKENS):
            client.headers.update(bearer(number))
            session = (await client.post("/sessions", json={})).json()["id"]
            first = await client.post(path.format(id=session), json=body)
            assert first.status_code == 200, (quota, first.text)
            assert refused(await client.post(path.format(id=session), json=body), detail)


async def test_a_tenant_keeps_so_many_sessions(limited):
    """One more is refused, even of many at once; one that ends makes room (D7)."""
    async with limited({"sessions": 2}) as client:
        first = (await client.post("/sessions", json={})).json()["id"]
        at_once = await asyncio.gather(*(client.post("/sessions", json={}) for _ in range(5)))
        assert sorted(answer.status_code for answer in at_once)[-4:] == [429] * 4
        await client.post("/sessions", json={})
        assert refused(await client.post("/sessions", json={}), "sessions: 3 wanted, at most 2 allowed")
        assert refused(await client.post(f"/sessions/{first}/fork", json={}), "sessions: 3 wanted")
        await client.delete(f"/sessions/{first}")
        assert (await client.post("/sessions", json={})).status_code == 201
