"""Named snapshots and ways back, over HTTP."""

import pytest

TEXT = "It was the best of times, it was the worst of times. "
PROBE = {"candidates": [{"text": "the age of wisdom"}]}


async def create(client, **body):
    answer = await client.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def append(client, session, text=TEXT):
    answer = await client.post(f"/sessions/{session}/append", json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def take(client, session, name, headers=None):
    answer = await client.post(f"/sessions/{session}/snapshots", json={"name": name}, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def restore(client, session, name, headers=None):
    return await client.post(f"/sessions/{session}/restore", json={"snapshot": name}, headers=headers)


async def info(client, session):
    return (await client.get(f"/sessions/{session}")).json()


async def probe(client, session):
    answer = await client.post(f"/sessions/{session}/score", json=PROBE)
    assert answer.status_code == 200, answer.text
    return answer.json()["candidates"][0]["logprob"]


@pytest.fixture
async def session(client):
    return await create(client, text=TEXT)


async def test_naming_a_version_makes_none(client, session):
    """The snapshot tells where the session stood; the session stands there still."""
    before = await info(client, session)
    taken = await take(client, session, "here")
    assert (taken["version"], taken["position"]) == (before["version"], before["position"])
    assert taken["totals"] == before["totals"]
    assert await info(client, session) == before


async def test_a_restored_session_scores_as_it_did(client, session):
    """D1, D10: to the bit, position and totals too; only the version is new, no cache has the newer state."""
    await take(client, session, "here")
    before, score = await info(client, session), await probe(client, session)
    await append(client, session)
    assert await probe(client, session) != score
    answer = await restore(client, session, "here")
    assert answer.status_code == 200
    assert await probe(client, session) == score
    after = answer.json()
    assert (after["version"], after["position"]) == (before["version"] + 2, before["position"])
    assert (await info(client, session))["totals"] == before["totals"]


async def test_a_restored_session_learns_on_as_it_would_have(client, session):
    """What follows a restore is what followed the snapshot."""
    await take(client, session, "here")
    first = await append(client, session)
    await restore(client, session, "here")
    assert (await append(client, session))["logprobs"] == first["logprobs"]


async def test_an_unknown_snapshot_changes_nothing(client, session):
    """E6: 404, and the session is as it was."""
    before = await info(client, session)
    answer = await restore(client, session, "nowhere")
    assert answer.status_code == 404
    assert await info(client, session) == before


async def test_a_dropped_snapshot_is_gone(client, session):
    """D16: neither restored nor forked any more; dropping twice is harmless."""
    await take(client, session, "here")
    path = f"/sessions/{session}/snapshots/here"
    assert [(await client.delete(path)).status_code for _ in range(2)] == [204, 204]
    assert (await client.get(f"/sessions/{session}/snapshots")).json() == {"snapshots": []}
    assert (await restore(client, session, "here")).status_code == 404
    fork = await client.post(f"/sessions/{session}/fork", json={"snapshot": "here"})
    assert fork.status_code == 404


async def test_snapshots_are_listed_by_version(client, session):
    """Oldest first, each with the place it stands for."""
    await take(client, session, "one")
    await append(client, session)
    await take(client, session, "two")
    listed = (await client.get(f"/sessions/{session}/snapshots")).json()
    assert [(each["name"], each["version"]) for each in listed["snapshots"]] == [("one", 1), ("two", 2)]


async def test_a_name_stands_for_one_version(client, session):
    """409 for a name that another version has; the same again is a repeat."""
    assert (await take(client, session, "here"))["replayed"] is False
    assert (await take(client, session, "here"))["replayed"] is True
    await append(client, session)
    answer = await client.post(f"/sessions/{session}/snapshots", json={"name": "here"})
    assert answer.status_code == 409
    assert answer.json()["type"].endswith(":snapshot_exists")


async def test_a_repeat_names_the_version_of_the_first_time(client, session):
    """A client that lost the answer learns which version it named, however far the session has moved on."""
    key = {"Idempotency-Key": "s-1"}
    first = await take(client, session, "here", key)
    await append(client, session)
    again = await take(client, session, "here", key)
    assert again == first | {"replayed": True}
    other = await client.post(f"/sessions/{session}/snapshots", json={"name": "there"}, headers=key)
    assert other.status_code == 422
    assert other.json()["type"].endswith(":idempotency_mismatch")


async def test_naming_insists_on_a_version_where_asked(client, session):
    """412 when the session has moved on."""
    answer = await client.post(
        f"/sessions/{session}/snapshots", json={"name": "here"}, headers={"If-Match": '"0"'}
    )
    assert answer.status_code == 412
    assert answer.json()["version"] == 1


async def test_a_repeated_restore_is_one(client, session):
    """The stored answer comes back; the same key for another snapshot is refused."""
    await take(client, session, "here")
    await append(client, session)
    await take(client, session, "there")
    key = {"Idempotency-Key": "r-1"}
    first = (await restore(client, session, "here", key)).json()
    await append(client, session)
    again = (await restore(client, session, "here", key)).json()
    assert again == first | {"replayed": True, "expires_at": again["expires_at"]}
    assert (await restore(client, session, "there", key)).status_code == 422


async def test_restoring_insists_on_a_version_where_asked(client, session):
    """412, and the session is as it was."""
    await take(client, session, "here")
    before = await info(client, session)
    answer = await restore(client, session, "here", {"If-Match": '"0"'})
    assert answer.status_code == 412
    assert await info(client, session) == before


@pytest.mark.parametrize("name", ["../../etc/passwd", "%2e%2e%2f", "a\0b", "/etc", "a" * 300, "", "é"])
async def test_no_name_is_a_path(client, session, name):
    """E5: what is no name is refused by field, and never repeated."""
    for path, field in (("snapshots", "name"), ("restore", "snapshot"), ("fork", "snapshot")):
        answer = await client.post(f"/sessions/{session}/{path}", json={field: name})
        assert answer.status_code == 422, path
        assert answer.json()["field"] == field
        assert not name or name not in answer.text


@pytest.mark.parametrize("name", ["%2e%2e%2f%2e%2e%2fetc", "a%00b", "a" * 300, "%C3%A9"])
async def test_no_name_in_a_path_is_one(client, session, name):
    """E5: there is no snapshot of such a name."""
    answer = await client.delete(f"/sessions/{session}/snapshots/{name}")
    assert answer.status_code in {404, 405}


async def test_reads_refuse_an_older_version(client, session):
    """412 below `min_version`, on every read of a session."""
    for path in ("", "/snapshots", "/export"):
        answer = await client.get(f"/sessions/{session}{path}", params={"min_version": 2})
        assert answer.status_code == 412, path
        assert answer.json()["version"] == 1
    for path, body in (("score", PROBE), ("generate", {}), ("fork", {})):
        answer = await client.post(f"/sessions/{session}/{path}", json=body | {"min_version": 2})
        assert answer.status_code == 412, path
