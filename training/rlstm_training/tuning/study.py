"""A study: draws of a recipe's settings and what became of them, on disk, left whole by any kill.

    NAME.db                 optuna's storage: what was drawn, validation curves, results
    NAME/runs/0007/         the run directory of draw 7
    NAME/best-recipe.json   the recipe of the best draw so far
    NAME/lock               held for moments, by the process that hands out or closes a draw

A draw is a set of values; a trial is one process's attempt at it. A trial that no process has the run
directory of is dead: its draw goes back into the queue, and the next attempt resumes its run. Draw n of a
random search depends on the seed and on n alone, whatever was killed and whoever takes it.
"""

import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import optuna
from optuna.pruners import MedianPruner
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from rlstm_training.atomic import replace_text
from rlstm_training.config import Recipe
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.tuning.space import RANGES, Search

MOST_FRUITLESS = 5

End = Literal["done", "pruned", "diverged"]
Outcome = End | Literal["running", "waiting", "given up"]

_UNFINISHED: Mapping[TrialState, Outcome] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
    TrialState.FAIL: "given up",
}


class StudyError(RunError):
    """A study that cannot be used; the message names its file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """A draw that this process tries: its run directory is open."""

    number: int
    recipe: Recipe
    run: RunDirectory
    trial: Trial


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a draw: its best validation loss in nats a token so far, and the last step heard of."""

    number: int
    outcome: Outcome
    nats: float | None
    step: int
    recipe: Recipe


class Study:
    """The draws of one search on disk; any number of processes may work on them."""

    def __init__(self, file: Path, search: Search, storage: RDBStorage) -> None:
        """Use :meth:`open`."""
        self.file = file
        self.folder = file.with_suffix("")
        self.search = search
        self._storage = storage
        # Not in the first quarter, where a low rate may yet prove best.
        pruner = MedianPruner(n_startup_trials=5, n_warmup_steps=search.recipe.steps // 4, n_min_trials=3)
        self._study = optuna.create_study(
            storage=storage, study_name="search", load_if_exists=True, pruner=pruner
        )

    @classmethod
    def open(cls, file: Path, search: Search) -> Self:
        """The study of ``search`` in ``file`` (NAME.db), new or to be gone on with.

        Raises StudyError when the file is something else, holds another search, or cannot be written.
        """
        if file.suffix != ".db":
            raise StudyError(f"{file}: a study's name must end in .db")
        folder = file.with_suffix("")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with storage_errors(file), _alone(folder):
                study = cls(file, search, _sqlite(file))
                study._refuse_other()
        except OSError as error:
            raise StudyError(f"{folder}: cannot be used ({error.strerror})") from error
        return study

    def close(self) -> None:
        """Let go of the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, draws: int) -> Draw | None:
        """A draw to try: one that its process left behind, else a new one; None after ``draws`` in all.

        Raises StudyError, and RunError when the draw's run directory cannot be used.
        """
        with storage_errors(self.file), _alone(self.folder):
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
        with storage_errors(self.file), _alone(self.folder):
            draw.trial.set_user_attr("outcome", outcome)
            if outcome == "done":
                self._study.tell(draw.trial, nats)
            else:
                # A divergence too is a bad result, and no failure: the next draws shall keep away from it.
                self._study.tell(draw.trial, state=TrialState.PRUNED)
            self._keep_best()

    def results(self) -> list[Result]:
        """Every draw, the best first. Raises StudyError."""
        with storage_errors(self.file):
            newest = {_number(trial): trial for trial in self._trials()}
        results = [self._result(number, trial) for number, trial in newest.items() if number is not None]
        return sorted(results, key=lambda result: (result.outcome != "done", _or_infinite(result.nats)))

    @property
    def best_recipe(self) -> Path:
        """Where the recipe of the best finished draw is, once there is one."""
        return self.folder / "best-recipe.json"

    def _refuse_other(self) -> None:
        mine = self.search.to_json()
        found = self._study.user_attrs.get("search")
        if found is None:
            self._study.set_user_attr("search", mine)
        elif found != mine:
            self.close()
            names = sorted(name for name in {*mine, *found} if mine.get(name) != found.get(name))
            raise StudyError(f"{self.file} is the study of another search: {', '.join(names)} differ")

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _run_folder(self, number: int) -> Path:
        return self.folder / "runs" / f"{number:04d}"

    def _result(self, number: int, trial: FrozenTrial) -> Result:
        return Result(
            number=number,
            outcome=_UNFINISHED.get(trial.state) or trial.user_attrs["outcome"],
            nats=min(trial.intermediate_values.values(), default=None),
            step=max(trial.intermediate_values, default=0),
            recipe=self.search.drawn(number, _values(trial)),
        )

    def _requeue_dead(self) -> None:
        trials = self._trials()
        queued = {_number(trial) for trial in trials if trial.state == TrialState.WAITING}
        for trial in trials:
            number = _number(trial)
            if trial.state != TrialState.RUNNING:
                continue
            if number is not None and number not in queued:
                run = RunDirectory(self._run_folder(number))
                if run.in_use:
                    continue
                self._requeue(trial, number, reached=max(run.saved_steps(), default=0))
            # Last, so that a kill in between loses no draw.
            self._study.tell(trial.number, state=TrialState.FAIL)

    def _requeue(self, trial: FrozenTrial, number: int, *, reached: int) -> None:
        """Put a dead trial's draw into the queue, save one that kills every process before it gets on."""
        before = trial.user_attrs
        fruitless = before.get("fruitless", 0) + 1 if reached == before.get("reached", 0) else 0
        if fruitless < MOST_FRUITLESS:
            progress = {"draw": number, "reached": reached, "fruitless": fruitless}
            values = _values(trial)
            self._study.enqueue_trial(values, user_attrs={**progress, "values": values})

    def _keep_best(self) -> None:
        """Write the best recipe, and delete the weights of every other draw that has come to its end."""
        ended = [result for result in self.results() if result.outcome in get_args(End)]
        best = ended[0] if ended and ended[0].outcome == "done" else None
        if best is not None:
            replace_text(self.best_recipe, json.dumps(best.recipe.to_json(), indent=1))
        for result in ended:
            if result != best:
                # The headers stay: they say that the run has ended.
                for weights in self._run_folder(result.number).glob("checkpoints/*/run.safetensors"):
                    weights.unlink(missing_ok=True)


def _sqlite(file: Path) -> RDBStorage:
    if set("?{}") & set(str(file)):
        raise StudyError(f"{file}: a study's path cannot hold any of ? {{ }}")
    try:
        # Several processes write: each waits for the others, up to so many seconds.
        return RDBStorage(f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": 60}})
    except RuntimeError as error:
        raise StudyError(f"{file}: is the study of another version of optuna ({error})") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else hands out or closes a draw; the kernel lets go of the lock however a process ends."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def storage_errors(file: Path) -> Iterator[None]:
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


def _or_infinite(nats: float | None) -> float:
    return math.inf if nats is None else nats
