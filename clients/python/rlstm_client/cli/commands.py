"""The command line: one word, `rlstm`, and its subcommands, each loaded only when it is run.

`rlstm --help` lists the table and imports none of it. The commands of the other packages, and what scores
without a server, are found by their entry points; what they need comes with an extra of the distribution.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click

from rlstm_client.cli.exits import EXIT_CODES, CommandError, Exit, one_line_errors

COMMAND_GROUP = "rlstm.commands"
LOCAL_GROUP = "rlstm.local"
DISTRIBUTION = "mogrifier-rlstm"
DEFAULT_MODEL = "bytes-small"
"""The shipped model that is used here, without a server, unless another one is asked for."""


class Later(click.Command):
    """A command that is loaded when it is run: of this package (``target``), or brought by an ``extra``.

    A path with a dot is that of a part of a group; the entry point of a command from elsewhere has its path.
    """

    def __init__(self, path: str, about: str, extra: str = "", target: str = "") -> None:
        super().__init__(path.rpartition(".")[2], help=about)
        self.path = path
        self.extra = extra
        self.target = target

    def load(self) -> click.Command:
        """Import the command. Raises as the function `load`."""
        if self.target:
            point = EntryPoint(self.path, f"{__package__}.{self.target}", COMMAND_GROUP)
            command: click.Command = _loaded(point, self.extra)
        else:
            command = load(COMMAND_GROUP, self.path, self.extra)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Give the command its arguments; where a shell completes, one that is not installed takes none."""
        try:
            command = self.load()
        except CommandError:
            if not extra.get("resilient_parsing"):
                raise
            return super().make_context(info_name, args, parent, **extra)
        return command.make_context(info_name, args, parent, **extra)


GROUPS: Final = {"store": "Prepare and check a store that servers share."}

COMMANDS: Final = (
    Later("serve", "Serve a model and its sessions over HTTP.", "server"),
    Later("models", "List the models that are here.", "server"),
    Later("store.install", "Install the function library on a shared store.", "server"),
    Later("store.check", "Say whether a store keeps what sessions are promised.", "server"),
    Later("probe", "Measure a service from outside, for Prometheus.", "server"),
    Later("train", "Train a model by a recipe.", "training"),
    Later("import", "Take in an LSTM that was trained elsewhere.", "training"),
    Later("calibrate", "Measure what learning in service needs.", "training"),
    Later("evaluate", "Evaluate a model on texts, static or learning.", "training"),
    Later("corpora", "Say which published corpora are here; fetch others.", "training"),
    Later("tune", "Search a recipe's settings.", "training"),
    Later("report", "Compare training runs on one page.", "training"),
    Later("score", "Say how many bits a text costs.", target="text:score"),
    Later("generate", "Continue a text.", target="text:generate"),
    Later("surprisal", "Say what each word of a text costs, as a table.", target="surprisal:surprisal"),
    Later(
        "reading-times",
        "Say how much of reading times surprisal explains.",
        "reading",
        "reading_times:reading_times",
    ),
    Later("watch", "Find strange lines in a log.", target="watch:watch"),
    Later("complete", "Propose how a line goes on, in your style.", target="complete:complete"),
    Later("rescore", "Rank n-best lists of a recogniser.", target="rescore:rescore"),
    Later(
        "compress", "Compress a file to as many bits as it costs a model.", "compress", "compress:compress"
    ),
    Later("decompress", "Give back what was compressed.", "compress", "compress:decompress"),
    Later("session", "Keep streams and learn from them.", target="session:app"),
)


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


class Group(click.Group):
    """Commands in the order in which they were added; an interrupt ends them without a word of click's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)


def build() -> Group:
    """Put the command line together."""
    root = Group(
        help="Language models that go on learning as they read.",
        epilog=EXIT_CODES,
        context_settings={"show_default": True},
    )
    told = {"message": "rlstm %(version)s", "help": "Show the version."}
    click.version_option(package_name=DISTRIBUTION, **told)(root)
    groups = {"": root}
    for command in COMMANDS:
        group = command.path.rpartition(".")[0]
        if group not in groups:
            groups[group] = Group(group, help=GROUPS[group])
            root.add_command(groups[group])
        groups[group].add_command(command)
    return root


def main() -> None:
    """Run the command line and leave with its exit code."""
    with one_line_errors():
        build()(prog_name="rlstm")
