"""`rlstm complete`: what the user types is learned, what is proposed only if it is kept."""

import signal
import time

import pytest

pytestmark = pytest.mark.jobs

LINES = ["The quick brown fox jumps over the lazy dog. " * 2, "The lazy dog sleeps."]


def talked(run, server, lines, *arguments):
    """What the command wrote when these lines were typed."""
    process = run("complete", "--url", server.url, *arguments)
    out, err = process.communicate("".join(line + "\n" for line in lines), timeout=60)
    assert process.returncode == 0, err
    return out.splitlines(), err


def test_only_what_is_kept_is_in_the_session(run, server, client):
    """Typed lines and the proposal that was chosen; not the beginning of one that was refused."""
    asked = [LINES[0], "? The qu", "2", "? The lazy", "", LINES[1]]
    options = ["--max-tokens", "5", "--proposals", "2", "--temperature", "2", "--name", "kept"]
    proposals, _ = talked(run, server, asked, *options)
    session = client.sessions.find("kept")
    again = client.sessions.create()
    for line in (LINES[0], proposals[1].removeprefix("2: "), LINES[1]):
        again.append(line + "\n")

    assert [line[:9] for line in proposals] == ["1: The qu", "2: The qu", "1: The la", "2: The la"]
    assert session.info().position == again.info().position
    assert session.score(["The dog"]).best.logprob == pytest.approx(again.score(["The dog"]).best.logprob)


def test_a_session_goes_on(run, server, client):
    """By its name the same text is continued; no copy is left, nor a session without a name."""
    before = {info.id for info in client.sessions.list()}
    talked(run, server, [LINES[0], "? The", "x"], "--max-tokens", "3", "--name", "goes-on")
    talked(run, server, [LINES[1]], "--name", "goes-on")
    talked(run, server, LINES)
    (name,) = {info.id for info in client.sessions.list()} - before

    assert client.sessions.get(name).info().position == sum(len(line) + 1 for line in LINES)


def test_a_session_goes_on_in_a_file(run, tiny_checkpoint, tmp_path):
    """Without a server: what was typed in one run has been learned in the next."""
    options = ["--local", "--model", str(tiny_checkpoint), "--max-tokens", "8", "--temperature", "2"]

    def said(lines, *more):
        process = run("complete", *options, *more)
        out, err = process.communicate("".join(line + "\n" for line in lines), timeout=120)
        assert process.returncode == 0, err
        return out

    kept = ["--state", str(tmp_path / "kept")]
    assert said([LINES[0]], *kept) == ""
    assert said(["? The"], *kept) == said([LINES[0], "? The"]) != said(["? The"])


def test_text_that_is_no_text_is_told(run, server):
    """Bytes that are not UTF-8 end it with a sentence; what was typed before is kept."""
    process = run("complete", "--url", server.url)
    process.stdin.buffer.write(b"a line\n\xff\xfe\n")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "rlstm: standard input is not UTF-8 text" in err
    assert "Traceback" not in err


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
