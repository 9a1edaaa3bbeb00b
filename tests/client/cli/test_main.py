"""The command line as a whole, in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlstm_client.cli import main
from rlstm_client.cli.commands import COMMANDS

RLSTM = Path(sys.executable).with_name("rlstm")


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [RLSTM, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, **options
    )


def test_help_imports_nothing_heavy() -> None:
    """Help needs neither torch nor httpx nor any package of ours but this one."""
    code = "import sys\nfrom rlstm_client.cli.commands import build\n"
    code += "build()(['--help'], standalone_mode=False)\nprint('MODULES', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = {name.partition(".")[0] for name in out.partition("MODULES")[2].split()}

    assert not modules & {
        "torch",
        "httpx",
        "numpy",
        "fastapi",
        "rlstm_model",
        "rlstm_server",
        "rlstm_training",
    }


def test_help_names_every_command() -> None:
    """One line a command, and the exit codes below."""
    out = run("--help").stdout

    assert all(f"\n  {one.path.partition('.')[0]} " in out for one in COMMANDS)
    assert "Exit codes: 0 done" in out


def test_version() -> None:
    """``--version`` says which release this is."""
    assert run("--version").stdout.startswith("rlstm 0.")


def test_the_completion_script_asks_for_completions() -> None:
    """What a shell has to read for its completions."""
    shown = run(env=os.environ | {"_RLSTM_COMPLETE": "zsh_source"})

    assert shown.returncode == 0
    assert "_RLSTM_COMPLETE=zsh_complete" in shown.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rlstm ses", ["session"]),
        ("rlstm store ch", ["check"]),
        ("rlstm session app", ["append"]),
        ("rlstm score --conte", ["--context"]),
        ("rlstm session create --fast", ["--fast-weights"]),
        ("rlstm store check --dur", ["--durability"]),
        ("rlstm session nonsense x", []),
    ],
)
def test_completion_reaches_the_command_behind(words: str, offered: list[str]) -> None:
    """Names of commands and options, whichever package brings them."""
    number = str(len(words.split()) - 1)
    asked = {"_RLSTM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number}
    found = run(env=os.environ | asked)

    assert [line.removeprefix("plain,") for line in found.stdout.split()] == offered
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["frobnicate"], 2, "No such command"),
        (["scroe"], 2, "Did you mean one of: 'rescore', 'score'"),
        (["session", "appendd"], 2, "Did you mean 'append'"),
        (["score", "--unit", "furlongs", "a"], 2, "furlongs"),
        (["session", "info", "../x"], 2, "is not a session id"),
        (["score", "a", "--url", "nonsense"], 2, "is not a URL"),
        (["score", "a", "--url", "http://127.0.0.1:9"], 3, "`rlstm serve` starts a server"),
        (["complete", "--url", "http://127.0.0.1:9"], 3, "cannot connect to http://127.0.0.1:9"),
        (["watch", "/dev/null", "--url", "http://127.0.0.1:9"], 3, "cannot connect to http://127.0.0.1:9"),
        (["score", "--file", "/no/such/file"], 2, "/no/such/file: No such file or directory"),
        (["score", "a", "--file", "b"], 2, "not both"),
        (["session", "create", "--metadata", "novalue"], 2, "NAME=VALUE"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the user can get wrong: a documented exit code, a sentence that names it, no traceback."""
    monkeypatch.setattr("sys.argv", ["rlstm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()

    assert (ended.value.code, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def _wait_until_it_reads(pid: int) -> None:
    """Until a process waits for what comes through a pipe; where nothing tells, long enough for that."""
    where = Path(f"/proc/{pid}/wchan")
    if not where.exists():
        time.sleep(5)
        return
    for _ in range(600):
        if "pipe" in where.read_text():
            return
        time.sleep(0.05)
    raise TimeoutError("the process reads nothing")


def test_ctrl_c_is_quiet() -> None:
    """An interrupt ends a command that waits with code 130 and without a word."""
    process = subprocess.Popen(
        [RLSTM, "score"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What a shell starts in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_until_it_reads(process.pid)
    process.send_signal(2)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (130, b"", b"")
