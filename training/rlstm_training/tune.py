"""``rlstm tune``: search a recipe's settings over the paper's ranges, left whole by any kill.

    NAME.db                 optuna's storage: what was drawn, validation curves, results
    NAME/runs/0007/         the run directory of draw 7
    NAME/best-recipe.json   the recipe of the best draw so far
    NAME/lock               held for moments, by the process that hands out or closes a draw

A draw is a set of values; a trial is one process's attempt at it. A trial that no process has the run
directory of is dead: its draw goes back into the queue, and the next attempt resumes its run. Draw n of a
random search depends on the seed and on n alone, whatever was killed and whoever takes it.

The ranges are the paper's (Melis et al. 2020, appendix, as Melis 2022 used them; docs/mathematics.md §2.16,
§3); its dropout between layers is the cells', and T_max of the Chrono initialisation joins.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import click
import numpy as np
import optuna
import torch
from filelock import FileLock
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from rlstm_client.cli import inputs
from rlstm_model.files import replace_file
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.batches import Texts
from rlstm_training.commands import console, given
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.config import Recipe
from rlstm_training.corpora.texts import prepare
from rlstm_training.loop import train
from rlstm_training.reporting import ProgressBar, Record, Reporter, measure_of, scalars
from rlstm_training.run import Diverged, RunDirectory, RunError
from rlstm_training.trainer import CPU

DRAWS, SHOWN, EVALUATIONS, MOST_FRUITLESS = 60, 10, 10, 5
MOST_ROUNDS, MOST_RANK = 6, 100
KINDS = ("input", "cell", "state", "output")

RangesName = Literal["words", "enwik8"]
End = Literal["done", "pruned", "diverged"]


class StudyError(RunError):
    """A study that cannot be used; the message names its file."""


def _ranges(*most: float) -> dict[str, BaseDistribution]:
    """What both sets share, and dropout rates from 0 to those given."""
    dropout = {
        f"dropout_{kind}": FloatDistribution(0.0, rate) for kind, rate in zip(KINDS, most, strict=True)
    }
    return {
        "learning_rate": FloatDistribution(1e-3, 4e-3, log=True),
        "l2": FloatDistribution(5e-6, 1e-3, log=True),
        **dropout,
        "rounds": IntDistribution(0, MOST_ROUNDS),
        "rank": IntDistribution(-20, MOST_RANK),
        "chrono_max": FloatDistribution(math.exp(2), math.exp(5), log=True),
    }


RANGES: Mapping[RangesName, dict[str, BaseDistribution]] = {
    "words": _ranges(0.9, 0.95, 0.8, 0.95),
    "enwik8": _ranges(0.2, 0.2, 0.25, 0.25),
}


def ranges_for(recipe: Recipe) -> RangesName:
    """Those of enwik8 for bytes and for text8, its letters; else those of the paper's smaller corpora."""
    letters = all(source.corpus.endswith("text8") for source in recipe.sources)
    return "enwik8" if recipe.vocab == "bytes" or letters else "words"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how. A study belongs to one search.

    recipe     of every draw, but for what is drawn
    ranges     which of the paper's sets of ranges
    budget     weights that a draw's model may have at most; its width follows
    strategy   "random": independent draws, as for the paper's larger corpora; "tpe": each draw knows the
               results before it (Bergstra et al. 2011)
    seed       of the draws; that of every run is the recipe's
    """

    recipe: Recipe
    ranges: RangesName
    budget: int
    strategy: Literal["tpe", "random"] = "tpe"
    seed: int = 1

    def __post_init__(self) -> None:
        # The largest mogrifier around a single unit a layer.
        widest = replace(self.recipe.model, mogrifier_rounds=MOST_ROUNDS, mogrifier_rank=MOST_RANK)
        least = replace(widest, hidden_size=1).num_parameters
        if self.budget < least:
            raise ValueError(f"budget must be at least {least:,} weights for every draw, not {self.budget:,}")

    def drawn(self, number: int, values: Mapping[str, Any]) -> Recipe:
        """The recipe of draw ``number``, which got ``values``, as wide as the budget allows.

        A rank of at most 0 is full rank. The ranges' l2 belongs to a loss summed over time, as published
        (docs/mathematics.md §2.7): it is converted where the recipe has the mean over tokens.
        """
        base, rank = self.recipe, max(0, values["rank"])
        model = replace(base.model, mogrifier_rounds=values["rounds"], mogrifier_rank=rank)
        return replace(
            base,
            name=f"{base.name}-draw-{number}",
            model=model.with_budget(self.budget),
            learning_rate=values["learning_rate"],
            l2=values["l2"] * base.loss_factor / base.window,
            dropout=DropoutRates(**{kind: values[f"dropout_{kind}"] for kind in KINDS}),
            chrono_max=values["chrono_max"],
        )

    def sampler(self, number: int) -> BaseSampler:
        """What makes draw ``number``.

        Each draw has its own: a seeded sampler would begin anew in every process, and repeat its draws.
        """
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        if self.strategy == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, constant_liar=True)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that tells searches apart."""
        return {**asdict(self), "recipe": self.recipe.to_json()}


class Draw(NamedTuple):
    """A draw that this process tries: its run directory is open."""

    number: int
    recipe: Recipe
    run: RunDirectory
    trial: Trial


class Result(NamedTuple):
    """What became of a draw: its end or its trial's state, its best loss in nats a token, its last step."""

    number: int
    outcome: str
    nats: float | None
    step: int
    values: Mapping[str, Any]
    recipe: Recipe


class Study:
    """The draws of one search on disk; any number of processes may work on them."""

    def __init__(self, file: Path, search: Search) -> None:
        if set("?{}") & set(str(file)):
            raise StudyError(f"{file}: a study's path cannot hold any of ? {{ }}")
        self.file = file
        self.folder = file.with_suffix("")
        self.search = search
        try:
            # Several processes write: each waits for the others, up to so many seconds.
            arguments = {"connect_args": {"timeout": 60}}
            self._storage = RDBStorage(f"sqlite:///{file}", engine_kwargs=arguments)
        except RuntimeError as error:
            raise StudyError(f"{file}: is the study of another version of optuna ({error})") from error
        # Not in the first quarter, where a low rate may yet prove best.
        pruner = MedianPruner(n_startup_trials=5, n_warmup_steps=search.recipe.steps // 4, n_min_trials=3)
        self._study = optuna.create_study(
            storage=self._storage, study_name="search", load_if_exists=True, pruner=pruner
        )

    @classmethod
    @contextmanager
    def open(cls, file: Path, search: Search) -> Iterator[Self]:
        """The study of ``search`` in ``file`` (NAME.db), new or to be gone on with.

        Raises StudyError when the file is something else, holds another search, or cannot be written.
        """
        if file.suffix != ".db":
            raise StudyError(f"{file}: a study's name must end in .db")
        try:
            file.with_suffix("").mkdir(parents=True, exist_ok=True)
            with _locked(file):
                study = cls(file, search)
        except OSError as error:
            raise StudyError(f"{file.with_suffix('')}: cannot be used ({error.strerror})") from error
        try:
            study._refuse_other()
            yield study
        finally:
            study._storage.remove_session()
            study._storage.engine.dispose()

    def take(self, draws: int) -> Draw | None:
        """A draw to try: one that its process left behind, else a new one; None after ``draws`` in all.

        Raises StudyError, and RunError when the draw's run directory cannot be used.
        """
        with _locked(self.file):
            self._requeue_dead()
            number = len({_number(trial) for trial in self._trials()} - {None})
            waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if number >= draws and not waiting:
                return None
            self._study.sampler = self.search.sampler(number)
            trial = self._study.ask(RANGES[self.search.ranges])
            number = trial.user_attrs.get("draw", number)
            trial.set_user_attr("draw", number)
            recipe = self.search.drawn(number, trial.params)
            # Opened before anybody else can look for trials whose runs nobody has open.
            run = RunDirectory.open(self._run_folder(number), recipe)
            return Draw(number=number, recipe=recipe, run=run, trial=trial)

    def end(self, draw: Draw, outcome: End, nats: float | None) -> None:
        """Write down what became of a draw while its run is still open. Raises StudyError."""
        with _locked(self.file):
            draw.trial.set_user_attr("outcome", outcome)
            if outcome == "done":
                self._study.tell(draw.trial, nats)
            else:
                # A divergence too is a bad result, and no failure: the next draws shall keep away from it.
                self._study.tell(draw.trial, state=TrialState.PRUNED)
            self._keep_best()

    def results(self) -> list[Result]:
        """Every draw, the best first. Raises StudyError."""
        with _storage_errors(self.file):
            newest = {_number(trial): trial for trial in self._trials()}
        results = [self._result(number, trial) for number, trial in newest.items() if number is not None]
        nats = {result.number: math.inf if result.nats is None else result.nats for result in results}
        return sorted(results, key=lambda result: (result.outcome != "done", nats[result.number]))

    @property
    def best_recipe(self) -> Path:
        """Where the recipe of the best finished draw is, once there is one."""
        return self.folder / "best-recipe.json"

    def _refuse_other(self) -> None:
        mine = self.search.to_json()
        with _locked(self.file):
            found = self._study.user_attrs.get("search")
            if found is None:
                self._study.set_user_attr("search", mine)
            elif found != mine:
                names = sorted(name for name in {*mine, *found} if mine.get(name) != found.get(name))
                raise StudyError(f"{self.file} is the study of another search: {', '.join(names)} differ")

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _run_folder(self, number: int) -> Path:
        return self.folder / "runs" / f"{number:04d}"

    def _result(self, number: int, trial: FrozenTrial) -> Result:
        return Result(
            number=number,
            outcome=trial.user_attrs.get("outcome", trial.state.name.lower()),
            nats=min(trial.intermediate_values.values(), default=None),
            step=max(trial.intermediate_values, default=0),
            values=_values(trial),
            recipe=self.search.drawn(number, _values(trial)),
        )

    def _requeue_dead(self) -> None:
        """Put dead trials' draws into the queue, save one that kills every process before it gets on."""
        trials = self._trials()
        queued = {_number(trial) for trial in trials if trial.state == TrialState.WAITING}
        for trial in (trial for trial in trials if trial.state == TrialState.RUNNING):
            number, before, values = _number(trial), trial.user_attrs, _values(trial)
            if number is not None and number not in queued:
                run = RunDirectory(self._run_folder(number))
                if run.in_use:
                    continue
                reached = max(run.saved_steps(), default=0)
                fruitless = before.get("fruitless", 0) + 1 if reached == before.get("reached", 0) else 0
                if fruitless < MOST_FRUITLESS:
                    progress = {"draw": number, "reached": reached, "fruitless": fruitless, "values": values}
                    self._study.enqueue_trial(values, user_attrs=progress)
            # Last, so that a kill in between loses no draw.
            self._study.tell(trial.number, state=TrialState.FAIL)

    def _keep_best(self) -> None:
        """Write the best recipe, and delete the weights of every other draw that has come to its end."""
        ended = [result for result in self.results() if result.outcome in get_args(End)]
        best = ended[0] if ended and ended[0].outcome == "done" else None
        if best is not None:
            replace_file(self.best_recipe, json.dumps(best.recipe.to_json(), indent=1))
        for result in ended:
            if result != best:
                # The headers stay: they say that the run has ended.
                for weights in self._run_folder(result.number).glob("checkpoints/*/run.safetensors"):
                    weights.unlink(missing_ok=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Nobody else hands out or closes a draw; the system lets go of the lock however a process ends."""
    with _storage_errors(file), FileLock(file.with_suffix("") / "lock"):
        yield


@contextmanager
def _storage_errors(file: Path) -> Iterator[None]:
    """What the storage raises, as a StudyError that names ``file``."""
    try:
        yield
    except (optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise StudyError(f"{file}: {cause}") from error


def _number(trial: FrozenTrial) -> int | None:
    number: int | None = trial.user_attrs.get("draw")
    return number


def _values(trial: FrozenTrial) -> dict[str, Any]:
    # A trial from the queue has no parameters of its own before it was asked for all of them.
    values: dict[str, Any] = trial.user_attrs.get("values", trial.params)
    return values


class PruningReporter(Reporter):
    """Tells the study of every validation, also of those from before the run was resumed."""

    def __init__(self, draw: Draw, *, prune: bool) -> None:
        self._draw, self._prune = draw, prune
        self.best: float | None = None

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""
        for record in self._draw.run.metrics():
            self._hear(record)

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`.

        Raises TrialPruned when the draw is behind the others at this step; not at the last one, where
        nothing is left to save.
        """
        heard = self._hear(record) and record["step"] < self._draw.recipe.steps
        if heard and self._prune and self._draw.trial.should_prune():
            raise optuna.TrialPruned

    def _hear(self, record: Record) -> bool:
        nats = dict(scalars(record)).get("nats/reported", math.nan)
        if not math.isfinite(nats):
            return False
        self._draw.trial.report(nats, record["step"])
        self.best = nats if self.best is None else min(self.best, nats)
        return True


def for_search(recipe: Recipe, steps: int | None) -> Recipe:
    """``recipe`` in ``steps``, evaluated at least ten times, so that there is a curve to compare."""
    recipe = recipe if steps is None else replace(recipe, steps=steps)
    return replace(recipe, evaluate_every=min(recipe.evaluate_every, max(1, recipe.steps // EVALUATIONS)))


def run_search(
    study: Study,
    texts: Texts,
    *,
    draws: int,
    prune: bool = True,
    device: torch.device = CPU,
) -> None:
    """Try draws until the study has ``draws`` in all; those of other processes count.

    Raises StudyError, and RunError when a run fails for any reason but a divergence: the draw goes back
    into the queue then, as after a kill.
    """
    if not texts.valid:
        raise StudyError(f"{study.file}: a search needs validation text")
    with _storage_errors(study.file):
        while (draw := study.take(draws)) is not None:
            with draw.run, ProgressBar(draw.recipe.name) as reporter:
                outcome, nats = _try(draw, texts, reporter, prune, device)
                study.end(draw, outcome, nats)
                said = outcome if nats is None else f"{outcome}, {nats:.4f} nats a token at best"
                reporter.noticed(f"{draw.recipe.name}: {said}")


def _try(
    draw: Draw, texts: Texts, reporter: Reporter, prune: bool, device: torch.device
) -> tuple[End, float | None]:
    """Train a draw, from its newest checkpoint if there is one. Returns its end and its best loss."""
    watch = PruningReporter(draw, prune=prune)
    outcome: End = "done"
    try:
        train(draw.recipe, texts, draw.run, reporter, watch, device=device)
    except optuna.TrialPruned:
        outcome = "pruned"
    except Diverged as error:
        reporter.noticed(str(error))
        outcome = "diverged"
    return outcome, watch.best


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a search is made."""

    study: Path | None = inputs.option("Study, NAME.db (default: runs/tune-RECIPE.db); runs lie in NAME/.")
    trials: int | None = inputs.option(f"Draws in all (default: {DRAWS}).", type=click.IntRange(1))
    random: int | None = inputs.option(
        "So many independent draws in all, as the paper's 60.", type=click.IntRange(1)
    )
    steps: int | None = inputs.option("Optimiser steps of a draw.", type=click.IntRange(1))
    ranges: RangesName | None = inputs.option(
        "The paper's ranges (default: enwik8 for bytes and text8, else words)."
    )
    budget: int | None = inputs.option("Weights (default: the recipe's).", type=click.IntRange(1))
    seed: int = inputs.option("Seed of the draws.", default=1, type=click.IntRange(0))
    prune: bool = inputs.option("Cut off draws behind the median.", "--prune/--no-prune", default=True)

    def search(self, recipe: Recipe) -> Search:
        """The search around a recipe. Wrong usage when its budget is too small for every draw."""
        base = for_search(recipe, self.steps)
        try:
            return Search(
                recipe=base,
                ranges=self.ranges or ranges_for(base),
                budget=self.budget or base.model.num_parameters,
                strategy="random" if self.random else "tpe",
                seed=self.seed,
            )
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--budget") from error


@console.command()
@given.chosen
@inputs.given("asked", Asked)
@given.compute
@inputs.as_json
def tune(chosen: given.Chosen, asked: Asked, compute: given.Compute, as_json: bool) -> None:
    """Search learning rate, L2, dropout, mogrifier and T_max over the paper's ranges.

    The same command goes on after an interruption. Several processes may work on one study. Draws that are
    behind are cut off; the best recipe is kept: train it with rlstm train --recipe.
    """
    if asked.trials is not None and asked.random is not None:
        raise click.BadParameter("give either --trials or --random", param_hint="--random")
    target = compute.prepare()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = asked.search(chosen.read())
    texts, _ = prepare(search.recipe)
    with Study.open(asked.study or Path("runs") / f"tune-{search.recipe.name}.db", search) as opened:
        draws = asked.random or asked.trials or DRAWS
        run_search(opened, texts, draws=draws, prune=asked.prune, device=target)
        _tell(opened, as_json)


def _tell(study: Study, as_json: bool) -> None:
    results, search = study.results(), study.search
    best = str(study.best_recipe) if results and results[0].outcome == "done" else None
    if as_json:
        draws = [
            {"draw": each.number, "outcome": each.outcome, "nats": each.nats, "step": each.step}
            | {"recipe": each.recipe.to_json()}
            for each in results
        ]
        show_json({"study": str(study.file), "best_recipe": best, "draws": draws})
        return
    measure = measure_of(search.recipe.vocab)
    rows = [
        (str(each.number), each.outcome, measure.text(each.nats), *(f"{v:.4g}" for v in each.values.values()))
        for each in results[:SHOWN]
    ]
    show_table(("draw", "outcome", measure.name, *RANGES[search.ranges]), rows)
    outcomes = [result.outcome for result in results]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
    click.echo(f"{len(results)} draws: {counts}; a rank below 1 is full, l2 is of the loss summed over time")
    if best:
        click.echo(f"best recipe: {best}")
