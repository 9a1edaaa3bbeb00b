"""``rlstm train``: a recipe, from its beginning or its newest checkpoint to its end."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rlstm_model.checkpoint import load
from rlstm_training.cards import export
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.commands.given import prepare_device, recipe_chosen
from rlstm_training.config import Recipe
from rlstm_training.corpora.reading import missing_files
from rlstm_training.corpora.texts import prepare
from rlstm_training.loop import train as run_recipe
from rlstm_training.ranks import Ranks, launched_ranks, own_device
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import JsonLines, ProgressBar, Reporter, TensorBoard
from rlstm_training.run import RunDirectory, RunError


@console.command()
@click.argument("recipe", required=False, help=f"One of {', '.join(RECIPES)}.")
@console.recipe_file
@click.option("--run", type=console.FILE, help="Run directory (default: runs/RECIPE).")
@click.option("--out", type=console.FILE, help="Checkpoint to write (default: RUN/RECIPE).")
@console.own_corpus
@click.option("start_from", "--from", help="A checkpoint whose weights the run begins with.")
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps.")
@click.option("--rate", type=click.FloatRange(1e-09), help="Learning rate.")
@click.option("--seed", type=click.IntRange(0), help="Seed of weights, masks and resets.")
@click.option("--half/--full", default=True, help="Write float16 or float32 weights.")
@click.option(
    "new_texts",
    "--accept-new-corpus",
    is_flag=True,
    help="Go on though a text is not as it was; the card says so.",
)
@console.threads()
@console.device()
@console.as_json
@click.option("listing", "--list", is_flag=True, help="Show all recipes, and train none.")
def train(
    recipe: str | None,
    file: Path | None,
    run: Path | None,
    out: Path | None,
    corpus: str | None,
    start_from: str | None,
    steps: int | None,
    rate: float | None,
    seed: int | None,
    half: bool,
    new_texts: bool,
    threads: int | None,
    device: str,
    as_json: bool,
    listing: bool,
) -> None:
    """Train a model by a recipe. The same command goes on after an interruption.

    A checkpoint to use, with its model card, is written at the end. N processes, each with a share of the
    batch's rows: torchrun --no-python --nproc-per-node N -- rlstm train ... (any N goes on).
    """
    if listing:
        show_recipes(as_json=as_json)
        return
    target = own_device(prepare_device(device, threads))
    chosen = recipe_chosen(recipe, file, corpus)
    chosen = _changed(chosen, start_from, steps=steps, learning_rate=rate, seed=seed)
    folder = run or Path("runs") / chosen.name
    out = out or folder / chosen.name
    out.parent.mkdir(parents=True, exist_ok=True)  # what cannot be written is told before it is trained
    with ExitStack() as stack:
        ranks = stack.enter_context(launched_ranks(target))
        ranks.share(chosen.rows)
        with ranks.first_ahead():
            texts, vocab = prepare(chosen)
            directory = stack.enter_context(_opened(folder, chosen, ranks))
        finished = directory.finished
        with _reporters(directory, ranks, as_json) as reporters:
            run_recipe(chosen, texts, directory, *reporters, device=target, ranks=ranks, new_texts=new_texts)
        if not ranks.first:
            return
        # Writing a finished run's model again would take away the calibration that it has got since.
        if not (finished and out.is_dir()):
            export(directory, out, vocab, dtype="F16" if half else "F32")
    if as_json:
        show_json({"run": str(folder), "model": str(out)})
    else:
        click.echo(f"model: {out}")


def _changed(recipe: Recipe, start_from: str | None, **changes: int | float | None) -> Recipe:
    """The recipe with what was asked for; a model to start from brings its shape and its vocabulary."""
    asked: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    recipe = replace(recipe, **asked)
    if start_from is None:
        return recipe
    start = load(start_from)
    kind = start.vocab.kind
    if kind == "pieces":
        raise click.BadParameter(f"{start_from}: a model of imported pieces is not trained on")
    return replace(recipe, start_from=start_from, model=start.parameters.config, vocab=kind)


def _opened(folder: Path, recipe: Recipe, ranks: Ranks) -> RunDirectory:
    """The run's folder: rank 0's to write in, the others' to look at."""
    if ranks.first:
        return RunDirectory.open(folder, recipe)
    directory = RunDirectory(folder)
    if directory.recipe() != recipe:
        raise RunError(f"{folder} is the run of another recipe than that of process {ranks.rank}")
    return directory


@contextmanager
def _reporters(run: RunDirectory, ranks: Ranks, as_json: bool) -> Iterator[list[Reporter]]:
    if not ranks.first:
        yield []
        return
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(run.recipe().name))
        board = stack.enter_context(TensorBoard(run.tensorboard))
        yield [bar, board, *([JsonLines(sys.stdout)] if as_json else [])]


def show_recipes(*, as_json: bool) -> None:
    """All recipes in one table, each with what it reads, and whether that is here. Raises CorpusError."""
    recipes = [RECIPES[name]() for name in RECIPES]
    here = {name: not missing_files(name) for recipe in recipes for name in recipe.corpora}
    if as_json:
        show_json({"recipes": [_row(recipe, here) for recipe in recipes]})
        return
    headers = ("recipe", "weights", "vocabulary", "layers", "rows x tokens x samples", "steps", "corpora")
    rows = [
        (
            recipe.name,
            f"{recipe.model.num_parameters:,}",
            f"{recipe.model.vocab_size:,} {recipe.vocab}",
            f"{recipe.model.num_layers} {recipe.model.cell} of {recipe.model.hidden_size}",
            f"{recipe.rows} x {recipe.window} x {recipe.dropout_samples}",
            f"{recipe.steps:,}",
            ", ".join(name + ("" if here[name] else " (not here)") for name in recipe.corpora),
        )
        for recipe in recipes
    ]
    show_table(headers, rows)


def _row(recipe: Recipe, here: Mapping[str, bool]) -> dict[str, Any]:
    model = recipe.model
    return {
        "recipe": recipe.name,
        "weights": model.num_parameters,
        "vocabulary": {"kind": recipe.vocab, "size": model.vocab_size},
        "cell": model.cell,
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        **{name: getattr(recipe, name) for name in ("rows", "window", "dropout_samples", "steps")},
        "corpora": {name: here[name] for name in recipe.corpora},
    }
