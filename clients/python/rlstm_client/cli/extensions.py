"""Commands and local models of the other packages, found by their entry points and loaded only when run.

`rlstm --help` lists the commands of the table below without importing them. A package of ours may be there
while what it needs is not: the extras of the distribution decide that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand

from rlstm_client.cli.exits import CommandError, Exit

COMMAND_GROUP = "rlstm.commands"
LOCAL_GROUP = "rlstm.local"
DISTRIBUTION = "mogrifier-rlstm"

LocalAct = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A command of another package: what it does, and the extra that brings what it needs."""

    name: str
    help: str
    extra: str


EXTENSIONS = (
    Extension(name="serve", help="Serve a model and its sessions over HTTP.", extra="server"),
    Extension(name="train", help="Train a model by a recipe.", extra="training"),
    Extension(name="calibrate", help="Measure what learning in service needs.", extra="training"),
    Extension(name="evaluate", help="Evaluate a model on texts, static or learning.", extra="training"),
    Extension(name="bench", help="Measure speed and gain.", extra="server"),
)


class PassThroughCommand(TyperCommand):
    """Takes every argument as it is, ``--help`` too: they belong to the command behind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments unread."""
        ctx.args = list(args)
        return list(args)


def add_to(app: typer.Typer) -> None:
    """Add a pass-through command for each extension."""
    for extension in EXTENSIONS:
        app.command(extension.name, help=extension.help, cls=PassThroughCommand)(_runner(extension))


def _runner(extension: Extension) -> Callable[[typer.Context], None]:
    def run(ctx: typer.Context) -> None:
        run_extension(extension, ctx.args)

    return run


def run_extension(extension: Extension, arguments: Sequence[str]) -> None:
    """Load the command and hand it its arguments; it ends the process with its own exit code."""
    target = load(COMMAND_GROUP, extension.name, extension.extra)
    _command(target).main(args=list(arguments), prog_name=f"rlstm {extension.name}")


def local_act(name: str) -> LocalAct:
    """Return what scores or generates without a server.

    The entry point ``name`` of the group ``rlstm.local`` takes the model's name or path and the body of the
    route of the same name, and returns the body of the route's answer.
    """
    target: LocalAct = load(LOCAL_GROUP, name, "server")
    return target


def load(group: str, name: str, extra: str) -> Any:
    """Import the object of an entry point.

    Raises:
        CommandError: it is not there, or what it imports is not; the message names the extra to install.
    """
    point = next(iter(entry_points(group=group, name=name)), None)
    if point is None:
        raise CommandError(f"{name}: no installed package brings this; {_advice(extra)}", Exit.MISSING)
    return _imported(point, extra)


def _imported(point: EntryPoint, extra: str) -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        raise CommandError(f"{point.name} needs {error.name}; {_advice(extra)}", Exit.MISSING) from error


def _advice(extra: str) -> str:
    return f"install it with: pip install '{DISTRIBUTION}[{extra}]'"


def _command(target: Any) -> Any:
    """Return a command with a ``main``: a typer app, a click command, or a function as typer reads it."""
    if hasattr(target, "main"):
        return target
    app = target if isinstance(target, typer.Typer) else _app_of(target)
    return typer.main.get_command(app)


def _app_of(function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(function)
    return app
