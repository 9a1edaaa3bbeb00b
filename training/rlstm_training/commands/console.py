"""What the commands share beside the frame that all of ``rlstm`` has: options, exit codes of errors, tables.

An error that can be foreseen is one line on standard error. It ends a command with 1 where the work itself
failed (a run that cannot go on, a model that computes no numbers), with 2 where input is wrong.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from tabulate import tabulate
from tqdm import tqdm

from rlstm_client.cli.exits import CommandError, Exit
from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.native import NativeUnavailable
from rlstm_training.corpora import CorpusError
from rlstm_training.imports import ImportRefused

model = partial(click.argument, "model", help="A checkpoint folder, or the name of a shipped model.")
corpora = click.option("--corpus", multiple=True, help="A corpus by name, or a folder.")
streams = click.option("--stream", multiple=True, help="A stream, read in one session.")


class Command(click.Command):
    """A command that ends with one line and an exit code at every error that can be foreseen."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.filename is None:
                raise
            raise CommandError(f"{error.filename}: {error.strerror}") from error
        except Exception as error:
            code = _exit_code(error)
            if code is None:
                raise
            raise CommandError(str(error), code) from error


command = partial(click.command, cls=Command)


def _exit_code(error: Exception) -> Exit | None:
    """That of an error which can be foreseen; None for any other."""
    from rlstm_training.ranks import RankError  # they import torch, which not every command needs
    from rlstm_training.run import RunError

    unwritable = isinstance(error, RunError) and isinstance(error.__cause__, OSError)
    if unwritable or isinstance(error, CorpusError | CheckpointError | CalibrationError | ImportRefused):
        return Exit.USAGE
    if isinstance(error, RunError | RankError | NonFiniteState):
        return Exit.REFUSED
    return Exit.MISSING if isinstance(error, NativeUnavailable) else None


@contextmanager
def progress_bar(label: str, tokens: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, on terminals only; yields what to call with the number of tokens done."""
    with tqdm(total=tokens, desc=label, unit=" tokens", disable=None) as bar:
        yield bar.update


def warn(message: str) -> None:
    """One line on standard error about something that is no error."""
    click.echo(f"rlstm: warning: {message}", err=True)


def show_json(data: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(data))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: columns of figures, and of text, which begins with a letter."""
    columns = zip(*rows, strict=True)
    sides = ["left" if any(cell[:1].isalpha() for cell in column) else "right" for column in columns]
    click.echo(tabulate(rows, headers, tablefmt="plain", colalign=sides, disable_numparse=True))
