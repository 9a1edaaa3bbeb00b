"""Output that cannot be written, of every command: one line and exit code 2, or a closed pipe's own code."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.servers import RLSTM

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600)]

TEXT = "日本 é\n" * 3

PRINTING = {
    "help": ["--help"],
    "version": ["--version"],
    "score": ["score", "{text}", "--tokens"],
    "score as json": ["score", "{text}", "--json"],
    "generate": ["generate", "a", "--max-tokens", "5"],
    "watch": ["watch", "{file}", "--all"],
    "rescore": ["rescore", "{lists}"],
    "complete": ["complete", "--max-tokens", "3"],
    "surprisal": ["surprisal", "{file}"],
    "compress": ["compress", "{file}", "--out", "-"],
    "decompress": ["decompress", "{file}.rlz", "--out", "-"],
    "session create": ["session", "create"],
    "session list": ["session", "list"],
    "session info": ["session", "info", "{session}"],
    "session append": ["session", "append", "{session}", "{text}"],
    "session stream": ["session", "stream", "{session}", "--file", "{file}"],
    "session score": ["session", "score", "{session}", "{text}"],
    "session generate": ["session", "generate", "{session}", "--max-tokens", "5"],
    "session export": ["session", "export", "{session}", "{out}", "--force"],
    "serve": ["serve", "{model}", "--port", "0"],
    "serve check": ["serve", "{model}", "--check"],
    "models": ["models"],
    "probe": ["probe", "{url}", "--port", "0"],
    "corpora": ["corpora"],
    "recipes": ["train", "--list"],
    "train": ["train", "tiny", "--corpus", "{corpus}", "--run", "{run}", "--steps", "1", "--json"],
    "evaluate": ["evaluate", "{run}/tiny", "{file}", "--json"],
    "report": ["report", "{run}", "--json"],
}

PLACES = {
    "compress": ["compress", "{file}", "--out", "{missing}"],
    "decompress": ["decompress", "{file}.rlz", "--out", "{missing}"],
    "watch": ["watch", "{file}", "--local", "--model", "{model}", "--state", "{missing}"],
    "rescore": ["rescore", "{lists}", "--out", "{missing}"],
    "rescore state": ["rescore", "{lists}", "--local", "--model", "{model}", "--state", "{missing}"],
    "complete": ["complete", "--local", "--model", "{model}", "--state", "{missing}"],
    "session export": ["session", "export", "{session}", "{missing}"],
    "train": ["train", "tiny", "--corpus", "{corpus}", "--run", "{file}/run", "--steps", "1"],
    "train out": ["train", "tiny", "--corpus", "{corpus}", "--run", "{missing}", "--out", "{file}/x"],
    "report": ["report", "{run}", "--out", "{file}/x.html"],
}


@pytest.fixture(scope="module")
def given(server, tiny_checkpoint, tmp_path_factory):
    """What the placeholders of the commands stand for."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "text").write_text(TEXT)
    (folder / "lists").write_text('{"candidates": [{"text": "a"}]}')
    (folder / "corpus").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "corpus" / f"{split}.txt").write_text("It was so. " * 200)
    names = {
        "text": TEXT,
        "file": folder / "text",
        "lists": folder / "lists",
        "corpus": folder / "corpus",
        "run": folder / "run",
        "missing": folder / "none" / "x",
        "out": folder / "out",
        "model": tiny_checkpoint,
        "url": server.url,
    }
    ran(names, "compress", "{file}")
    ran(names, "train", "tiny", "--corpus", "{corpus}", "--run", "{run}", "--steps", "1")
    names["session"] = ran(names, "session", "create").stdout.strip()
    return names


def ran(given, *words, **options):
    """A command that has ended, and what it wrote to standard error."""
    command = [str(RLSTM), *(word.format(**given) for word in words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RLSTM_URL": given["url"]} | options.pop("env", {})
    options = {"stdout": subprocess.PIPE, "text": True, "timeout": 120} | options
    return subprocess.run(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        input="? a\n",
        cwd=given["file"].parent,
        **options,
    )


@pytest.mark.parametrize("name", PRINTING)
def test_a_full_disk(given, name):
    """One line, and the exit code of wrong usage."""
    with Path("/dev/full").open("w") as full:
        done = ran(given, *PRINTING[name], stdout=full)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        2,
        ["rlstm: standard output: No space left on device"],
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", PRINTING)
def test_a_closed_pipe(given, name):
    """Not a word, and what a shell says of SIGPIPE."""
    if name == "serve":
        pytest.importorskip("fcntl", reason="no store to embed", exc_type=ImportError)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = ran(given, *PRINTING[name], stdout=pipe)
    assert (done.returncode, "rlstm:" in done.stderr, "Traceback" in done.stderr) == (141, False, False)


def test_another_encoding(given):
    """What is told has escapes; a stream's line, which is written as it is, is refused and not learned."""
    other = {"env": {"PYTHONIOENCODING": "cp1252"}, "encoding": "cp1252"}
    told = ran(given, "session", "score", "{session}", "\u65e5 é", **other)
    assert (told.returncode, "\\u65e5 é" in told.stdout) == (0, True)
    before = ran(given, "session", "info", "{session}", "--json").stdout
    refused = ran(given, *PRINTING["session stream"], **other)
    said = "rlstm: standard output has no '\\u65e5' in its encoding, cp1252; set PYTHONIOENCODING=utf-8\n"
    assert (refused.returncode, refused.stderr) == (2, said)
    assert ran(given, "session", "info", "{session}", "--json").stdout == before


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_is_not_there(given, name):
    """It is named before anything is done, and nothing is left beside it."""
    before = sorted(given["file"].parent.iterdir())
    done = ran(given, *PLACES[name])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sorted(given["file"].parent.iterdir()) == before
