"""`rlstm session …` against the fake server."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from rlstm_client.cli.main import main


@pytest.fixture
def session(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `rlstm session …` against the fake server and return what it prints; it has to end well."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["rlstm", "session", *arguments, "--url", address])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out or err

    return run


@contextmanager
def piped(*parts: bytes) -> Iterator[TextIO]:
    """Standard input that these come through, one after the other."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            for part in parts:
                pipe.write(part)

    source = threading.Thread(target=write)
    source.start()
    with os.fdopen(reader) as stdin:
        yield stdin
    source.join()


def test_a_life(session: Any, server: Any, tmp_path: Path) -> None:
    """Create prints the bare id; the other commands take it from there, to the end."""
    file = tmp_path / "text"
    file.write_bytes("é".encode() * 5000)
    made = session("create", "--name", "n", "--rate-scale", "2", "--metadata", "a=b=c").strip()

    assert json.loads(server.requests[0].content) == {
        "name": "n",
        "adaptation": {"rate_scale": 2.0},
        "metadata": {"a": "b=c"},
    }
    appended = json.loads(session("append", made, "--file", str(file), "--json"))
    assert (appended["version"], appended["totals"]["bytes"]) == (3, 10_000)
    assert "gain (bits)" in session("append", made, "more")
    assert json.loads(session("info", made, "--json"))["version"] == 4
    assert made in session("info", made)
    assert made in session("list")
    assert json.loads(session("list", "--json"))["sessions"][0]["id"] == made
    assert session("generate", made, "--commit") == "héllo\n"
    assert made in session("reset", made, "--what", "recurrent")
    assert session("delete", made) == f"deleted {made}\n"
    assert "the session is gone" in session("info", made, code=1)


def test_copies(session: Any, tmp_path: Path) -> None:
    """Versions are named and gone back to; forks and imports print their ids."""
    made, file = session("create").strip(), tmp_path / "session.rlstm"
    session("append", made, "abc")
    assert "here" in session("snapshot", made, "here")
    session("append", made, "def")
    assert json.loads(session("snapshots", made, "--json"))["snapshots"][0]["position"] == 3
    assert json.loads(session("restore", made, "here", "--json"))["position"] == 3
    fork = session("fork", made, "--snapshot", "here", "--name", "twin").strip()
    assert json.loads(session("info", fork, "--json"))["position"] == 3
    assert str(file) in session("export", made, str(file))
    copy = session("import", str(file)).strip()
    assert json.loads(session("info", copy, "--json"))["position"] == 3
    assert session("snapshot", made, "here", "--drop") == "dropped here\n"
    assert "no such snapshot" in session("restore", made, "here", code=1)


def test_settings(session: Any, server: Any) -> None:
    """Only what is named is changed."""
    made = session("create").strip()
    assert "off" in session("set", made, "--no-learning", "--ttl", "60")
    assert json.loads(server.requests[-1].content) == {"ttl_seconds": 60.0, "learning": False}


def test_how_it_learns(session: Any, server: Any) -> None:
    """What is asked for is sent; what is used, the experts' weights and the guards are printed."""
    options = ("--kind", "subspace", "--fast-weights", "1234", "--experts", "2", "--rate-scale", "0.5")
    made = session("create", *options).strip()
    asked = {"kind": "subspace", "num_fast_weights": 1234, "experts": 2, "rate_scale": 0.5}

    assert json.loads(server.requests[0].content) == {"adaptation": asked}
    assert "subspace of 1,234; 2 experts; rates 0, 0.003" in session("info", made)
    appended = session("append", made, "text")
    assert "0.2500, 0.7500" in appended
    assert "projected 1" in appended
    session("create", "--no-static")
    assert json.loads(server.requests[-1].content) == {"adaptation": {"static": False}}


def test_ranking(session: Any, server: Any, tmp_path: Path) -> None:
    """Candidates come from the arguments or, one a line, from a file; the best stands first."""
    file = tmp_path / "texts"
    file.write_text("12 monkeys\nfew\n")
    made = session("create").strip()
    table = session("score", made, "--file", str(file))
    ranked = json.loads(session("score", made, "12 monkeys", "few", "--json", "--length", "0.5"))

    assert table.index("few") < table.index("12 monkeys")
    assert [(each["rank"], each["static_rank"]) for each in ranked["candidates"]] == [(2, 1), (1, 2)]
    assert json.loads(server.requests[-1].content)["weights"] == {"lm": 1.0, "length": 0.5}


def test_an_append_that_fails_says_how_far_it_came(session: Any, server: Any) -> None:
    """What is in the session already is in the message."""
    made = session("create").strip()
    server.let_pass()
    server.refuse(500, "internal")

    said = session("append", made, "a" * 5000, code=1)
    assert "4,096 characters are in the session" in said
    assert server.texts[made] == "a" * 4096


def test_a_file_that_is_no_text_to_its_end_is_not_begun(session: Any, server: Any, tmp_path: Path) -> None:
    """Its bad byte is found before its first piece is sent."""
    made, file = session("create").strip(), tmp_path / "text"
    file.write_bytes(b"x" * 200_000 + b"\xff")

    assert "not UTF-8 text (byte 200,000)" in session("append", made, "--file", str(file), code=2)
    assert server.texts[made] == ""


def test_standard_input_that_is_no_text_says_how_far_it_came(
    session: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was appended as it came: what is in the session stands in the message."""
    made = session("create").strip()
    with piped(b"x" * 65_536, b"\xff") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        said = session("append", made, code=2)

    assert said == (
        "rlstm: standard input is not UTF-8 text (byte 65,536);"
        f" the first {len(server.texts[made]):,} characters are in the session\n"
    )


def test_an_interrupted_append_says_how_far_it_came(
    session: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is no secret of the session's."""

    def typed(*_: Any) -> Iterator[str]:
        yield "abc"
        raise KeyboardInterrupt

    made = session("create").strip()
    monkeypatch.setattr("rlstm_client.cli.session.text_as_it_comes", typed)

    said = session("append", made, code=130)
    assert said == "rlstm: interrupted; the first 3 characters are in the session\n"
    assert server.texts[made] == "abc"


def test_what_may_be_in_the_session_is_said_too(session: Any, server: Any) -> None:
    """Nobody knows of a piece whose answer never came."""
    made = session("create").strip()
    server.let_pass()
    server.refuse(504, "outcome_unknown", applied="unknown")
    server.refuse(500, "internal", applied="unknown")

    said = session("append", made, "a" * 5000, code=1)
    assert "the first 4,096 characters are in the session; whether the next 904 are is not known" in said


def test_an_append_with_a_key(session: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated it takes effect once, from standard input too; a version may be asked for."""
    made = session("create").strip()
    for _ in range(2):
        with piped(b"a" * 5000, b"b" * 3000) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            session("append", made, "--key", "mine")

    assert server.texts[made] == "a" * 5000 + "b" * 3000
    assert "version 2" in session("append", made, "c", "--if-match", "0", code=1)
    session("append", made, "c", "--if-match", "2")


def test_an_empty_text(session: Any) -> None:
    """Nothing to append is an error of the caller."""
    made = session("create").strip()

    assert "the text is empty" in session("append", made, "", code=2)
