"""Sessions over HTTP: every change has a version, a key and a condition. What each does the engine proves."""

import math
from urllib.parse import urljoin

import pytest

from rlstm_server.store.memory_store import MemoryStore

TEXT = "It was the best of times, it was the worst of times. "
PROBE = {"candidates": [{"text": "the age of wisdom"}]}
OCTETS = {"content-type": "application/octet-stream"}
UNKNOWN = "0" * 32

CHANGES = [
    ("POST", "/append", {"text": "abc"}, {"text": "abd"}),
    ("POST", "/reset", {}, {"what": "recurrent"}),
    ("PATCH", "", {"learning": False}, {"learning": True}),
    ("POST", "/snapshots", {"name": "second"}, {"name": "third"}),
    ("POST", "/restore", {"snapshot": "first"}, {"snapshot": "other"}),
]
"""Every change of a session, and another body for it."""
COPIES = [("POST", "/fork", {}, {"name": "x"})]


@pytest.fixture
async def session(client):
    """One that has read a text at version 1, which has two names."""
    body = {"text": TEXT, "metadata": {"kind": "novel", "year": 1859}, "name": "tale", "ttl_seconds": 5_000}
    made = (await client.post("/sessions", json=body)).json()
    for name in ("first", "other"):
        await client.post(f"/sessions/{made['id']}/snapshots", json={"name": name})
    return f"/sessions/{made['id']}"


async def append(client, session, status=200, headers=None, **body):
    return await client.ask(status, "POST", f"{session}/append", {"text": TEXT} | body, headers=headers)


async def info(client, session):
    return await client.ask(200, "GET", session)


async def probe(client, session):
    return (await client.ask(200, "POST", f"{session}/score", PROBE))["candidates"][0]["logprob"]


def slug(answer):
    return answer["type"].rsplit(":", 1)[-1]


# ---- what one is -------------------------------------------------------------------------------------------


async def test_a_session_learns_from_its_stream(client):
    """Scores come first, updates after; versions and positions count; the gain adds up, in bits."""
    made = await client.ask(201, "POST", "/sessions", {"text": TEXT, "scores": "totals", "unit": "bits"})
    session = f"/sessions/{made['id']}"
    answers = [made["append"], *[await append(client, session, unit="bits") for _ in range(3)]]
    assert [answer["version"] for answer in answers] == [1, 2, 3, 4]
    assert answers[-1]["position"] == 4 * len(TEXT)
    assert sum(answer["updates"] for answer in answers) == 4 * len(TEXT) // 8
    found = await info(client, session)
    gained = math.fsum(answer["totals"]["gain"] for answer in answers)
    assert found["totals"]["gain"] == pytest.approx(gained, abs=1e-6)
    assert found["totals"]["gain"] > 0
    assert found["totals"]["tokens"] == 4 * len(TEXT)


async def test_an_answer_is_as_detailed_as_asked(client, session):
    """Nothing, sums, or columns too; `learn: false` only reads."""
    for scores in ("none", "totals", "tokens"):
        answer = await append(client, session, scores=scores, learn=False)
        assert ("ids" in answer, "totals" in answer) == (scores == "tokens", scores != "none")
        assert answer["learn"] is False


async def test_candidates_are_ranked_by_their_mix(client, session):
    """Score = lm * logprob + length * tokens + given * given in the answer's unit, in the order given."""
    candidates = [{"id": "a", "text": "12 monkeys", "given": 3.0}, {"text": "cat"}]
    body = {"candidates": candidates, "weights": {"lm": 0.5, "length": 0.25, "given": 2.0}, "unit": "bits"}
    first, second = (await client.ask(200, "POST", f"{session}/score", body))["candidates"]
    assert (first["id"], second["id"]) == ("a", "1")
    assert first["score"] == pytest.approx(0.5 * first["logprob"] + 0.25 * 10 + 2 * 3.0)
    assert second["static_score"] == pytest.approx(0.5 * second["static_logprob"] + 0.25 * 3)
    for score, rank in (("score", "rank"), ("static_score", "static_rank")):
        assert max(first, second, key=lambda one: one[score])[rank] == 1
    appended = await append(client, session, text="cat", unit="bits", scores="totals")
    for name in ("logprob", "static_logprob", "gain"):
        # An append counts each of its tokens before the next, a candidate none.
        assert second[name] == pytest.approx(appended["totals"][name], abs=1e-2)


async def test_numbers_in_metadata_keep_all_their_digits(client):
    """Of 64 bits, in their own types; all of it together is bounded."""
    notes = {"most": 2**63 - 1, "least": -(2**63), "odd": 2**53 + 1, "float": 0.1, "yes": True, "none": None}
    made = await client.ask(201, "POST", "/sessions", {"metadata": notes})
    found = (await info(client, f"/sessions/{made['id']}"))["metadata"]
    assert found == notes
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in notes.items()}
    long = {"metadata": {f"k{n}": "é" * 512 for n in range(17)}}
    assert (await client.ask(413, "PATCH", f"/sessions/{made['id']}", long))["limit"] == 16_384


async def test_sessions_are_listed_in_pages_and_found_by_name(client):
    """Each once; one that has ended has no name."""
    made = [(await client.ask(201, "POST", "/sessions", {"name": f"n{n}"}))["id"] for n in range(5)]
    listed, page = [], {"cursor": None}
    for _ in range(3):
        params = {"limit": 2} | ({"cursor": page["cursor"]} if page["cursor"] else {})
        page = await client.ask(200, "GET", "/sessions", params=params)
        listed += page["sessions"]
    assert page["cursor"] is None
    assert [session["id"] for session in listed] == made
    found = await client.ask(200, "GET", "/sessions", params={"name": "n3"})
    assert found == {"sessions": [listed[3]], "cursor": None}
    assert slug(await client.ask(409, "POST", "/sessions", {"name": "n3"})) == "session_exists"
    await client.ask(204, "DELETE", f"/sessions/{made[3]}")
    for params in ({"name": "n3"}, {"name": "nobody"}):
        assert (await client.ask(200, "GET", "/sessions", params=params))["sessions"] == []
    for params in ({"name": "no name"}, {"name": "n1", "cursor": "abc"}):
        await client.ask(422, "GET", "/sessions", params=params)


# ---- versions and keys -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body", "other"), [*CHANGES, *COPIES])
async def test_a_repeat_with_the_same_key_is_the_same_change(client, session, method, path, body, other):
    """It takes effect once; the second answer says so and repeats the first; another body is refused."""
    key = {"idempotency-key": "k-1"}
    status = 201 if path in ("/snapshots", "/fork") else 200
    first = await client.ask(status, method, session + path, body, headers=key)
    between = await append(client, session)
    again = await client.ask(status, method, session + path, body, headers=key)
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert again | {"replayed": False, "expires_at": 0} == first | {"expires_at": 0}
    assert (await info(client, session))["version"] == between["version"]
    refused = await client.ask(422, method, session + path, other, headers=key)
    assert slug(refused) == "idempotency_mismatch"


@pytest.mark.parametrize(("method", "path", "body", "other"), CHANGES)
async def test_a_change_insists_on_a_version_where_asked(client, session, method, path, body, other):
    """412 carries the present version, and nothing has happened; the tag of any answer is what to send."""
    before = await info(client, session)
    answer = await client.request(method, session + path, json=body, headers={"if-match": '"0"'})
    assert (answer.status_code, answer.json()["version"], answer.headers["etag"]) == (412, 1, '"1"')
    assert await info(client, session) == before
    done = await client.request(method, session + path, json=body, headers={"if-match": '"1"'})
    assert done.status_code < 300
    assert done.headers["etag"] == ('"1"' if path == "/snapshots" else '"2"')


async def test_reads_refuse_an_older_version(client, session):
    """412 below `min_version`, on every read of a session."""
    for path in ("", "/snapshots", "/export"):
        assert (await client.ask(412, "GET", session + path, params={"min_version": 2}))["version"] == 1
    for path, body in (("/score", PROBE), ("/generate", {}), ("/fork", {})):
        await client.ask(412, "POST", session + path, body | {"min_version": 2})


async def test_a_repeated_create_makes_one_session(client):
    """The key belongs to the tenant."""
    key = {"idempotency-key": "make-1"}
    answers = [await client.post("/sessions", json={}, headers=key) for _ in range(2)]
    first, again = (answer.json() for answer in answers)
    assert again == first | {"replayed": True}
    assert answers[0].headers["etag"] == '"0"'
    assert len((await client.ask(200, "GET", "/sessions"))["sessions"]) == 1


async def test_where_a_session_is_is_told_from_where_it_was_asked_for(client):
    """So that it is right behind a proxy that puts a prefix before every path."""
    made = await client.post("/sessions", json={})
    place = f"/sessions/{made.json()['id']}"
    forked = await client.post(f"{place}/fork", json={})
    file = (await client.get(f"{place}/export")).content
    imported = await client.post("/sessions/import", content=file, headers=OCTETS)
    for answer in (made, forked, imported):
        asked = f"https://example.org/model{answer.request.url.path}"
        found = urljoin(asked, answer.headers["location"])
        assert found == f"https://example.org/model/sessions/{answer.json()['id']}"


async def test_a_session_that_has_ended_is_gone_everywhere(serve):
    """Deleted or expired: 410 with the reason on every route, to the moment; one that never was is 404."""
    now = [1_000_000]
    async with serve(store=MemoryStore(clock_ms=lambda: now[0])) as client:
        for reason in ("session_expired", "session_deleted"):
            made = await client.ask(201, "POST", "/sessions", {"ttl_seconds": 60, "name": "mine"})
            session = f"/sessions/{made['id']}"
            now[0] = int(made["expires_at"] * 1000) - 1
            touched = await client.ask(200, "PATCH", session, {"ttl_seconds": 2})
            assert touched["expires_at"] * 1000 == now[0] + 2_000
            if reason == "session_expired":
                now[0] += 2_000
                await client.ask(410, "DELETE", session)
            else:
                for _ in range(2):
                    await client.ask(204, "DELETE", session)
            asked = [(method, path, body) for method, path, body, _ in (*CHANGES, *COPIES)]
            asked += [("POST", "/score", PROBE), ("GET", "", None), ("GET", "/snapshots", None)]
            for method, path, body in [*asked, ("GET", "/export", None)]:
                assert slug(await client.ask(410, method, session + path, body)) == reason
        for method, path, body in asked:
            assert slug(await client.ask(404, method, f"/sessions/{UNKNOWN}{path}", body)) == "not_found"


# ---- settings, snapshots, forks and files ------------------------------------------------------------------


async def test_an_update_changes_what_it_names(client, session):
    """Learning that is off keeps every append from learning, and kept text too."""
    before = await info(client, session)
    after = await client.ask(200, "PATCH", session, {"learning": False, "metadata": {"a": 1}})
    assert (after["version"], after["learning"], after["metadata"]) == (2, False, {"a": 1})
    assert (after["name"], after["totals"]) == (before["name"], before["totals"])
    assert not (await append(client, session))["learn"]
    body = {"max_tokens": 20, "commit": True, "learn_from_output": True}
    await client.ask(200, "POST", f"{session}/generate", body)
    assert (await info(client, session))["totals"]["updates"] <= before["totals"][
        "updates"
    ] + 1  # what waited
    await client.ask(200, "PATCH", session, {"learning": True})
    assert (await append(client, session))["updates"] > 0
    for body in ({"learning": None, "ttl_seconds": 0}, {"learning": 1}, {"name": "x"}, {"metadata": []}):
        await client.ask(422, "PATCH", session, body)


async def test_a_name_stands_for_one_version(client, session):
    """Listed by version; 409 where another version has it; dropped twice without harm; never a path."""
    await append(client, session)
    taken = await client.ask(409, "POST", f"{session}/snapshots", {"name": "first"})
    assert slug(taken) == "snapshot_exists"
    await client.ask(201, "POST", f"{session}/snapshots", {"name": "second"})
    for _ in range(2):
        await client.ask(204, "DELETE", f"{session}/snapshots/other")
    listed = (await client.ask(200, "GET", f"{session}/snapshots"))["snapshots"]
    assert [(one["name"], one["version"]) for one in listed] == [("first", 1), ("second", 2)]
    for name in ("", "a b", "../x", "x" * 65, "a\0"):
        assert (await client.ask(422, "POST", f"{session}/snapshots", {"name": name}))["field"] == "name"
    for name in ("a%20b", "..%2fx", "x" * 65):
        await client.ask(404, "DELETE", f"{session}/snapshots/{name}")


async def test_an_exported_session_comes_back_as_it_was(client, session):
    """The same scores to the bit, the same settings; a key makes one; what is no such file is refused."""
    source, score = await info(client, session), await probe(client, session)
    data = (await client.get(f"{session}/export")).content
    key = {"idempotency-key": "i-1"}
    bring = {"content": data, "headers": OCTETS | key, "params": {"name": "again", "ttl_seconds": 60}}
    made, again = [(await client.post("/sessions/import", **bring)).json() for _ in range(2)]
    assert again == made | {"replayed": True}
    assert made["forked_from"] == {"session": source["id"], "version": 1, "snapshot": None}
    for name in ("position", "totals", "metadata", "learning", "adaptation", "weights", "norm_ratio"):
        assert made[name] == source[name], name
    assert await probe(client, f"/sessions/{made['id']}") == score
    for wrong in (data[:-1], data + b"x", data[8:], b"x" * 500, b""):
        refused = await client.post("/sessions/import", content=wrong, headers=OCTETS)
        assert (refused.status_code, slug(refused.json())) == (422, "import_rejected")
    assert slug(await client.ask(415, "POST", "/sessions/import", {})) == "unsupported_media_type"


async def test_an_import_has_a_limit_and_a_scope_of_its_own(serve, key_file):
    """Nothing in a file is signed: a key needs `admin` to bring one. It may be larger than other bodies."""
    keys = {"alice's key": {"scopes": ["sessions"]}, "root's own key": {"scopes": ["admin", "sessions"]}}
    limits = {"body_bytes": 2_048, "import_bytes": 4_096}
    async with serve(api_keys_file=key_file(keys), limits=limits) as client:
        alice, root = ({"authorization": f"Bearer {key}"} for key in keys)
        for size, headers, status in ((4_000, root, 422), (4_097, root, 413), (4_000, alice, 403)):
            answer = await client.post("/sessions/import", content=b"x" * size, headers=OCTETS | headers)
            assert answer.status_code == status
        assert (await client.post("/sessions", content=b"x" * 2_049, headers=root)).status_code == 413


# ---- notes -------------------------------------------------------------------------------------------------

NOTE = '{"line": 7, "text": "\\u0000 é 💡"}'
LONGEST = "\0" * 65_536


@pytest.fixture
async def noted(client):
    """A session that has read a text, with a note."""
    session = f"/sessions/{(await client.ask(201, 'POST', '/sessions', {}))['id']}"
    await append(client, session, note=NOTE)
    return session


async def note(client, session):
    return await client.ask(200, "GET", f"{session}/note")


async def test_a_note_stays_until_there_is_another(client, noted):
    """It is of the version that is read; an append without one keeps it, an empty one ends it."""
    assert await note(client, noted) == {"version": 1, "note": NOTE}
    await append(client, noted)
    assert await note(client, noted) == {"version": 2, "note": NOTE}
    await append(client, noted, note="")
    assert await note(client, noted) == {"version": 3, "note": ""}
    await client.ask(412, "GET", f"{noted}/note", params={"min_version": 4})


async def test_a_note_alone(client, noted):
    """It can change without a text: nothing else does."""
    before = await info(client, noted)
    changed = await client.ask(200, "PATCH", noted, {"note": "other"})
    after = await info(client, noted)
    assert changed["version"] == 2
    others = {name for name in before if before[name] != after[name]}
    assert others <= {"version", "expires_at", "state_bytes"}
    assert await note(client, noted) == {"version": 2, "note": "other"}
    await client.ask(413, "PATCH", noted, {"note": "x" * 65_537})


async def test_a_note_is_part_of_the_append(client, noted):
    """A repeat has the same one, and takes effect once; another is another request."""
    key = {"idempotency-key": "k"}
    first = await append(client, noted, note="one", headers=key)
    await append(client, noted, note="two")
    again = await append(client, noted, note="one", headers=key)
    assert (first["replayed"], again["replayed"], again["version"]) == (False, True, first["version"])
    assert (await note(client, noted))["note"] == "two"
    for other in ({"note": "on"}, {"note": ""}, {}):
        await append(client, noted, 422, headers=key, **other)


async def test_a_note_goes_where_the_state_goes(client, noted):
    """Snapshots, forks and files have the one of their moment."""
    await client.ask(201, "POST", f"{noted}/snapshots", {"name": "then"})
    await append(client, noted, note=LONGEST)
    fork = await client.ask(201, "POST", f"{noted}/fork", {})
    old = await client.ask(201, "POST", f"{noted}/fork", {"snapshot": "then"})
    file = (await client.get(f"{noted}/export")).content
    made = (await client.post("/sessions/import", content=file, headers=OCTETS)).json()
    await client.ask(200, "POST", f"{noted}/restore", {"snapshot": "then"})
    sessions = [noted, *(f"/sessions/{one['id']}" for one in (fork, old, made))]
    found = [(await note(client, session))["note"] for session in sessions]
    assert found == [NOTE, LONGEST, NOTE, LONGEST]


async def test_a_note_is_bounded(client, noted):
    """By its UTF-8; the setting is named, nothing is read, and a surrogate alone is no text."""
    answer = await append(client, noted, 413, note="é" * 32_769)
    assert (answer["given"], answer["limit"]) == (65_538, 65_536)
    assert "RLSTM_LIMITS__NOTE_BYTES" in answer["detail"]
    json, alone = {"content-type": "application/json"}, rb'{"text": "a", "note": "\ud800"}'
    await client.ask(400, "POST", f"{noted}/append", content=alone, headers=json)
    assert await note(client, noted) == {"version": 1, "note": NOTE}
