"""`rlstm compress` and `rlstm decompress`: files, pipes, and whatever goes wrong with them."""

import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rlstm_client.cli import commands

RLSTM = Path(sys.executable).with_name("rlstm")
CONTENT = b"the sea was calm and cold; \xff\n" * 8

Run = Callable[..., str]


@pytest.fixture
def rlstm(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_checkpoint: Path) -> Run:
    """Run a command in an empty folder with the tiny model; it has to end like this, with one line."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> str:
        own = [] if "--model" in arguments else ["--model", str(tiny_checkpoint)]
        ended, out, err = run(*arguments, *own)
        assert ended == code, err
        assert (out if code else err) == ""
        assert (out or err).count("\n") == 1
        return str(err.removeprefix("rlstm: ").strip() if code else out)

    return call


def files(folder: Path = Path()) -> set[str]:
    """What is there, hidden files too."""
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("adapt", ["frozen", "weights", "memory", "both"])
def test_there_and_back(rlstm: Run, adapt: str) -> None:
    """A file beside the file, with its permissions; the file stays, and comes back the same."""
    Path("tale").write_bytes(CONTENT)
    Path("tale").chmod(0o640)
    said = rlstm("compress", "tale", "--adapt", adapt)
    packed = Path("tale.rlz").stat()
    assert said.startswith(f"tale.rlz: 232 bytes in {packed.st_size}, {8 * packed.st_size / 232:.3f} bits")
    assert packed.st_mode & 0o777 == 0o640
    Path("tale").unlink()
    assert rlstm("decompress", "tale.rlz") == "tale: 232 bytes\n"
    assert Path("tale").read_bytes() == CONTENT
    assert files() == {"tale", "tale.rlz"}


def test_nothing_is_written_over(rlstm: Run) -> None:
    """Unless that is asked for; and what is no file never."""
    Path("tale").write_bytes(CONTENT)
    rlstm("compress", "tale", "-o", "x.rlz")
    Path("there").write_text("mine")
    for command in (("compress", "tale"), ("decompress", "x.rlz")):
        assert rlstm(*command, "--out", "there", code=2) == "there: is there already; --force replaces it"
        assert Path("there").read_text() == "mine"
        assert rlstm(*command, "--out", "/dev/null", "--force", code=2).endswith("and no file")
    rlstm("decompress", "x.rlz", "--out", "there", "--force")
    assert Path("there").read_bytes() == CONTENT


def test_what_comes_into_being_meanwhile_is_not_written_over(
    rlstm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tale").write_bytes(CONTENT)

    def slow(source: Any, sink: Any, **_: Any) -> None:
        Path("tale.rlz").write_text("mine")

    monkeypatch.setattr(commands, "load", lambda group, name, extra: slow)
    assert rlstm("compress", "tale", code=2) == "tale.rlz: is there already; --force replaces it"
    assert (Path("tale.rlz").read_text(), files()) == ("mine", {"tale", "tale.rlz"})


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_nothing_is_written_of_a_damaged_file(rlstm: Run, damage: str) -> None:
    """One line, exit code 2, and the folder is as it was."""
    Path("tale").write_bytes(CONTENT)
    rlstm("compress", "tale", "--out", "whole.rlz")
    whole = Path("whole.rlz").read_bytes()
    made = {"cut": whole[:-5], "flipped": whole[:-5] + b"?" + whole[-4:], "empty": b"", "foreign": CONTENT}
    Path("bad.rlz").write_bytes(made[damage])
    before = files()
    told = {"empty": "the file is empty", "foreign": "this is no file of `rlstm compress`"}
    expected = told.get(damage, "the file is damaged or cut short")
    assert rlstm("decompress", "bad.rlz", code=2) == expected
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compress", "none"], "none: No such file or directory"),
        (["compress", "."], ".: Is a directory"),
        (["compress", "tale", "--model", "none"], "none: no such checkpoint folder or shipped model"),
        (["decompress", "tale"], "tale: the name does not end in .rlz: give --out FILE"),
        (["decompress", "none.rlz"], "none.rlz: No such file or directory"),
    ],
)
def test_errors_are_one_line(rlstm: Run, arguments: list[str], said: str) -> None:
    Path("tale").write_bytes(CONTENT)
    assert rlstm(*arguments, code=2).startswith(said)
    assert files() == {"tale"}


def test_what_is_missing_is_said(rlstm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra to install, in one line."""
    Path("tale").write_bytes(CONTENT)
    point = EntryPoint(name="compress", value="rlstm_no_such_module:compress", group="rlstm.local")
    monkeypatch.setattr(commands, "entry_points", lambda group, name: (point,))
    said = rlstm("compress", "tale", code=4)
    assert said.endswith(
        "needs rlstm_no_such_module; install it with: pip install 'mogrifier-rlstm[compress]'"
    )


def test_a_model_that_computes_no_numbers(rlstm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the model's fault: exit code 1; and nothing is left."""

    def broken(source: Any, sink: Any, **_: Any) -> None:
        sink.write(b"half of it")
        raise ArithmeticError("the model's output is not finite")

    Path("tale").write_bytes(CONTENT)
    monkeypatch.setattr(commands, "load", lambda group, name, extra: broken)
    assert rlstm("compress", "tale", code=1) == "the model's output is not finite"
    assert files() == {"tale"}


def piped(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in a process of its own, with pipes."""
    return subprocess.run(
        [RLSTM, *map(str, arguments)], timeout=100, check=False, **{"capture_output": True, **options}
    )


def test_pipes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Bytes in, bytes out, and not a word beside them."""
    options: Any = {"cwd": tmp_path}
    packed = piped("compress", "-", "--model", tiny_checkpoint, input=CONTENT, **options)
    assert (packed.returncode, packed.stderr) == (0, b"")
    back = piped("decompress", "-", "--model", tiny_checkpoint, input=packed.stdout, **options)
    assert (back.returncode, back.stdout, back.stderr) == (0, CONTENT, b"")
    damaged = piped("decompress", "-", "--model", tiny_checkpoint, input=packed.stdout[:-1], **options)
    assert (damaged.returncode, damaged.stdout) == (2, b"")
    assert files(tmp_path) == set()


def test_a_disk_that_takes_no_more(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """One line, and no half file is left."""
    resource = pytest.importorskip("resource")
    (tmp_path / "tale").write_bytes(CONTENT)

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))

    ended = piped("compress", "tale", "--model", tiny_checkpoint, cwd=tmp_path, preexec_fn=small_files_only)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr == b"rlstm: the output: File too large\n"
    assert files(tmp_path) == {"tale"}
