"""What the commands share: options, clear errors with exit codes, progress, tables.

Exit codes, as all of ``rlstm`` has them: 0 done; 1 the work itself failed (a run that cannot go on, a model
that computes no numbers); 2 wrong usage or input; 4 not installed; 130 interrupted. Errors are one line on
standard error.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from tabulate import tabulate
from tqdm import tqdm

from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.adaptation.state import EXPERT_RATES, NonFiniteState
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.native import NativeUnavailable
from rlstm_training.corpora import CorpusError
from rlstm_training.imports import ImportRefused

FAILED, WRONG_INPUT, MISSING, INTERRUPTED = 1, 2, 4, 130
FILE = click.Path(path_type=Path)

model = partial(click.argument, "model", help="A checkpoint folder, or the name of a shipped model.")
device = partial(click.option, "--device", default="cpu", help="cpu, cuda or cuda:N.")
threads = partial(
    click.option, "--threads", type=click.IntRange(1), help="CPU threads (default: torch's own choice)."
)
experts = partial(
    click.option,
    "--experts",
    type=click.Choice(EXPERT_RATES),
    help="How many experts are mixed: 1, 2 or 4.",
)
heads = partial(click.option, "--heads", type=click.IntRange(1), help="Read heads of the statistics.")
head_segments = partial(
    click.option, "--segments", type=click.IntRange(1), help="Segments that each of them reads."
)
own_corpus = click.option(
    "--corpus",
    help="Instead of the recipe's: a corpus, a folder with train.txt and valid.txt, or a file.",
)
recipe_file = click.option(
    "file",
    "--recipe",
    type=FILE,
    help="A recipe in JSON, a run's or a search's best, in place of RECIPE.",
)
recipe_name = click.option("--recipe", help="It was trained by this (default: the model's name).")
corpora = click.option("--corpus", multiple=True, help="A corpus by name, or a folder.")
streams = click.option("--stream", multiple=True, help="A stream, read in one session.")
rates = click.option("--rate", multiple=True, type=click.FloatRange(0), help="A rate to try.")
decays = click.option("--decay", multiple=True, type=click.FloatRange(0), help="A decay to try.")
epsilons = click.option(
    "--epsilon", multiple=True, type=click.FloatRange(1e-9), help="To try; in multiples of the mean RMS."
)
segment_lengths = click.option(
    "--segment", multiple=True, type=click.IntRange(1), help="Tokens of a segment, to try."
)
as_json = click.option("as_json", "--json", is_flag=True, help="Print JSON on standard output.")


class Command(click.Command):
    """A command that ends with one line and an exit code at every error that can be foreseen."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            leave("interrupted", INTERRUPTED, error)
        except Exception as error:
            code = _exit_code(error)
            if code is None:
                raise
            leave(str(error), code, error)


command = partial(click.command, cls=Command)


def _exit_code(error: Exception) -> int | None:
    """That of an error which can be foreseen; None for any other."""
    from rlstm_training.ranks import RankError  # they import torch, which no help text needs
    from rlstm_training.run import RunError

    unwritable = isinstance(error, RunError) and isinstance(error.__cause__, OSError)
    if unwritable or isinstance(error, CorpusError | CheckpointError | CalibrationError | ImportRefused):
        return WRONG_INPUT
    if isinstance(error, RunError | RankError | NonFiniteState):
        return FAILED
    return MISSING if isinstance(error, NativeUnavailable) else None


def leave(message: str, code: int, error: BaseException) -> NoReturn:
    """End with a line on standard error, and an exit code."""
    click.echo(f"rlstm: {message}", err=True)
    raise click.exceptions.Exit(code) from error


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
