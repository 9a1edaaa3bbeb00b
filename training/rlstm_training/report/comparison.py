"""Runs side by side: one row each, what sets their recipes apart, and the spread over seeds."""

import json
import math
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlstm_training.config import Recipe
from rlstm_training.recipes import RECIPES
from rlstm_training.report.curves import Measure, measure_of, seconds_of
from rlstm_training.report.runs import Run

_FRACTION = re.compile(r"-?\d+\.\d+(e-?\d+)?|-?\d+e-?\d+")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run in the table. ``best`` is in the published measure of its vocabulary; speeds are medians."""

    run: str
    recipe: str
    status: str
    cell: str
    layers: int
    hidden: int
    rounds: int
    rank: int | None
    weights: int
    vocabulary: str
    corpus: str
    seed: int
    tokens: int
    step: int
    steps: int
    measure: str
    best: float | None
    best_step: int | None
    best_weights: str | None
    resets: int
    seconds: float | None
    tokens_per_second: float | None
    reproduce: str | None


def row_of(run: Run) -> Row:
    """What the table says of a run. A rank of None is full rank."""
    recipe, model, curves = run.recipe, run.recipe.model, run.curves
    best, measure = curves.best, measure_of(recipe.vocab)
    speeds = [point.tokens_per_second for point in curves.training]
    return Row(
        run=run.label,
        recipe=recipe.name,
        status=run.status,
        cell=model.cell,
        layers=model.num_layers,
        hidden=model.hidden_size,
        rounds=model.mogrifier_rounds,
        rank=model.mogrifier_rank or None,
        weights=model.num_parameters,
        vocabulary=recipe.vocab,
        corpus=", ".join(dict.fromkeys(Path(source.corpus).name for source in recipe.sources)),
        seed=recipe.seed,
        tokens=curves.last_step * recipe.tokens_per_step,
        step=curves.last_step,
        steps=recipe.steps,
        measure=measure.name,
        best=None if best is None else measure.of(best.nats),
        best_step=None if best is None else best.step,
        best_weights=None if best is None else f"average of {best.length}" if best.averaged else "raw",
        resets=len(curves.resets),
        seconds=seconds_of(curves, recipe),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        reproduce=command_for(run),
    )


def command_for(run: Run) -> str | None:
    """The command that trains the same run again elsewhere; None where only an older version has it."""
    if run.outdated:
        return None
    words = _named(run.recipe) or ["--recipe", str(run.folder / "recipe.json")]
    return shlex.join(["rlstm", "train", *words, "--run", f"{run.folder}-again"])


def _named(recipe: Recipe) -> list[str] | None:
    """Arguments that make a recipe of the collection this very one, if any do."""
    if recipe.name not in RECIPES:
        return None
    base = RECIPES[recipe.name]()
    if replace(base, steps=recipe.steps, seed=recipe.seed) != recipe:
        return None
    changed = [name for name in ("steps", "seed") if getattr(base, name) != getattr(recipe, name)]
    return [recipe.name, *(word for name in changed for word in (f"--{name}", str(getattr(recipe, name))))]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one recipe under different seeds, and the best results of those that are finished.

    ``spread`` is the sample standard deviation, for two results or more.
    """

    runs: tuple[Run, ...]
    measure: Measure
    results: tuple[float, ...]

    @property
    def label(self) -> str:
        """The first run's, and how many more there are."""
        first, *more = self.runs
        return f"{first.label} and {len(more)} more" if more else first.label

    @property
    def mean(self) -> float | None:
        """The mean result."""
        return statistics.fmean(self.results) if self.results else None

    @property
    def spread(self) -> float | None:
        """The results' standard deviation."""
        return statistics.stdev(self.results) if len(self.results) > 1 else None


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """The runs by recipe, whatever its name and seed, in the order of the runs."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(json.dumps(_content(run.recipe), sort_keys=True), []).append(run)
    return [_group(members) for members in together.values()]


def _group(members: Sequence[Run]) -> Group:
    measure = measure_of(members[0].recipe.vocab)
    bests = [run.curves.best for run in members if run.status == "finished"]
    return Group(
        runs=tuple(members),
        measure=measure,
        results=tuple(measure.of(best.nats) for best in bests if best is not None),
    )


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The fields in which the groups' recipes differ: for each its value in every group, in order."""
    flat = [_flat(_content(group.runs[0].recipe)) for group in groups]
    names = dict.fromkeys(name for fields in flat for name in fields)
    table = {name: [fields.get(name, "") for fields in flat] for name in names}
    return {name: _shortened(values) for name, values in table.items() if len(set(values)) > 1}


def _shortened(values: Sequence[str]) -> list[str]:
    """Numbers to four digits, where that keeps apart what is different."""
    short = [f"{float(value):.4g}" if _FRACTION.fullmatch(value) else value for value in values]
    return short if len(set(short)) == len(set(values)) else list(values)


def _content(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.to_json().items() if name not in ("name", "seed")}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields by dotted names, their values as text; lists as a whole."""
    flat: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif name == "sources":
            flat[prefix + name] = "; ".join(f"{s['rows']} rows of {s['corpus']} ({s['form']})" for s in value)
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def best_first(runs: Sequence[Run]) -> list[Run]:
    """The runs by their best validation loss in nats a token, those without any last.

    Runs of one measure stay together, in the order of their first.
    """
    measures = list(dict.fromkeys(measure_of(run.recipe.vocab).name for run in runs))

    def key(run: Run) -> tuple[int, float]:
        best = run.curves.best
        place = measures.index(measure_of(run.recipe.vocab).name)
        return place, math.inf if best is None else best.nats

    return sorted(runs, key=key)
