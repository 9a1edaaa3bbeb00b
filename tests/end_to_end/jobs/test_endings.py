"""How the jobs end: without a server, when they are interrupted, and when their reader goes."""

import json
import signal
import time

import pytest

pytestmark = pytest.mark.jobs

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(("name", "arguments"), [("rescore", ["-"]), ("complete", [])])
def test_without_a_server(run, name, arguments):
    """One sentence says so, the exit code is that of `rlstm`, and there is no traceback."""
    process = run(name, *arguments, "--url", NOWHERE)
    out, err = process.communicate(json.dumps({"candidates": [{"text": "a"}]}) + "\n", timeout=60)

    assert process.returncode == 3
    assert err.startswith("rlstm: ")
    assert (len(err.splitlines()), out) == (1, "")


def test_ctrl_c(run, server, client):
    """It ends at once, says what it did, and leaves no session that nobody keeps."""
    before = {info.id for info in client.sessions.list()}
    process = run("complete", "--url", server.url)
    process.stdin.write("a line\n")
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while not {info.id for info in client.sessions.list() if info.position} - before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert "learned" in err
    assert {info.id for info in client.sessions.list()} == before
