"""What options name: the device that computes, and recipes."""

import ctypes
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import torch

from rlstm_client.cli import inputs
from rlstm_model import native
from rlstm_model.checkpoint import likely
from rlstm_training.config import Recipe, Source
from rlstm_training.corpora.texts import on_corpus
from rlstm_training.recipes import RECIPES

# Of mallopt(3): how many blocks may be mapped on their own, and from when on free memory is given back.
_MMAP_MAX: Final = -4
_TRIM_THRESHOLD: Final = -1


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What computes."""

    threads: int | None = inputs.option("CPU threads (default: torch's own choice).", type=click.IntRange(1))
    device: str = inputs.option("cpu, cuda or cuda:N.", default="cpu")

    def prepare(self) -> torch.device:
        """Set CPU threads and keep freed memory; the device. Wrong usage when there is no such device."""
        _keep_freed_memory()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
            native.set_threads(self.threads)
        try:
            chosen = torch.device(self.device)
        except RuntimeError:
            raise _no_device(f"{self.device!r} is no device") from None
        if chosen.type not in ("cpu", "cuda"):
            raise _no_device(f"{self.device!r} is not supported: cpu, cuda or cuda:N")
        if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
            raise _no_device(f"{self.device}: this machine has no such CUDA device")
        return chosen


def _keep_freed_memory() -> None:
    """Keep what is freed for what comes next, which is as large: a step's buffers are those of the last step.

    Large ones are mapped anew else, and each of their pages is cleared and faulted in once more: a sixth of a
    training step. Only glibc is told.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def _no_device(said: str) -> click.BadParameter:
    return click.BadParameter(said, param_hint="--device")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A recipe, by its name or in a file, and what it reads instead."""

    recipe: str | None = inputs.argument(f"One of {', '.join(RECIPES)}.")
    file: Path | None = inputs.option(
        "A recipe in JSON, a run's or a search's best, in place of RECIPE.", "--recipe"
    )
    corpus: str | None = inputs.option(
        "Instead of the recipe's: a corpus, a folder with train.txt and valid.txt, or a file."
    )

    def read(self) -> Recipe:
        """The recipe. Wrong usage when there is none such, or two."""
        if (self.recipe is None) == (self.file is None):
            raise click.BadParameter("name a recipe (`rlstm train --list`), or a file with --recipe")
        recipe = recipe_named(self.recipe or "") if self.file is None else _recipe_in(self.file)
        return recipe if self.corpus is None else on_corpus(recipe, self.corpus)


compute, chosen = inputs.given("compute", Compute), inputs.given("chosen", Chosen)


def recipe_named(name: str) -> Recipe:
    """A recipe. Wrong usage when there is none of this name."""
    if name not in RECIPES:
        raise click.BadParameter(f"{name!r} is no recipe: name one of {likely(name, RECIPES)}")
    return RECIPES[name]()


def _recipe_in(file: Path) -> Recipe:
    try:
        return Recipe.from_json(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--recipe") from error


def sources_of(name: str, corpus: str | None) -> Sequence[Source]:
    """What a model was trained on: a corpus, or what a recipe reads. Wrong usage when neither is known."""
    if corpus is not None:
        return (Source(corpus=corpus, rows=1),)
    if name not in RECIPES:
        raise click.BadParameter(f"{name!r} is no recipe: name a text like the model's own with --corpus")
    return RECIPES[name]().sources
