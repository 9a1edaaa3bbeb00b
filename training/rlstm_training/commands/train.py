"""``rlstm train``: a recipe, from its beginning or its newest checkpoint to its end."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from rlstm_client.cli import inputs
from rlstm_client.cli.output import check_free
from rlstm_model.checkpoint import load
from rlstm_training.cards import export
from rlstm_training.commands import console, given
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.config import Recipe
from rlstm_training.corpora.reading import missing_files
from rlstm_training.corpora.texts import prepare
from rlstm_training.loop import train as run_recipe
from rlstm_training.ranks import Ranks, launched_ranks, own_device
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import JsonLines, ProgressBar, Reporter, TensorBoard
from rlstm_training.run import RunDirectory, RunError


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a run has in place of its recipe's."""

    start_from: str | None = inputs.option("A checkpoint whose weights the run begins with.", "--from")
    steps: int | None = inputs.option("Optimiser steps.", type=click.IntRange(1))
    rate: float | None = inputs.option("Learning rate.", type=click.FloatRange(1e-09))
    seed: int | None = inputs.option("Seed of weights, masks and resets.", type=click.IntRange(0))

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with them; a model to start from brings its shape and its vocabulary."""
        asked = {"steps": self.steps, "learning_rate": self.rate, "seed": self.seed}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if self.start_from is not None:
            start = load(self.start_from)
            if start.vocab.kind == "pieces":
                said = f"{self.start_from}: a model of imported pieces is not trained on"
                raise click.BadParameter(said)
            changes |= {"start_from": self.start_from, "vocab": start.vocab.kind}
            changes["model"] = start.parameters.config
        return replace(recipe, **changes)


@console.command()
@given.chosen
@click.option("--run", type=inputs.FILE, help="Run directory (default: runs/RECIPE).")
@click.option("--out", type=inputs.FILE, help="Checkpoint to write (default: RUN/RECIPE).")
@inputs.given("changes", Changes)
@click.option("--half/--full", default=True, help="Write float16 or float32 weights.")
@click.option(
    "new_texts",
    "--accept-new-corpus",
    is_flag=True,
    help="Go on though a text is not as it was; the card says so.",
)
@inputs.force
@given.compute
@inputs.as_json
@click.option("listing", "--list", is_flag=True, help="Show all recipes, and train none.")
def train(
    chosen: given.Chosen,
    changes: Changes,
    compute: given.Compute,
    run: Path | None,
    out: Path | None,
    half: bool,
    new_texts: bool,
    force: bool,
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
    target = own_device(compute.prepare())
    recipe = changes.of(chosen.read())
    folder = run or Path("runs") / recipe.name
    out = out or folder / recipe.name
    out.parent.mkdir(parents=True, exist_ok=True)  # what cannot be written is told before it is trained
    with ExitStack() as stack:
        ranks = stack.enter_context(launched_ranks(target))
        ranks.share(recipe.rows)
        with ranks.first_ahead():
            texts, vocab = prepare(recipe)
            directory = stack.enter_context(_opened(folder, recipe, ranks))
        # Writing a finished run's model again would take away the calibration that it has got since.
        exported = directory.finished and out.is_dir()
        if not exported:
            check_free(out, force=force)
        with _reporters(directory, ranks, as_json) as reporters:
            run_recipe(recipe, texts, directory, *reporters, device=target, ranks=ranks, new_texts=new_texts)
        if not ranks.first:
            return
        if not exported:
            export(directory, out, vocab, dtype="F16" if half else "F32")
    if as_json:
        show_json({"run": str(folder), "model": str(out)})
    else:
        click.echo(f"model: {out}")


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
