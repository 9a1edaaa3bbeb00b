"""The command line: one word, `rlstm`, and its subcommands, each loaded only when it is run.

`rlstm --help` lists the table and imports none of it. The commands of the other packages, and what scores
without a server, are found by their entry points; what they need comes with an extra of the distribution.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rlstm_client.cli.exits import EXIT_CODES, CommandError, Exit, one_line_errors

COMMAND_GROUP = "rlstm.commands"
LOCAL_GROUP = "rlstm.local"
DISTRIBUTION = "mogrifier-rlstm"
DEFAULT_MODEL = "bytes-small"
"""The shipped model that is used here, without a server, unless another one is asked for."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and where it is: in this package (``target``), or in one whose needs come with ``extra``.

    With ``parts`` it is a group of commands; the entry point of a part is ``group.part``.
    """

    name: str
    help: str
    target: str = ""
    extra: str = ""
    parts: tuple["Command", ...] = ()


STORES = (
    Command(name="install", help="Install the function library on a shared store.", extra="server"),
    Command(name="check", help="Say whether a store keeps what sessions are promised.", extra="server"),
)

COMMANDS = (
    Command(name="serve", help="Serve a model and its sessions over HTTP.", extra="server"),
    Command(name="models", help="List the models that are here.", extra="server"),
    Command(name="store", help="Prepare and check a store that servers share.", parts=STORES),
    Command(name="probe", help="Measure a service from outside, for Prometheus.", extra="server"),
    Command(name="train", help="Train a model by a recipe.", extra="training"),
    Command(name="import", help="Take in an LSTM that was trained elsewhere.", extra="training"),
    Command(name="calibrate", help="Measure what learning in service needs.", extra="training"),
    Command(name="evaluate", help="Evaluate a model on texts, static or learning.", extra="training"),
    Command(name="corpora", help="Say which published corpora are here; fetch others.", extra="training"),
    Command(name="tune", help="Search a recipe's settings.", extra="training"),
    Command(name="report", help="Compare training runs on one page.", extra="training"),
    Command(name="score", help="Say how many bits a text costs.", target="rlstm_client.cli.text:score_app"),
    Command(name="generate", help="Continue a text.", target="rlstm_client.cli.text:generate_app"),
    Command(
        name="surprisal",
        help="Say what each word of a text costs, as a table.",
        target="rlstm_client.cli.surprisal:app",
    ),
    Command(
        name="reading-times",
        help="Say how much of reading times surprisal explains.",
        target="rlstm_client.cli.reading_times:app",
        extra="reading",
    ),
    Command(name="watch", help="Find strange lines in a log.", target="rlstm_client.cli.watch:app"),
    Command(
        name="complete",
        help="Propose how a line goes on, in your style.",
        target="rlstm_client.cli.complete:app",
    ),
    Command(name="rescore", help="Rank n-best lists of a recogniser.", target="rlstm_client.cli.rescore:app"),
    Command(
        name="compress",
        help="Compress a file to as many bits as it costs a model.",
        target="rlstm_client.cli.compress:compress_app",
    ),
    Command(
        name="decompress",
        help="Give back what was compressed.",
        target="rlstm_client.cli.compress:decompress_app",
    ),
    Command(name="session", help="Keep streams and learn from them.", target="rlstm_client.cli.session:app"),
)


class PassThroughCommand(TyperCommand):
    """Takes every argument as it is, ``--help`` too: they belong to the command behind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments unread."""
        ctx.args = list(args)
        return list(args)


class CompletingGroup(TyperGroup):
    """Puts the command behind in place of a pass-through when a shell asks how its arguments could go on."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load it for that alone; one that is not installed completes nothing."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and isinstance(command, PassThroughCommand):
            with suppress(CommandError):
                command = _behind(command.context_settings["obj"])
        return name, command, rest


def add_to(app: typer.Typer) -> None:
    """Add a pass-through for each command, and a group for those that have parts."""
    for command in COMMANDS:
        if command.parts:
            app.add_typer(_group(command), name=command.name, help=command.help)
        else:
            _add(app, command)


def _group(command: Command) -> typer.Typer:
    group = typer.Typer(cls=CompletingGroup, no_args_is_help=True, rich_markup_mode=None)
    for part in command.parts:
        _add(group, part, within=f"{command.name}.")
    return group


def _add(app: typer.Typer, command: Command, within: str = "") -> None:
    def run_with(ctx: typer.Context) -> None:
        run(ctx.obj, ctx.args)

    known = {"obj": replace(command, name=within + command.name)}
    app.command(command.name, help=command.help, cls=PassThroughCommand, context_settings=known)(run_with)


def run(command: Command, arguments: Sequence[str]) -> None:
    """Load a command and hand it its arguments; it ends the process with its own exit code.

    The name of a part of a group has the group's in front: ``bench.train``.
    """
    _behind(command).main(args=list(arguments), prog_name=f"rlstm {command.name.replace('.', ' ')}")


def load(group: str, name: str, extra: str) -> Any:
    """Import the object of an entry point.

    Raises:
        CommandError: it is not there, or what it imports is not; the message names the extra to install.
    """
    point = next(iter(entry_points(group=group, name=name)), None)
    if point is None:
        raise CommandError(f"{name}: no installed package brings this; {_advice(extra)}", Exit.MISSING)
    return _loaded(point, extra)


def _loaded(point: EntryPoint, extra: str) -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        raise CommandError(f"{point.name} needs {error.name}; {_advice(extra)}", Exit.MISSING) from error
    except ValueError as error:  # a variable of OpenTelemetry's is read by an import
        raise CommandError(f"{point.name}: {error}") from error


def _advice(extra: str) -> str:
    return f"install it with: pip install '{DISTRIBUTION}[{extra}]'"


def _behind(command: Command) -> Any:
    """Load what a command runs."""
    if command.target:
        point = EntryPoint(name=command.name, value=command.target, group=COMMAND_GROUP)
        return _with_main(_loaded(point, command.extra))
    return _with_main(load(COMMAND_GROUP, command.name, command.extra))


def _with_main(target: Any) -> Any:
    """Return a command with a ``main``: a typer app, a click command, or a function as typer reads it."""
    if hasattr(target, "main"):
        return target
    app = target if isinstance(target, typer.Typer) else _app_of(target)
    return typer.main.get_command(app)


def _app_of(function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(function)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            sys.stdout.write(f"rlstm {version(DISTRIBUTION)}\n")
        except PackageNotFoundError:
            sys.stdout.write("rlstm (not installed)\n")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Language models that go on learning as they read."""


def build() -> typer.Typer:
    """Put the command line together."""
    app = typer.Typer(
        cls=CompletingGroup,
        callback=_root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich's renderer would cost a tenth of a second at each start
        epilog=EXIT_CODES,
    )
    add_to(app)
    return app


def main() -> None:
    """Run the command line and leave with its exit code."""
    with one_line_errors():
        build()()
