"""What the commands share: options, clear errors with exit codes, progress, tables.

Exit codes, as all of ``rlstm`` has them: 0 done; 1 the work itself failed (a run that cannot go on, a model
that computes no numbers); 2 wrong usage or input; 4 not installed; 130 interrupted. Errors are one line on
standard error.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.adaptation.state import ExpertConfig, NonFiniteState
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.native import NativeUnavailable
from rlstm_training.corpora import CorpusError
from rlstm_training.imports import ImportRefused

P = ParamSpec("P")

FAILED, WRONG_INPUT, MISSING, INTERRUPTED = 1, 2, 4, 130


def _experts(count: int) -> int:
    try:
        ExpertConfig(experts=count)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return count


class SplitName(StrEnum):
    """A split, as the command line names it: typer takes no list of literals."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"


Model = Annotated[str, typer.Argument(help="A checkpoint folder, or the name of a shipped model.")]
OwnCorpus = Annotated[
    str | None,
    typer.Option(help="Instead of the recipe's: a corpus, a folder with train.txt and valid.txt, or a file."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's own choice).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="A recipe in JSON, a run's or a search's best, in place of RECIPE."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="It was trained by this (default: the model's name).")
]
Rates = Annotated[list[float] | None, typer.Option("--rate", min=0, help="A rate to try.")]
Decays = Annotated[list[float] | None, typer.Option("--decay", min=0, help="A decay to try.")]
Epsilons = Annotated[
    list[float] | None, typer.Option("--epsilon", min=1e-9, help="To try; in multiples of the mean RMS.")
]
Segments = Annotated[list[int] | None, typer.Option("--segment", min=1, help="Tokens of a segment, to try.")]
Experts = Annotated[
    int, typer.Option("--experts", callback=_experts, help="How many experts are mixed: 1, 2 or 4.")
]
Heads = Annotated[int, typer.Option("--heads", min=1, help="Read heads of the statistics.")]
HeadSegments = Annotated[int, typer.Option("--segments", min=1, help="Segments that each of them reads.")]


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with one line and an exit code at every error that can be foreseen."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt as error:
            _leave("interrupted", INTERRUPTED, error)
        except Exception as error:
            code = _exit_code(error)
            if code is None:
                raise
            _leave(str(error), code, error)

    return wrapped


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


def _leave(message: str, code: int, error: BaseException) -> None:
    typer.echo(f"rlstm: {message}", err=True)
    raise typer.Exit(code) from error


@contextmanager
def progress_bar(label: str, tokens: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, on terminals only; yields what to call with the number of tokens done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=tokens)
        yield lambda done: progress.advance(task, done)


def warn(message: str) -> None:
    """One line on standard error about something that is no error."""
    typer.echo(f"rlstm: warning: {message}", err=True)


def show_json(data: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(data))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: columns of figures, and of text, which begins with a letter."""
    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        text = any(row[index][:1].isalpha() for row in rows)
        table.add_column(header, justify="left" if text else "right", overflow="fold", no_wrap=bool(index))
    for row in rows:
        table.add_row(*row)
    # What reads a pipe is not helped by lines folded to some width.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
