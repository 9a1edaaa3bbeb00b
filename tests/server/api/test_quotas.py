"""Quotas of keys, as their holders meet them."""

import asyncio
import hashlib
import json

import pytest


def bearer(number):
    return {"authorization": f"Bearer key-{number}"}


@pytest.fixture
def limited(serve, tmp_path):
    """Run a server with a key of a tenant of its own for each of these quotas; its client has the first."""

    def running(*quotas):
        records = [
            {
                "sha256": hashlib.sha256(f"key-{number}".encode()).hexdigest(),
                "tenant": f"t{number}",
                "quotas": own,
            }
            for number, own in enumerate(quotas)
        ]
        (tmp_path / "keys.json").write_text(json.dumps(records))
        return serve(api_keys_file=tmp_path / "keys.json", headers=bearer(0))

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


async def test_what_does_not_learn_is_no_learning(limited):
    """Static scores and appends without learning use up no quota of learning."""
    async with limited({"learned_tokens_per_second": 0.1}) as client:
        session = (await client.post("/sessions", json={})).json()["id"]
        for _ in range(3):
            body = {"text": "abc", "learn": False}
            assert (await client.post(f"/sessions/{session}/append", json=body)).status_code == 200
            assert (await client.post("/score", json={"text": "abc"})).status_code == 200


async def test_a_repeat_costs_nothing(limited):
    """The append that is stored already is given as often as it is asked for."""
    async with limited({"tokens_per_second": 10}) as client:
        session = (await client.post("/sessions", json={})).json()["id"]
        for turn in range(5):
            answer = await client.post(
                f"/sessions/{session}/append", json={"text": "abcdef"}, headers={"idempotency-key": "one"}
            )
            assert (answer.status_code, answer.json()["replayed"]) == (200, turn > 0)


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


async def test_a_tenant_keeps_so_many_bytes(limited):
    """Counted by the states of its sessions."""
    async with limited({}) as client:
        size = (await client.get("/info")).json()["adaptation"]["rules"][0]["state_bytes"]
    async with limited({"stored_bytes": size * 5 // 2}) as client:
        for _ in range(2):
            assert (await client.post("/sessions", json={"text": "a"})).status_code == 201
        assert refused(await client.post("/sessions", json={}), "stored bytes: ")


async def test_a_repeat_of_a_creation_is_answered_at_the_limit(limited):
    """It asks for nothing new: by create, fork and import; another creation is refused, and made nothing."""
    async with limited({"sessions": 1}) as client:
        key = {"idempotency-key": "one"}
        made, again = [await client.post("/sessions", json={}, headers=key) for _ in range(2)]
        assert (again.status_code, again.json()) == (201, made.json() | {"replayed": True})
        await client.delete(f"/sessions/{made.json()['id']}")
        assert (await client.post("/sessions", json={}, headers=key)).status_code == 410
        await client.post("/sessions", json={})
        for other in ({"idempotency-key": "two"}, {}):
            answer = await client.post("/sessions", json={}, headers=other)
            assert refused(answer, "sessions: 2 wanted, at most 1 allowed")
            assert answer.json()["applied"] == "no"


async def test_named_snapshots_are_kept_too(limited):
    """Their bytes count as much as those of sessions do."""
    async with limited({}) as client:
        size = (await client.get("/info")).json()["adaptation"]["rules"][0]["state_bytes"]
    async with limited({"stored_bytes": size * 7 // 2}) as client:
        session = (await client.post("/sessions", json={"text": "some text to learn from" * 9})).json()["id"]
        taken = [
            await client.post(f"/sessions/{session}/snapshots", json={"name": f"n{i}"}) for i in range(4)
        ]
        assert [answer.status_code for answer in taken] == [201, 201, 429, 429]
        assert refused(taken[-1], "stored bytes: ")
        assert taken[-1].json()["applied"] == "no"
        again = await client.post(f"/sessions/{session}/snapshots", json={"name": "n0"})
        assert again.status_code == 201, again.text
