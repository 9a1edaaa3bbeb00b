"""The audit log: who changed what, with what outcome, and nothing of what they wrote."""

import asyncio
import hashlib
import io
import json
import logging
import shutil

import pytest

from rlstm_server.errors import StartupError
from rlstm_server.logs import AUDIT, JsonFormatter, configure_logs

SECRET = "the-right-key"
CANARY = "canary-7f3a"


@pytest.fixture
def lines(restored_logs):
    """The audit lines so far, as they are written."""
    logger, stream = logging.getLogger(AUDIT), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
async def keyed(serve, lines):
    """A client with a key, and a session of its own."""
    async with serve(api_keys=SECRET, headers={"authorization": f"Bearer {SECRET}"}) as client:
        client.session = (await client.post("/sessions", json={"name": CANARY})).json()["id"]
        yield client


async def test_a_change_is_one_line_that_says_who_what_and_to_which_version(keyed, lines):
    """Keys, of the API and of the operation, by their digests only."""
    body, headers = {"text": CANARY}, {"idempotency-key": CANARY, "x-request-id": "r-1"}
    await keyed.post(f"/sessions/{keyed.session}/append", json=body, headers=headers)
    line = lines()[-1]
    assert len(lines()) == 2
    told = {
        name: line[name] for name in line if name not in {"time", "level", "logger", "message", "seconds"}
    }
    assert told == {
        "request_id": "r-1",
        "tenant": "default",
        "key_id": hashlib.sha256(SECRET.encode()).hexdigest()[:8],
        "endpoint": "POST /sessions/{session_id}/append",
        "session_id": keyed.session,
        "version_before": 0,
        "version": 1,
        "operation": hashlib.sha256(CANARY.encode()).hexdigest()[:16],
        "status": 200,
        "outcome": "ok",
    }
    assert CANARY not in json.dumps(lines())


async def test_making_and_ending_a_session_are_changes(keyed, lines):
    """The new session is named; so is the one that a copy was made of."""
    copied = await keyed.post(f"/sessions/{keyed.session}/fork", json={})
    await keyed.delete(f"/sessions/{keyed.session}")
    made, fork, ended = lines()
    assert (made["session_id"], made["made"], made["version"]) == (keyed.session, keyed.session, 0)
    assert (fork["session_id"], fork["made"]) == (keyed.session, copied.json()["id"])
    assert (ended["endpoint"], ended["status"]) == ("DELETE /sessions/{session_id}", 204)


async def test_a_text_that_is_kept_is_a_change(keyed, lines):
    """Whole or as a stream, with the version that it led to; one that is only shown is none."""
    for stream in (False, True):
        body = {"max_tokens": 3, "stream": stream, "commit": True}
        await keyed.post(f"/sessions/{keyed.session}/generate", json=body)
        assert lines()[-1]["version"] == 1 + stream
        await keyed.post(f"/sessions/{keyed.session}/generate", json=body | {"commit": False})
    assert len(lines()) == 3


async def test_what_was_tried_in_vain_is_written_down(keyed, lines):
    """With the problem; also when the session is not there."""
    await keyed.post(f"/sessions/{keyed.session}/append", json={"text": "a"}, headers={"if-match": "7"})
    await keyed.delete(f"/sessions/{'0' * 32}")
    moved, missing = lines()[1:]
    assert (moved["status"], moved["code"]) == (412, "version_mismatch")
    assert (missing["status"], missing["code"]) == (404, "not_found")


KEYS = {
    "scores-only": {"scopes": ["score"]},
    "once": {"quotas": {"requests_per_second": 0.001}},
    "often": {},
}


async def test_what_is_refused_at_the_door_is_written_down(serve, lines, key_file):
    """Under the route that it was meant for, by whom as far as that is known, once each."""
    session = "0" * 32

    async def late():
        yield b"x"
        await asyncio.sleep(60)

    limits = {"body_bytes": 2_000, "receive_seconds": 0.1}
    async with serve(api_keys_file=key_file(KEYS), limits=limits) as client:

        async def ask(key, method, path, **body):
            headers = {"authorization": f"Bearer {key}"}
            return (await client.request(method, path, headers=headers, **body)).status_code

        assert await ask("wrong", "DELETE", f"/sessions/{session}") == 401
        assert await ask("scores-only", "POST", f"/sessions/{session}/append", json={"text": "a"}) == 403
        assert await ask("once", "GET", "/sessions") == 200
        assert await ask("once", "POST", "/sessions", json={}) == 429
        assert await ask("often", "POST", "/sessions", content=b"x" * 2_001) == 413
        assert await ask("often", "POST", "/sessions", content=late()) == 408
        assert await ask("wrong", "DELETE", f"/sessions/{CANARY.upper()}") == 401
        for method, path in (
            ("GET", "/sessions"),
            ("POST", "/score"),
            ("POST", "/nowhere"),
            ("X", "/sessions"),
        ):
            assert await ask("wrong", method, path) == 401
    told = [
        (line["status"], line["endpoint"], line.get("session_id"), line.get("key_id")) for line in lines()
    ]
    named = {name: hashlib.sha256(name.encode()).hexdigest()[:8] for name in KEYS}
    assert told == [
        (401, "DELETE /sessions/{session_id}", session, None),
        (403, "POST /sessions/{session_id}/append", session, None),
        (429, "POST /sessions", None, None),
        (413, "POST /sessions", None, named["often"]),
        (408, "POST /sessions", None, named["often"]),
        (401, "DELETE /sessions/{session_id}", None, None),
    ]
    assert CANARY.upper() not in json.dumps(lines())


async def test_a_method_that_a_route_has_not_is_no_change(keyed, lines):
    """Nothing was tried, and the word is the caller's."""
    await keyed.request("SECRET", f"/sessions/{keyed.session}/fork")
    assert len(lines()) == 1


async def test_reading_is_no_change(keyed, lines):
    """Neither by GET nor by the routes that only look like changes."""
    await keyed.get(f"/sessions/{keyed.session}")
    await keyed.get("/sessions")
    await keyed.post("/score", json={"text": "a"})
    await keyed.post("/generate", json={"max_tokens": 1})
    await keyed.post(f"/sessions/{keyed.session}/score", json={"candidates": [{"text": "a"}]})
    assert len(lines()) == 1


@pytest.mark.usefixtures("restored_logs")
def test_the_audit_log_may_have_a_file_of_its_own(tmp_path):
    """For its owner's eyes, whatever the level of the other log; a file that is moved away is made anew."""
    path, stream = tmp_path / "audit.log", io.StringIO()
    configure_logs("error", audit_file=path, stream=stream)
    for name in ("old", "new"):
        logging.getLogger(AUDIT).info("change", extra={"tenant": name})
        if name == "old":
            path.rename(tmp_path / "audit.log.1")
    assert json.loads((tmp_path / "audit.log.1").read_text())["tenant"] == "old"
    assert json.loads(path.read_text())["tenant"] == "new"
    assert (tmp_path / "audit.log.1").stat().st_mode & 0o777 == 0o600
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("restored_logs")
def test_without_a_file_it_is_part_of_the_log():
    """Under its own name, whatever the level."""
    stream = io.StringIO()
    configure_logs("error", stream=stream)
    logging.getLogger(AUDIT).info("change", extra={"tenant": "a"})
    assert json.loads(stream.getvalue())["logger"] == AUDIT


@pytest.mark.usefixtures("restored_logs")
def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """A server that is to be audited does not serve unaudited."""
    with pytest.raises(StartupError, match="RLSTM_AUDIT_FILE"):
        configure_logs("info", audit_file=tmp_path / "nowhere" / "audit.log")


@pytest.mark.usefixtures("restored_logs")
def test_a_file_that_is_lost_takes_no_line_along(tmp_path):
    """Lines go beside the others, which say what is wrong, until the folder is there again."""
    folder, stream = tmp_path / "folder", io.StringIO()
    folder.mkdir()
    configure_logs("error", audit_file=folder / "audit.log", stream=stream)
    for name, act in (("one", lambda: shutil.rmtree(folder)), ("two", lambda: None), ("three", folder.mkdir)):
        logging.getLogger(AUDIT).info("change", extra={"tenant": name})
        act()
    logging.getLogger(AUDIT).info("change", extra={"tenant": "four"})
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("tenant") for line in written] == [None, "two", None, "three"]
    assert [line.get("exception") for line in written] == ["FileNotFoundError", None] * 2
    assert json.loads((folder / "audit.log").read_text())["tenant"] == "four"
    assert (folder / "audit.log").stat().st_mode & 0o777 == 0o600
