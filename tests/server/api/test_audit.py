"""The audit log: who changed what, with what outcome, and nothing of what they wrote."""

import asyncio
import hashlib
import io
import json
import logging
import shutil

import pytest

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


async def test_changes_and_what_was_tried_in_vain_are_written_down(keyed, lines):
    """Which session was made, or copied; a text only where it is kept; of what failed the problem."""
    path, kept = f"/sessions/{keyed.session}", {"max_tokens": 3, "commit": True}
    copied = (await keyed.post(f"{path}/fork", json={})).json()["id"]
    for stream in (False, True):
        await keyed.post(f"{path}/generate", json=kept | {"stream": stream})
    await keyed.post(f"{path}/append", json={"text": "a"}, headers={"if-match": "7"})
    await keyed.delete(path)
    await keyed.delete(f"/sessions/{'0' * 32}")
    one = "{session_id}"
    told = [
        tuple(line.get(name) for name in ("endpoint", "session_id", "made", "version", "status", "code"))
        for line in lines()
    ]
    assert told == [
        ("POST /sessions", keyed.session, keyed.session, 0, 201, None),
        (f"POST /sessions/{one}/fork", keyed.session, copied, 0, 201, None),
        (f"POST /sessions/{one}/generate", keyed.session, None, 1, 200, None),
        (f"POST /sessions/{one}/generate", keyed.session, None, 2, 200, None),
        (f"POST /sessions/{one}/append", keyed.session, None, 2, 412, "version_mismatch"),
        (f"DELETE /sessions/{one}", keyed.session, None, None, 204, None),
        (f"DELETE /sessions/{one}", "0" * 32, None, None, 404, "not_found"),
    ]


async def test_reading_is_no_change(keyed, lines):
    """Neither by GET nor by the routes that only look like changes; nor is a method that a route has not."""
    path = f"/sessions/{keyed.session}"
    for asked in (path, "/sessions"):
        await keyed.get(asked)
    await keyed.post("/score", json={"text": "a"})
    for asked in ("/generate", f"{path}/generate"):
        await keyed.post(asked, json={"max_tokens": 1})
    await keyed.post(f"{path}/score", json={"candidates": [{"text": "a"}]})
    await keyed.request("SECRET", f"{path}/fork")
    assert len(lines()) == 1


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
async def test_a_change_is_one_line(serve, tmp_path):
    """Under the audit log's name, whatever the level; with a file of its own, one there and one here."""
    for level, path, told in (
        ("error", None, ["change"]),
        ("info", None, ["change", "request"]),
        ("info", tmp_path / "audit.log", ["request", "request"]),
    ):
        stream = io.StringIO()
        configure_logs(level, audit_file=path, stream=stream)
        async with serve() as client:
            await client.post("/sessions", json={})
            await client.get("/sessions")
        assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == told
    assert json.loads(path.read_text())["message"] == "change"


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
