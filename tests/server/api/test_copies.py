"""Forks, exports and imports, over HTTP."""

import hashlib
import json

import pytest

TEXT = "It was the best of times, it was the worst of times. "
PROBE = {"candidates": [{"text": "the age of wisdom"}]}
OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
async def client(serve):
    async with serve() as client:
        yield client


@pytest.fixture
async def session(client):
    body = {"text": TEXT, "metadata": {"kind": "novel", "year": 1859}, "name": "tale", "ttl_seconds": 5_000}
    return (await client.post("/sessions", json=body)).json()["id"]


async def fork(client, session, headers=None, **body):
    answer = await client.post(f"/sessions/{session}/fork", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/sessions/{answer.json()['id']}"
    return answer.json()


async def export(client, session):
    answer = await client.get(f"/sessions/{session}/export")
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == int(answer.headers["content-length"])
    return answer.content


async def bring(client, data, headers=None, **params):
    return await client.post(
        "/sessions/import", content=data, headers=OCTETS | (headers or {}), params=params
    )


async def append(client, session, text=TEXT):
    return (await client.post(f"/sessions/{session}/append", json={"text": text})).json()


async def info(client, session):
    return (await client.get(f"/sessions/{session}")).json()


async def probe(client, session):
    answer = await client.post(f"/sessions/{session}/score", json=PROBE)
    assert answer.status_code == 200, answer.text
    return answer.json()["candidates"][0]["logprob"]


async def test_a_fork_is_a_copy_with_a_history_of_its_own(client, session):
    """The same scores, position and totals under a new id and version 0; metadata and lifetime come along."""
    made, source = await fork(client, session), await info(client, session)
    assert made["id"] != session
    assert (made["version"], made["position"], made["name"]) == (0, source["position"], None)
    assert made["forked_from"] == {"session": session, "version": 1, "snapshot": None}
    assert (made["totals"], made["metadata"]) == (source["totals"], source["metadata"])
    assert made["expires_at"] - made["created_at"] == pytest.approx(5_000, abs=2)
    assert await probe(client, made["id"]) == await probe(client, session)


async def test_a_fork_and_its_source_go_their_own_ways(client, session):
    """What one reads changes nothing of the other, and each learns as the source would have."""
    twin = (await fork(client, session))["id"]
    before = await info(client, session)
    theirs = await append(client, twin)
    assert await info(client, session) == before
    assert (await append(client, session))["logprobs"] == theirs["logprobs"]
    assert (await client.delete(f"/sessions/{session}")).status_code == 204
    assert (await append(client, twin))["version"] == 2


async def test_a_fork_of_a_snapshot_is_as_the_session_was_then(client, session):
    """It names the version and the snapshot that it came from."""
    score = await probe(client, session)
    await client.post(f"/sessions/{session}/snapshots", json={"name": "then"})
    await append(client, session)
    made = await fork(client, session, snapshot="then", name="mine", metadata={}, ttl_seconds=60)
    assert made["forked_from"] == {"session": session, "version": 1, "snapshot": "then"}
    assert (made["name"], made["metadata"]) == ("mine", {})
    assert await probe(client, made["id"]) == score
    assert (await info(client, made["id"]))["forked_from"] == made["forked_from"]


async def test_a_repeated_fork_makes_one_session(client, session):
    """The key belongs to the tenant, as that of create does."""
    key = {"Idempotency-Key": "f-1"}
    first, again = await fork(client, session, key), await fork(client, session, key)
    assert again == first | {"replayed": True}
    other = await client.post(f"/sessions/{session}/fork", json={"name": "x"}, headers=key)
    assert other.status_code == 422
    assert len((await client.get("/sessions")).json()["sessions"]) == 2


async def test_a_fork_of_nothing_is_refused(client, session):
    """D13, D16: an unknown session or snapshot is 404, a name that is taken 409; no session is made."""
    answers = [
        await client.post(f"/sessions/{'0' * 32}/fork", json={}),
        await client.post(f"/sessions/{session}/fork", json={"snapshot": "none"}),
        await client.post(f"/sessions/{session}/fork", json={"name": "tale"}),
        await client.post("/sessions", json={"name": "tale"}),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 409, 409]
    assert answers[3].json()["type"].endswith(":session_exists")
    assert len((await client.get("/sessions")).json()["sessions"]) == 1


async def test_an_exported_session_comes_back_as_it_was(client, session):
    """D12: export, delete, import: the same scores to the bit, and the same learning afterwards."""
    await client.patch(f"/sessions/{session}", json={"learning": False})
    source, score = await info(client, session), await probe(client, session)
    data = await export(client, session)
    assert (await client.delete(f"/sessions/{session}")).status_code == 204
    answer = await bring(client, data, name="again", ttl_seconds=60)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["id"] != session
    assert made["forked_from"] == {"session": session, "version": 2, "snapshot": None}
    for name in (
        "position",
        "totals",
        "metadata",
        "learning",
        "adaptation",
        "weights",
        "norm_ratio",
    ):
        assert made[name] == source[name], name
    assert await probe(client, made["id"]) == score
    assert (await append(client, made["id"]))["version"] == 1


async def test_a_repeated_import_makes_one_session(client, session):
    """The same file under the same key; another file under it is refused."""
    key, data = {"Idempotency-Key": "i-1"}, await export(client, session)
    first, again = await bring(client, data, key), await bring(client, data, key)
    assert again.json() == first.json() | {"replayed": True}
    await append(client, session)
    other = await bring(client, await export(client, session), key)
    assert other.status_code == 422
    assert other.json()["type"].endswith(":idempotency_mismatch")


async def test_a_file_that_is_none_is_refused(client, session):
    """Cut, longer, or not of a session; what is said of it holds nothing of the file."""
    data = await export(client, session)
    for wrong in (data[:-1], data + b"x", data[8:], b"x" * 500, b""):
        answer = await bring(client, wrong)
        assert answer.status_code == 422
        assert answer.json()["type"].endswith(":import_rejected")


async def test_imports_need_the_scope_admin(serve, tmp_path):
    """Nothing in a file is signed: whoever may bring one may bring any state. Without keys anybody may."""
    keys = {"alice's key": ["sessions"], "root's own key": ["admin"]}
    async with serve(**key_file(tmp_path, keys)) as client:
        alice, root = ({"Authorization": f"Bearer {key}"} for key in keys)
        made = await client.post("/sessions", json={"text": TEXT}, headers=alice)
        data = (await client.get(f"/sessions/{made.json()['id']}/export", headers=alice)).content
        assert (await bring(client, data, alice)).status_code == 403
        assert (await bring(client, data, root)).status_code == 201


def key_file(folder, keys):
    path = folder / "keys.json"
    records = [
        {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": key[:4], "scopes": scopes}
        for key, scopes in keys.items()
    ]
    path.write_text(json.dumps(records))
    return {"api_keys_file": path}


async def test_an_import_has_a_limit_of_its_own(serve):
    """Counted as received, and larger than that of other bodies."""
    limits = {"body_bytes": 2_048, "import_bytes": 4_096}
    async with serve(limits=limits) as client:
        assert (await bring(client, b"x" * 4_000)).status_code == 422
        assert (await bring(client, b"x" * 4_097)).status_code == 413
        assert (await client.post("/sessions", content=b"x" * 2_049)).status_code == 413


async def test_an_import_is_bytes(client):
    """415 for anything else."""
    answer = await client.post("/sessions/import", json={})
    assert answer.status_code == 415
    assert answer.json()["type"].endswith(":unsupported_media_type")
