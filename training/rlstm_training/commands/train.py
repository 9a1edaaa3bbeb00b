"""``rlstm train``: a recipe, from its beginning or its newest checkpoint to its end."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from rlstm_training.commands.console import (
    AsJson,
    Device,
    OwnCorpus,
    Threads,
    command,
    prepare_device,
    recipe_named,
    show_json,
)
from rlstm_training.config import Recipe
from rlstm_training.export import export
from rlstm_training.loop import train as run_recipe
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import JsonLines, ProgressBar, Reporter, Several
from rlstm_training.run import RunDirectory
from rlstm_training.tensorboard import TensorBoard
from rlstm_training.texts import prepare


@command
def train(
    recipe: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}.")],
    run: Annotated[Path | None, typer.Option(help="Run directory (default: runs/RECIPE).")] = None,
    out: Annotated[Path | None, typer.Option(help="Checkpoint to write (default: RUN/RECIPE).")] = None,
    corpus: OwnCorpus = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights, masks and resets.")] = None,
    half: Annotated[bool, typer.Option("--half/--full", help="Write float16 or float32 weights.")] = True,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe. The same command goes on after an interruption.

    A checkpoint to use, with its model card, is written at the end.
    """
    target = prepare_device(device, threads)
    chosen = _changed(recipe_named(recipe, corpus), steps, seed)
    texts, vocab = prepare(chosen)
    folder = run or Path("runs") / recipe
    out = out or folder / recipe
    with RunDirectory.open(folder, chosen) as directory:
        finished = directory.finished
        with _reporter(directory, as_json) as reporter:
            run_recipe(chosen, texts, directory, reporter, device=target)
        # Writing a finished run's model again would take away the calibration that it has got since.
        if not (finished and out.is_dir()):
            export(directory, out, vocab, dtype=torch.float16 if half else torch.float32)
    if as_json:
        show_json({"run": str(folder), "model": str(out)})
    else:
        typer.echo(f"model: {out}")


def _changed(recipe: Recipe, steps: int | None, seed: int | None) -> Recipe:
    recipe = recipe if steps is None else replace(recipe, steps=steps)
    return recipe if seed is None else replace(recipe, seed=seed)


@contextmanager
def _reporter(run: RunDirectory, as_json: bool) -> Iterator[Reporter]:
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(Console(stderr=True), run.recipe().name))
        board = stack.enter_context(TensorBoard(run.tensorboard))
        yield Several([bar, board, *([JsonLines(sys.stdout)] if as_json else [])])
