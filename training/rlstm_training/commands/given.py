"""What options name: the device that computes, and recipes."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from rlstm_model import native
from rlstm_model.checkpoint import likely
from rlstm_training.config import Recipe, Source
from rlstm_training.corpora.texts import on_corpus
from rlstm_training.recipes import RECIPES


def prepare_device(device: str, threads: int | None) -> torch.device:
    """The device, with CPU threads set. Wrong usage when there is no such device."""
    if threads is not None:
        torch.set_num_threads(threads)
        native.set_threads(threads)
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise click.BadParameter(f"{device!r} is no device", param_hint="--device") from None
    if chosen.type not in ("cpu", "cuda"):
        raise click.BadParameter(f"{device!r} is not supported: cpu, cuda or cuda:N", param_hint="--device")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise click.BadParameter(f"{device}: this machine has no such CUDA device", param_hint="--device")
    return chosen


def recipe_named(name: str, corpus: str | None) -> Recipe:
    """A recipe, on another corpus if one is given. Wrong usage when there is no such recipe."""
    if name not in RECIPES:
        raise click.BadParameter(f"{name!r} is no recipe: name one of {likely(name, RECIPES)}")
    recipe = RECIPES[name]()
    return recipe if corpus is None else on_corpus(recipe, corpus)


def sources_of(name: str, corpus: str | None) -> Sequence[Source]:
    """What a model was trained on: a corpus, or what a recipe reads. Wrong usage when neither is known."""
    if corpus is not None:
        return (Source(corpus=corpus, rows=1),)
    if name not in RECIPES:
        raise click.BadParameter(f"{name!r} is no recipe: name a text like the model's own with --corpus")
    return RECIPES[name]().sources


def recipe_chosen(name: str | None, file: Path | None, corpus: str | None) -> Recipe:
    """The recipe named, or that in ``file``, on another corpus if one is given. Wrong usage else."""
    if (name is None) == (file is None):
        raise click.BadParameter("name a recipe (`rlstm train --list`), or a file with --recipe")
    if name is not None:
        return recipe_named(name, corpus)
    assert file is not None
    try:
        recipe = Recipe.from_json(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--recipe") from error
    return recipe if corpus is None else on_corpus(recipe, corpus)
