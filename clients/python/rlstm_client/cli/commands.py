"""The command line: one word, `rlstm`, and its subcommands, each loaded only when it is run.

`rlstm --help` lists the table and imports none of it. The commands of the other packages, and what scores
without a server, are found by their entry points; what they need comes with an extra of the distribution.
"""

import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from rlstm_client.cli.exits import EXIT_CODES, CommandError, Exit, one_line_errors

COMMAND_GROUP = "rlstm.commands"
LOCAL_GROUP = "rlstm.local"
DISTRIBUTION = "mogrifier-rlstm"
DEFAULT_MODEL = "bytes-small"
"""The shipped model that is used here, without a server, unless another one is asked for."""


class Command(NamedTuple):
    """A command: a part of this package (``target``), or of one whose needs come with ``extra``.

    A dotted name is that of a part of a group; the entry point of a command behind has its name.
    """

    name: str
    help: str
    extra: str = ""
    target: str = ""


GROUPS: Final = {"store": "Prepare and check a store that servers share."}

COMMANDS: Final = (
    Command("serve", "Serve a model and its sessions over HTTP.", "server"),
    Command("models", "List the models that are here.", "server"),
    Command("store.install", "Install the function library on a shared store.", "server"),
    Command("store.check", "Say whether a store keeps what sessions are promised.", "server"),
    Command("probe", "Measure a service from outside, for Prometheus.", "server"),
    Command("train", "Train a model by a recipe.", "training"),
    Command("import", "Take in an LSTM that was trained elsewhere.", "training"),
    Command("calibrate", "Measure what learning in service needs.", "training"),
    Command("evaluate", "Evaluate a model on texts, static or learning.", "training"),
    Command("corpora", "Say which published corpora are here; fetch others.", "training"),
    Command("tune", "Search a recipe's settings.", "training"),
    Command("report", "Compare training runs on one page.", "training"),
    Command("score", "Say how many bits a text costs.", target="text:score"),
    Command("generate", "Continue a text.", target="text:generate"),
    Command("surprisal", "Say what each word of a text costs, as a table.", target="surprisal:surprisal"),
    Command(
        "reading-times",
        "Say how much of reading times surprisal explains.",
        "reading",
        "reading_times:reading_times",
    ),
    Command("watch", "Find strange lines in a log.", target="watch:watch"),
    Command("complete", "Propose how a line goes on, in your style.", target="complete:complete"),
    Command("rescore", "Rank n-best lists of a recogniser.", target="rescore:rescore"),
    Command("compress", "Compress a file to as many bits as it costs a model.", target="compress:compress"),
    Command("decompress", "Give back what was compressed.", target="compress:decompress"),
    Command("session", "Keep streams and learn from them.", target="session:app"),
)


class LazyGroup(TyperGroup):
    """Loads a command when it is asked for, in place of what stands for it in the list."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load it; where a shell completes, one that is not installed completes nothing."""
        name, command, rest = super().resolve_command(ctx, args)
        known = command.context_settings.get("obj") if command is not None else None
        if isinstance(known, Command):
            try:
                command = _behind(known)
            except CommandError:
                if not ctx.resilient_parsing:
                    raise
        return name, command, rest


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
    """Load what a command runs: a typer app, or a function as typer reads it."""
    if command.target:
        point = EntryPoint(command.name, f"{__package__}.{command.target}", COMMAND_GROUP)
        target = _loaded(point, command.extra)
    else:
        target = load(COMMAND_GROUP, command.name, command.extra)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(target)
        target = app
    return typer.main.get_command(target)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"rlstm {version(DISTRIBUTION)}\n")
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
        cls=LazyGroup,
        callback=_root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich's renderer would cost a tenth of a second at each start
        epilog=EXIT_CODES,
    )
    groups = {"": app}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(".")
        if group not in groups:
            groups[group] = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None)
            app.add_typer(groups[group], name=group, help=GROUPS[group])
        known: dict[str, Any] = {"help": command.help, "context_settings": {"obj": command}}
        groups[group].command(name, **known)(lambda: None)
    return app


def main() -> None:
    """Run the command line and leave with its exit code."""
    with one_line_errors():
        build()(prog_name="rlstm")
