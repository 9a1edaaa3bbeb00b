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
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rlstm_model import native
from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.checkpoint import CheckpointError
from rlstm_training.config import Recipe
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.texts import on_corpus
from rlstm_training.ranks import RankError
from rlstm_training.recipes import RECIPES
from rlstm_training.run import RunError

P = ParamSpec("P")

FAILED, WRONG_INPUT, MISSING, INTERRUPTED = 1, 2, 4, 130

Model = Annotated[str, typer.Argument(help="A checkpoint folder, or the name of a shipped model.")]
OwnCorpus = Annotated[
    str | None, typer.Option(help="Instead of the recipe's: a corpus, or a folder with train.txt, valid.txt.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's own choice).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="A recipe in JSON, a run's or a search's best, in place of RECIPE."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with one line and an exit code at every error that can be foreseen."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except (CorpusError, CheckpointError, CalibrationError) as error:
            _leave(str(error), WRONG_INPUT, error)
        except (RunError, RankError, NonFiniteState) as error:
            _leave(str(error), FAILED, error)
        except native.NativeUnavailable as error:
            _leave(str(error), MISSING, error)
        except KeyboardInterrupt as error:
            _leave("interrupted", INTERRUPTED, error)

    return wrapped


def _leave(message: str, code: int, error: BaseException) -> None:
    typer.echo(f"rlstm: {message}", err=True)
    raise typer.Exit(code) from error


def prepare_device(device: str, threads: int | None) -> torch.device:
    """The device, with CPU threads set. Wrong usage when there is no such device."""
    if threads is not None:
        torch.set_num_threads(threads)
        native.set_threads(threads)
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise typer.BadParameter(f"{device!r} is no device", param_hint="--device") from None
    if chosen.type not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is not supported: cpu, cuda or cuda:N", param_hint="--device")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise typer.BadParameter(f"{device}: this machine has no such CUDA device", param_hint="--device")
    return chosen


def recipe_named(name: str, corpus: str | None) -> Recipe:
    """A recipe, on another corpus if one is given. Wrong usage when there is no such recipe."""
    if name not in RECIPES:
        raise typer.BadParameter(f"{name!r} is no recipe: name one of {', '.join(RECIPES)}")
    recipe = RECIPES[name]()
    return recipe if corpus is None else on_corpus(recipe, corpus)


def recipe_chosen(name: str | None, file: Path | None, corpus: str | None) -> Recipe:
    """The recipe named, or that in ``file``, on another corpus if one is given. Wrong usage else."""
    if (name is None) == (file is None):
        raise typer.BadParameter(f"name one of {', '.join(RECIPES)}, or a file with --recipe")
    if name is not None:
        return recipe_named(name, corpus)
    assert file is not None
    try:
        recipe = Recipe.from_json(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--recipe") from error
    return recipe if corpus is None else on_corpus(recipe, corpus)


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
    """A table on standard output: the first column is text, the others are figures."""
    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left", overflow="fold", no_wrap=bool(index))
    for row in rows:
        table.add_row(*row)
    # What reads a pipe is not helped by lines folded to some width.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
