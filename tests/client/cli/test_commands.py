"""Commands found by their entry points."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import click
import pytest

from rlstm_client.cli import commands
from rlstm_client.cli.commands import build
from rlstm_client.cli.exits import CommandError, Exit

SEEN: list[Any] = []


@click.command()
@click.argument("recipe")
@click.option("--steps", default=1)
def plain(recipe: str, steps: int) -> None:
    """Plain command."""
    SEEN.append((recipe, steps))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Make an object the entry point ``train``."""
    SEEN.clear()

    def put(target: Any) -> None:
        module = ModuleType("brought_by_a_test")
        module.command = target  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        point = EntryPoint(name="train", value="brought_by_a_test:command", group=commands.COMMAND_GROUP)
        monkeypatch.setattr(commands, "entry_points", lambda group, name: (point,) * (name == "train"))

    return put


def test_arguments_go_through(install: Any) -> None:
    """A command gets its own arguments and parses them itself."""
    install(plain)
    with pytest.raises(SystemExit) as ended:
        build()(["train", "tiny", "--steps", "7"])

    assert (ended.value.code, SEEN) == (0, [("tiny", 7)])


def test_a_group_has_commands_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`store check x` is the entry point ``store.check`` with an extra; `store` alone lists its parts."""
    SEEN.clear()
    module = ModuleType("brought_by_a_test")
    module.command = plain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = EntryPoint(name="store.check", value="brought_by_a_test:command", group=commands.COMMAND_GROUP)
    points = {"store.check": (point,)}
    monkeypatch.setattr(commands, "entry_points", lambda group, name: points.get(name, ()))
    build()(["store", "check", "x", "--steps", "2"], standalone_mode=False)
    assert SEEN == [("x", 2)]

    with pytest.raises(SystemExit):
        build()(["store"])
    listed = capsys.readouterr()
    assert all(f"\n  {part} " in listed.out + listed.err for part in ("install", "check"))
    with pytest.raises(SystemExit) as ended:
        build()(["store", "bytes-small"])
    assert ended.value.code == 2

    del points["store.check"]
    with pytest.raises(CommandError, match=r"store\.check: .*\[server\]'"):
        build()(["store", "check"], standalone_mode=False)


def test_help_of_the_command_behind(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``rlstm train --help`` shows the help of the real command."""
    install(plain)
    with pytest.raises(SystemExit):
        build()(["train", "--help"], prog_name="rlstm")

    out = capsys.readouterr().out
    assert "Usage: rlstm train" in out
    assert "--steps" in out


def test_a_command_that_nobody_brings(install: Any) -> None:
    """Without an entry point the message names the extra to install."""
    install(plain)
    with pytest.raises(CommandError, match=r"serve: .*'mogrifier-rlstm\[server\]'") as caught:
        build()(["serve"], standalone_mode=False)
    assert caught.value.exit_code is Exit.MISSING


def test_a_command_whose_needs_are_not_installed(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing third-party module is named, with the extra that brings it."""
    install(plain)
    monkeypatch.delitem(sys.modules, "brought_by_a_test")
    with pytest.raises(CommandError, match=r"train needs brought_by_a_test; .*\[training\]'"):
        build()(["train"], standalone_mode=False)


def test_a_command_that_nobody_brings_completes_nothing(install: Any) -> None:
    """A shell that asks for its arguments gets what stands for it, and no error."""
    install(plain)
    group = build()
    context = group.make_context("rlstm", [], resilient_parsing=True)

    def behind(name: str) -> click.Command:
        return group.commands[name].make_context(name, [], context, resilient_parsing=True).command

    assert (behind("train"), behind("serve")) == (plain, group.commands["serve"])


def test_every_command_is_there() -> None:
    """Each command of the table is either in this package and loads, or names an extra and an entry point."""
    installed = {point.name for point in entry_points(group=commands.COMMAND_GROUP)}
    for command in commands.COMMANDS:
        if command.target:
            command.load()
        else:
            assert command.extra in {"server", "training"}
            assert command.path in installed
