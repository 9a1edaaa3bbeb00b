"""``rlstm tune``: search a recipe's settings over the paper's ranges."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
import typer
from rich.console import Console

from rlstm_training.commands.console import (
    AsJson,
    Device,
    OwnCorpus,
    RecipeFile,
    Threads,
    command,
    prepare_device,
    recipe_chosen,
    show_json,
    show_table,
)
from rlstm_training.config import Recipe
from rlstm_training.corpora.texts import prepare
from rlstm_training.recipes import RECIPES
from rlstm_training.report.curves import measure_of
from rlstm_training.reporting import ProgressBar, Reporter
from rlstm_training.tuning.search import for_search, run_search
from rlstm_training.tuning.space import RangesName, Search, ranges_for
from rlstm_training.tuning.study import Draw, Result, Study

DRAWS, SHOWN = 60, 10


@command
def tune(
    recipe: Annotated[str | None, typer.Argument(help=f"One of {', '.join(RECIPES)}.")] = None,
    file: RecipeFile = None,
    study: Annotated[
        Path | None, typer.Option(help="Study, NAME.db (default: runs/tune-RECIPE.db); runs lie in NAME/.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help=f"Draws in all (default: {DRAWS}).")] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="So many independent draws in all, as the paper's 60.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of a draw.")] = None,
    ranges: Annotated[
        Literal["words", "enwik8"] | None,
        typer.Option(help="The paper's ranges (default: enwik8 for bytes and text8, else words)."),
    ] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Weights (default: the recipe's).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", help="Cut off draws behind the median.")
    ] = True,
    corpus: OwnCorpus = None,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Search learning rate, L2, dropout, mogrifier and T_max over the paper's ranges.

    The same command goes on after an interruption. Several processes may work on one study. Draws that are
    behind are cut off; the best recipe is kept: train it with rlstm train --recipe.
    """
    if trials is not None and random is not None:
        raise typer.BadParameter("give either --trials or --random", param_hint="--random")
    target = prepare_device(device, threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    base = for_search(recipe_chosen(recipe, file, corpus), steps)
    search = _search(base, ranges or ranges_for(base), budget, random=random is not None, seed=seed)
    texts, _ = prepare(base)
    draws = random or trials or DRAWS
    with Study.open(study or Path("runs") / f"tune-{base.name}.db", search) as opened:
        run_search(opened, texts, _progress_bar, draws=draws, prune=prune, device=target)
        if as_json:
            show_json(_report(opened))
        else:
            _show(opened)


def _search(base: Recipe, ranges: RangesName, budget: int | None, *, random: bool, seed: int) -> Search:
    try:
        return Search(
            recipe=base,
            ranges=ranges,
            budget=budget or base.model.num_parameters,
            strategy="random" if random else "tpe",
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--budget") from error


@contextmanager
def _progress_bar(draw: Draw) -> Iterator[Reporter]:
    with ProgressBar(Console(stderr=True), draw.recipe.name) as bar:
        yield bar


def _report(study: Study) -> dict[str, Any]:
    results = study.results()
    finished = results and results[0].outcome == "done"
    return {
        "study": str(study.file),
        "best_recipe": str(study.best_recipe) if finished else None,
        "draws": [
            {
                "draw": result.number,
                "outcome": result.outcome,
                "nats": result.nats,
                "step": result.step,
                "recipe": result.recipe.to_json(),
            }
            for result in results
        ],
    }


def _show(study: Study) -> None:
    results = study.results()
    measure = measure_of(study.search.recipe.vocab)
    headers = ("draw", "outcome", measure.name, "rate", "l2", "in", "cell", "state", "out")
    rows = [_row(result, measure.digits, measure.of) for result in results[:SHOWN]]
    show_table((*headers, "rounds", "rank", "T_max", "hidden"), rows)
    counts = _counted([result.outcome for result in results])
    typer.echo(f"{len(results)} draws: {counts}; l2 is of the loss {_scale(study.search.recipe)}")
    if results[0].outcome == "done":
        typer.echo(f"best recipe: {study.best_recipe}")


def _row(result: Result, digits: int, of: Any) -> tuple[str, ...]:
    recipe, model = result.recipe, result.recipe.model
    rates = recipe.dropout
    return (
        str(result.number),
        result.outcome,
        "" if result.nats is None else f"{of(result.nats):.{digits}f}",
        f"{recipe.learning_rate:.5f}",
        f"{recipe.l2:.2e}",
        *(f"{rate:.3f}" for rate in (rates.input, rates.cell, rates.state, rates.output)),
        str(model.mogrifier_rounds),
        str(model.mogrifier_rank or "full"),
        f"{recipe.chrono_max:.1f}",
        str(model.hidden_size),
    )


def _counted(outcomes: Sequence[str]) -> str:
    return ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))


def _scale(recipe: Recipe) -> str:
    return recipe.loss_scale.replace("_", " ")
