"""`rlstm watch` as a process: how it ends, and that it goes on as if it had not, whatever was killed."""

import json
import signal
import time
from urllib.parse import urlsplit

import pytest
from tests.client.cli.test_watch import ALARMS, LINES, STRANGE

from rlstm_client import Client

pytestmark = pytest.mark.jobs

RULE = ("--warm-up", "12", "--threshold", "0.6")


@pytest.fixture
def watch(run):
    """Give what starts a watch as a process."""
    return lambda *arguments: run("watch", *arguments, *RULE)


@pytest.fixture
def log(tmp_path):
    """A log with strange lines in it."""
    path = tmp_path / "app.log"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def told(out):
    """The lines that a watch told, by number; what was told twice was told alike."""
    lines = {}
    for line in map(json.loads, out.splitlines()):
        assert lines.setdefault(line["number"], line) == line
    return lines


def test_an_alarm_comes_while_the_log_is_open(watch, server):
    """As behind `tail -F`; bytes that are no text are shown replaced, and the last line needs no end."""
    process = watch("--url", server.url)
    process.stdin.buffer.write("".join(f"{line}\n" for line in LINES[:51]).encode())
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["text"] == STRANGE
    process.stdin.buffer.write(b"\xff\xff\xff\xff\r\n12:00:01 opened by a")
    out, err = process.communicate(timeout=60)

    assert [(line["number"], line["text"]) for line in told(out).values()] == [(52, "�" * 4)]
    assert (process.returncode, err) == (0, "-: 53 lines, 2 alarms\n")


def test_ctrl_c(watch, server, log):
    """It ends at once, and leaves no session that has no name."""
    with Client(server.url) as client:
        before = {info.id for info in client.sessions.list()}
        process = watch(log, "-", "--follow", "--all", "--url", server.url)
        for _ in range(60):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

        assert process.returncode == 130
        assert "Traceback" not in err
        assert {info.id for info in client.sessions.list()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "a"),
        ("a", "b", "--name", "one"),
        ("a", "b", "--name", "one", "--name", "one"),
        ("--state", "s"),
        ("--local", "--name", "n"),
        ("not there",),
        ("--journal", "not there"),
        ("-", "--journal", "-"),
        ("--otlp", "x"),
        ("--otlp", "192.0.2.1:1"),
        ("-", "--metrics", "192.0.2.1:1"),
        ("-", "--alertmanager", "nowhere"),
    ],
)
def test_what_cannot_be_watched(watch, server, arguments):
    """Is said in a line, with exit code 2."""
    process = watch(*arguments, "--url", server.url)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 2
    assert err.startswith("rlstm: ")
    assert len(err.splitlines()) == 1


def killed(watch, *arguments, after):
    """What a watch tells that is killed after so many lines, once for each number, and then is not."""
    out = ""
    for lines in after:
        process = watch(*arguments)
        out += "".join(process.stdout.readline() for _ in range(lines))
        process.kill()
        out += process.stdout.read()
        out = out[: out.rfind("\n") + 1]  # what was cut in its middle is told again
    process = watch(*arguments)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return told(out + rest)


@pytest.mark.timeout(600)
def test_a_watch_that_is_killed_says_the_same(watch, log, tiny_checkpoint, server, tmp_path):
    """By a server and without one: every line, with its score."""
    whole, _ = watch(log, "--all", "--url", server.url).communicate(timeout=120)
    after = (1, 3, 30, 2, 17, 1, 50)
    named = killed(watch, log, "--all", "--url", server.url, "--name", "killed", after=after)
    state = ("--local", "--model", tiny_checkpoint, "--state", tmp_path / "state")
    local = killed(watch, log, "--all", *state, after=after)

    assert [line["number"] for line in told(whole).values() if line["reason"]] == ALARMS
    assert named == local == told(whole)


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_changes_nothing(watch, log, start, tmp_path):
    """It is waited for, and has what it acknowledged."""
    pytest.importorskip("fcntl", reason="no store to embed", exc_type=ImportError)
    whole = tmp_path / "whole"
    with start(data_dir=tmp_path / "other") as server:
        whole, _ = watch(log, "--all", "--url", server.url).communicate(timeout=120)
    with start(data_dir=tmp_path / "data") as server:
        port = urlsplit(server.url).port
        process = watch(log, "--all", "--url", server.url, "--name", "app")
        out = "".join(process.stdout.readline() for _ in range(3))
        server.end(signal.SIGKILL)
    time.sleep(1)
    with start("--port", port, data_dir=tmp_path / "data"):
        out += process.stdout.read()

    assert process.wait(30) == 0, process.stderr.read()
    assert told(out) == told(whole)
