"""`rlstm score`, `generate` and `session …` against the real application."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import httpx
import pytest
from tests.client.conftest import Network
from tests.client.test_faults import without_scores

from rlstm_client import AsyncClient, Client, Retries, _appends
from rlstm_client.cli import inputs, kept

Run = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def rlstm(run: Run, network: Network, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the server, through a network that loses what it is told to."""
    given: Any = {"transport": network, "retries": Retries(attempts=2, first_wait_s=0)}
    monkeypatch.setattr(inputs, "Client", partial(Client, **given))
    monkeypatch.setattr(kept, "AsyncClient", partial(AsyncClient, **given))
    return run


@pytest.fixture
def session(rlstm: Run) -> Callable[..., str]:
    """Run `rlstm session …`, and give what it prints; it has to end like this."""

    def run(*arguments: str, code: int = 0) -> str:
        ended, out, err = rlstm("session", *arguments)
        assert ended == code, err
        return out or err

    return run


def told(network: Network) -> Any:
    """The body of the last request."""
    return json.loads(network.requests[-1].content)


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> Iterator[TextIO]:
    """Have these come through standard input, one after the other."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            for part in parts:
                pipe.write(part)

    source = threading.Thread(target=write)
    source.start()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield stdin
    source.join()


def test_score(rlstm: Run, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums in bits; with ``--json`` the server's answer, with what was asked for; a key from outside."""
    monkeypatch.setenv("RLSTM_API_KEY", "secret-key")
    code, out, _ = rlstm("score", "abc")
    assert (code, "bits per byte" in out, "perplexity per token" in out, "-" in out) == (0, True, True, False)
    assert network.requests[0].headers["authorization"] == "Bearer secret-key"

    code, out, _ = rlstm(
        "score", "abc", "--json", "--tokens", "--unit", "nats", "--context", "x", "--adapt", "both"
    )
    assert (code, json.loads(out)["items"][0]["ids"]) == (0, [97, 98, 99])
    asked = {"text": "abc", "context": "x", "unit": "nats", "scores": "tokens", "adapt": "both"}
    assert told(network) == asked


def test_options_of_learning(rlstm: Run, network: Network) -> None:
    """They make the adaptation object, which implies that the model adapts."""
    options = ("--kind", "output_bias", "--fast-weights", "256", "--experts", "4", "--rate-scale", "0.5")
    assert rlstm("score", "abc", *options)[0] == 0
    asked = {"kind": "output_bias", "num_fast_weights": 256, "experts": 4, "rate_scale": 0.5}
    assert told(network)["adaptation"] == asked
    assert rlstm("score", "abc", "--kind", "no-kind")[0] == 2


def test_a_refusal(rlstm: Run, network: Network) -> None:
    """The server's sentence is the message, and the exit code says that it was the server's."""
    network.refuse(413, "too_large")
    code, out, err = rlstm("score", "abc")
    request = network.requests[0].headers["x-request-id"]
    assert (code, out, err) == (1, "", f"rlstm: refused: too_large (413, request {request})\n")


def test_generate(rlstm: Run) -> None:
    """The text as it comes, or the whole answer as JSON: the same by the same seed."""
    options = ("generate", "a", "--seed", "4", "--max-tokens", "5")
    code, out, _ = rlstm(*options)
    assert (code, out) == (0, json.loads(rlstm(*options, "--json")[1])["text"] + "\n")


def test_without_a_server(rlstm: Run, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--local`` asks a server in this process, of the shipped model by default; why not is one line."""
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        totals = {"logprob": -1, "tokens": 1, "bytes": 1, "bits_per_byte": 8.0}
        return httpx.Response(200, json={"text": "t", "items": [{"totals": totals}]})

    @asynccontextmanager
    async def serving(model: str) -> AsyncIterator[httpx.MockTransport]:
        asked.append(model)
        if model == "none":
            raise ValueError("none: no such checkpoint")
        yield httpx.MockTransport(answer)

    monkeypatch.setattr(kept, "load", lambda group, name, extra: serving)
    assert "8.0000" in rlstm("score", "a", "--local")[1]
    assert json.loads(rlstm("generate", "--local", "a", "--model", "tiny", "--json")[1])["text"] == "t"
    assert rlstm("score", "a", "--local", "--model", "none") == (2, "", "rlstm: none: no such checkpoint\n")
    score, prompt = {"text": "a", "unit": "bits", "scores": "totals"}, {"prompt": "a"}
    assert asked == ["bytes-small", score, "tiny", prompt, "none"]
    assert network.requests == []


def test_a_life(session: Any, network: Network, tmp_path: Path) -> None:
    """Create prints the bare id; the other commands take it from there, to the end."""
    file = tmp_path / "text"
    file.write_bytes("é".encode() * 50)
    options = ("--kind", "output_bias", "--experts", "2", "--rate-scale", "0.5")
    made = session("create", "--name", "life", *options, "--metadata", "a=b=c", "--key", "k").strip()
    assert told(network) == {
        "name": "life",
        "adaptation": {"kind": "output_bias", "experts": 2, "rate_scale": 0.5},
        "metadata": {"a": "b=c"},
    }
    appended = json.loads(session("append", made, "--file", str(file), "--json"))
    assert (appended["version"], appended["totals"]["bytes"]) == (1, 100)
    more = session("append", made, "more")
    assert all(said in more for said in ("gain", "weights", "position"))
    assert "output_bias of 256; 2 experts; rates 0, " in session("info", "life")
    assert json.loads(session("list", "--name", "life", "--json"))["sessions"][0]["id"] == made
    assert made in session("list")
    assert session("generate", made, "--commit", "-n", "3").endswith("\n")
    assert json.loads(session("info", made, "--json"))["position"] == 107
    assert "learning" in session("set", made, "--no-learning", "--ttl", "60")
    assert told(network) == {"ttl_seconds": 60.0, "learning": False}
    assert made in session("reset", made, "--what", "recurrent")
    assert session("delete", made) == f"deleted {made}\n"
    assert "the session is gone" in session("info", made, code=1)
    session("delete", session("create", "--no-static").strip())
    assert json.loads(network.requests[-2].content) == {"adaptation": {"static": False}}


def test_copies(session: Any, tmp_path: Path) -> None:
    """Versions are named and gone back to; forks and imports print their ids."""
    made, file = session("create").strip(), tmp_path / "session.rlstm"
    session("append", made, "abc")
    assert "here" in session("snapshot", made, "here")
    session("append", made, "def", "--if-match", "1")
    assert json.loads(session("snapshots", made, "--json"))["snapshots"][0]["position"] == 3
    assert json.loads(session("restore", made, "here", "--json"))["position"] == 3
    fork = session("fork", made, "--snapshot", "here", "--name", "cli-twin").strip()
    assert json.loads(session("info", "cli-twin", "--json"))["id"] == fork
    assert json.loads(session("info", fork, "--json"))["position"] == 3
    assert "no such session" in session("info", "nobody", code=1)
    assert str(file) in session("export", made, str(file))
    assert "is there already; --force replaces it" in session("export", made, str(file), code=2)
    session("export", made, str(file), "--force")
    copy = session("import", str(file)).strip()
    assert json.loads(session("info", copy, "--json"))["position"] == 3
    assert session("snapshot", made, "here", "--drop") == "dropped here\n"
    assert "snapshot" in session("restore", made, "here", code=1)
    assert session("delete", made, "cli-twin", copy).count("deleted") == 3


def test_ranking(session: Any, network: Network, tmp_path: Path) -> None:
    """Candidates come from the arguments or, one a line, from a file; the best stands first."""
    file = tmp_path / "texts"
    file.write_text("12 monkeys\nq\n")
    made = session("create").strip()
    table = session("score", made, "--file", str(file))
    ranked = json.loads(session("score", made, "12 monkeys", "q", "--json", "--length", "0.5"))
    assert table.index("  q\n") < table.index("12 monkeys")
    assert [each["rank"] for each in ranked["candidates"]] == [2, 1]
    assert told(network)["weights"] == {"lm": 1.0, "length": 0.5}


def test_an_append_that_fails_says_how_far_it_came(
    session: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the session, and what may be, is in the message."""
    monkeypatch.setattr(_appends, "PIECE_BYTES", 64)
    made = session("create").strip()
    network.let_pass()
    network.refuse(500, "internal_error")
    said = session("append", made, "a" * 70, code=1)
    assert "; the first 64 characters are in the session\n" in said
    network.refuse(504, "outcome_unknown", applied="unknown")
    network.refuse(500, "internal_error", applied="unknown")
    assert "; whether the next 3 are is not known" in session("append", made, "abc", code=1)


def test_text_that_is_no_text(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before the first piece is sent."""
    made, file = session("create").strip(), tmp_path / "text"
    file.write_bytes(b"x" * 200_000 + b"\xff")
    assert "not UTF-8 text (byte 200,000)" in session("append", made, "--file", str(file), code=2)
    with piped(monkeypatch, b"x" * 100, b"\xff"):
        said = session("append", made, code=2)
    assert said.startswith("rlstm: standard input is not UTF-8 text (byte 100): ")
    assert "are in the session" not in said
    with piped(monkeypatch, "né".encode("utf-16")):
        said = json.loads(session("append", made, "--json"))
    assert said["totals"]["bytes"] == 3


def test_an_interrupted_append_says_how_far_it_came(
    session: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is no secret of the session's."""

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_appends, "PIECE_BYTES", 64)
    made = session("create").strip()
    network.let_pass()
    network.faults.append(interrupt)
    said = session("append", made, "a" * 70, code=130)
    assert said.startswith(
        "rlstm: interrupted; the first 64 characters are in the session; whether the next 6"
    )


def test_an_append_with_a_key(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated it takes effect once, from standard input too; a version may be asked for."""
    made = session("create").strip()
    for _ in range(2):
        with piped(monkeypatch, b"a" * 50, b"b" * 30):
            session("append", made, "--key", "mine")
    assert "version 1" in session("append", made, "c", "--if-match", "0", code=1)
    assert json.loads(session("append", made, "c", "--if-match", "1", "--json"))["position"] == 81
    assert "the text is empty" in session("append", made, "", code=2)


def test_no_number_is_printed_for_scores_that_are_no_longer_stored(session: Any, network: Network) -> None:
    """Its own exit code, a sentence, and nothing on standard output."""
    made = session("create").strip()
    session("append", made, "abc", "--key", "k")
    network.faults.append(without_scores)
    said = session("append", made, "abc", "--key", "k", "--json", code=5)
    assert said.startswith("rlstm: applied; its scores are no longer stored")


def test_lines_as_they_come(url: str, session: Any) -> None:
    """Each is appended and printed with what it cost."""
    made = session("create").strip()
    command = [Path(sys.executable).with_name("rlstm"), "session", "stream", made, "--url", url]
    options: Any = {"input": b"one\r\ntwo\rx\xff\n", "stderr": subprocess.PIPE, "timeout": 60}
    done = subprocess.run(command, stdout=subprocess.PIPE, **options)
    assert (done.returncode, [line.split()[-1] for line in done.stdout.splitlines()]) == (2, [b"one", b"two"])
    assert b"standard input is not UTF-8 text (byte 10)" in done.stderr
