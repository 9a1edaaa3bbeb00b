"""A session's note: a text of the client's own that takes effect with an append, or not at all."""

import pytest

OCTETS = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}
NOTE = '{"line": 7, "text": "\\u0000 é 💡"}'
LONGEST = "\0" * 65_536


@pytest.fixture
async def session(client):
    """One that has read a text, with a note."""
    made = (await client.post("/sessions", json={})).json()
    path = f"/sessions/{made['id']}"
    await appended(client, path, note=NOTE)
    return path


async def appended(client, path, status=200, headers=None, **body):
    answer = await client.post(f"{path}/append", json={"text": "a text. "} | body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def note(client, path):
    answer = await client.get(f"{path}/note")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_note_stays_until_there_is_another(client, session):
    """It is of the version that is read; an append without one keeps it, an empty one ends it."""
    assert await note(client, session) == {"version": 1, "note": NOTE}
    await appended(client, session)
    assert await note(client, session) == {"version": 2, "note": NOTE}
    await appended(client, session, note="")
    assert await note(client, session) == {"version": 3, "note": ""}
    assert (await client.get(f"{session}/note", params={"min_version": 4})).status_code == 412


async def test_a_note_alone(client, session):
    """It can change without a text: nothing else does."""
    before = (await client.get(session)).json()
    changed = (await client.patch(session, json={"note": "other"})).json()
    after = (await client.get(session)).json()

    assert changed["version"] == 2
    assert {name for name in before if before[name] != after[name]} <= {
        "version",
        "expires_at",
        "state_bytes",
    }
    assert await note(client, session) == {"version": 2, "note": "other"}
    assert (await client.patch(session, json={"note": "x" * 65_537})).status_code == 413


async def test_a_note_is_part_of_the_append(client, session):
    """A repeat has the same one, and takes effect once; another is another request."""
    key = {"idempotency-key": "k"}
    first = await appended(client, session, note="one", headers=key)
    await appended(client, session, note="two")
    again = await appended(client, session, note="one", headers=key)

    assert (first["replayed"], again["replayed"], again["version"]) == (False, True, first["version"])
    assert (await note(client, session))["note"] == "two"
    for other in ({"note": "on"}, {"note": ""}, {}):
        await appended(client, session, 422, headers=key, **other)


async def test_a_note_goes_where_the_state_goes(client, session):
    """Snapshots, forks and files have the one of their moment."""
    await client.post(f"{session}/snapshots", json={"name": "then"})
    await appended(client, session, note=LONGEST)
    fork = (await client.post(f"{session}/fork", json={})).json()
    old = (await client.post(f"{session}/fork", json={"snapshot": "then"})).json()
    file = (await client.get(f"{session}/export")).content
    made = (await client.post("/sessions/import", content=file, headers=OCTETS)).json()
    await client.post(f"{session}/restore", json={"snapshot": "then"})

    found = [
        (await note(client, path))["note"]
        for path in (
            session,
            *(f"/sessions/{one['id']}" for one in (fork, old, made)),
        )
    ]
    assert found == [NOTE, LONGEST, NOTE, LONGEST]


async def test_a_note_is_bounded(client, session):
    """By its UTF-8; the setting is named, nothing is read, and a surrogate alone is no text."""
    answer = await appended(client, session, 413, note="é" * 32_769)

    assert (answer["given"], answer["limit"]) == (65_538, 65_536)
    assert "RLSTM_LIMITS__NOTE_BYTES" in answer["detail"]
    surrogate = await client.post(
        f"{session}/append", content=rb'{"text": "a", "note": "\ud800"}', headers=JSON
    )
    assert surrogate.status_code == 400
    assert (await note(client, session)) == {"version": 1, "note": NOTE}
