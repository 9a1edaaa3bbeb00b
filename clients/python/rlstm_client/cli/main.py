"""The command line: one word, `rlstm`, and its subcommands.

Each is loaded when it is run (`commands.py`): asking for help waits for nothing.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from rlstm_client.cli import commands
from rlstm_client.cli.exits import EXIT_CODES, one_line_errors


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            sys.stdout.write(f"rlstm {version(commands.DISTRIBUTION)}\n")
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
        cls=commands.CompletingGroup,
        callback=_root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich's renderer would cost a tenth of a second at each start
        epilog=EXIT_CODES,
    )
    commands.add_to(app)
    return app


def main() -> None:
    """Run the command line and leave with its exit code."""
    with one_line_errors():
        build()()
