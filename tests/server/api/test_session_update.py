"""PATCH /sessions/{id}: time to live, metadata, learning."""

import pytest
from tests.memory_store import MemoryStore

TEXT = "It was the best of times, it was the worst times"
"""A whole number of segments, so that nothing waits to be learned from."""


@pytest.fixture
async def session(client):
    return (await client.post("/sessions", json={"text": TEXT, "metadata": {"a": 1}})).json()["id"]


async def update(client, session, headers=None, **body):
    return await client.patch(f"/sessions/{session}", json=body, headers=headers)


async def info(client, session):
    return (await client.get(f"/sessions/{session}")).json()


async def test_an_update_is_a_version(client, session):
    """What was not named stays; the state stays."""
    before = await info(client, session)
    answer = await update(client, session, ttl_seconds=7, metadata={"b": "two"})
    assert answer.status_code == 200, answer.text
    after = await info(client, session)
    assert after["version"] == before["version"] + 1
    assert answer.headers["etag"] == f'"{after["version"]}"'
    assert (after["metadata"], after["learning"]) == ({"b": "two"}, True)
    assert after["expires_at"] < before["expires_at"]
    same = {
        name: value for name, value in before.items() if name not in {"version", "expires_at", "metadata"}
    }
    assert same.items() <= after.items()


async def test_a_session_whose_learning_is_off_only_reads(client, session):
    """An append that would learn says that it did not; switched on again, it does."""
    await update(client, session, learning=False)
    off = (await client.post(f"/sessions/{session}/append", json={"text": TEXT})).json()
    await update(client, session, learning=True)
    on = (await client.post(f"/sessions/{session}/append", json={"text": TEXT})).json()
    assert (off["learn"], off["updates"]) == (False, 0)
    assert on["learn"] is True
    assert on["updates"] > 0


async def test_kept_text_is_not_learned_from_while_learning_is_off(client, session):
    """`learn_from_output` asks for no more than the session allows."""
    await update(client, session, learning=False)
    updates = (await info(client, session))["totals"]["updates"]
    body = {"commit": True, "learn_from_output": True, "max_tokens": 20}
    answer = await client.post(f"/sessions/{session}/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert (await info(client, session))["totals"]["updates"] == updates


async def test_a_repeated_update_is_one(client, session):
    """The stored answer comes back; another body under the key is refused."""
    key = {"Idempotency-Key": "u-1"}
    first = (await update(client, session, key, metadata={"n": 1})).json()
    await update(client, session, metadata={"n": 2})
    again = (await update(client, session, key, metadata={"n": 1})).json()
    assert again == first | {"replayed": True, "expires_at": again["expires_at"]}
    assert (await info(client, session))["metadata"] == {"n": 2}
    assert (await update(client, session, key, metadata={"n": 3})).status_code == 422


async def test_an_update_insists_on_a_version_where_asked(client, session):
    """412, and nothing happened."""
    before = await info(client, session)
    answer = await update(client, session, {"If-Match": '"0"'}, learning=False)
    assert answer.status_code == 412
    assert await info(client, session) == before


@pytest.mark.parametrize(
    "body",
    [{}, {"ttl_seconds": 0}, {"learning": 1}, {"metadata": {"": 1}}, {"name": "other"}],
)
async def test_what_cannot_be_changed_is_refused(client, session, body):
    """422, and nothing happened."""
    before = await info(client, session)
    assert (await update(client, session, **body)).status_code == 422
    assert await info(client, session) == before


async def test_metadata_are_bounded_together(client, session):
    """413 names both numbers."""
    answer = await update(client, session, metadata={f"k{n}": "é" * 512 for n in range(17)})
    assert answer.status_code == 413
    assert answer.json()["limit"] == 16_384


async def test_a_repeated_reset_is_answered_as_it_was(client, session):
    """Not with where the session stands by then."""
    key = {"Idempotency-Key": "x-1"}
    first = (await client.post(f"/sessions/{session}/reset", json={}, headers=key)).json()
    await client.post(f"/sessions/{session}/append", json={"text": TEXT})
    again = (await client.post(f"/sessions/{session}/reset", json={}, headers=key)).json()
    assert again == first | {"replayed": True, "expires_at": again["expires_at"]}
    other = await client.post(f"/sessions/{session}/reset", json={"what": "recurrent"}, headers=key)
    assert other.status_code == 422


async def test_an_expired_session_says_so(serve):
    """D4: 410 with the reason for every route, at the very moment too; an id that never was is 404."""
    now = [1_000_000]
    async with serve(store=MemoryStore(clock_ms=lambda: now[0])) as client:
        made = (await client.post("/sessions", json={"ttl_seconds": 60})).json()
        path = f"/sessions/{made['id']}"
        now[0] = int(made["expires_at"] * 1000) - 1
        touched = await client.patch(path, json={"ttl_seconds": 2})
        assert touched.json()["expires_at"] * 1000 == now[0] + 2_000
        now[0] += 2_000
        answers = [
            await client.post(f"{path}/append", json={"text": "a"}),
            await client.get(path),
            await client.patch(path, json={"learning": False}),
            await client.post(f"{path}/fork", json={}),
            await client.post(f"{path}/snapshots", json={"name": "n"}),
            await client.get(f"{path}/snapshots"),
            await client.get(f"{path}/export"),
            await client.delete(path),
        ]
        assert {answer.status_code for answer in answers} == {410}
        assert {answer.json()["type"].split(":")[-1] for answer in answers} == {"session_expired"}
        assert (await client.get(f"/sessions/{'0' * 32}")).status_code == 404
