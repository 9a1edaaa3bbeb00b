"""The search itself: draws are trained one after the other, told to the study, and cut off when behind."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import optuna
import torch

from rlstm_training.batches import Texts
from rlstm_training.config import Recipe
from rlstm_training.loop import train
from rlstm_training.report.curves import validation
from rlstm_training.reporting import Record, Reporter, Several, Silence
from rlstm_training.run import Diverged
from rlstm_training.trainer import CPU
from rlstm_training.tuning.study import Draw, End, Study, StudyError, storage_errors

EVALUATIONS = 10


class PruningReporter(Silence):
    """Tells the study of every validation, also of those from before the run was resumed."""

    def __init__(self, draw: Draw, *, prune: bool) -> None:
        self._draw = draw
        self._prune = prune
        self.best: float | None = None

    def started(self, step: int, steps: int) -> None:
        """See :class:`rlstm_training.reporting.Reporter`."""
        for record in self._draw.run.metrics():
            self._hear(record)

    def recorded(self, record: Record) -> None:
        """See :class:`rlstm_training.reporting.Reporter`.

        Raises TrialPruned when the draw is behind the others at this step; not at the last one, where
        nothing is left to save.
        """
        heard = self._hear(record) and record["step"] < self._draw.recipe.steps
        if heard and self._prune and self._draw.trial.should_prune():
            raise optuna.TrialPruned

    def _hear(self, record: Record) -> bool:
        point = validation(record)
        if point is None or not math.isfinite(point.nats):
            return False
        self._draw.trial.report(point.nats, point.step)
        self.best = point.nats if self.best is None else min(self.best, point.nats)
        return True


def for_search(recipe: Recipe, steps: int | None) -> Recipe:
    """``recipe`` in ``steps``, evaluated at least ten times, so that there is a curve to compare."""
    recipe = recipe if steps is None else replace(recipe, steps=steps)
    return replace(recipe, evaluate_every=min(recipe.evaluate_every, max(1, recipe.steps // EVALUATIONS)))


def run_search(
    study: Study,
    texts: Texts,
    reporter_of: Callable[[Draw], AbstractContextManager[Reporter]],
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
    with storage_errors(study.file):
        while (draw := study.take(draws)) is not None:
            with draw.run, reporter_of(draw) as reporter:
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
        train(draw.recipe, texts, draw.run, Several([reporter, watch]), device=device)
    except optuna.TrialPruned:
        outcome = "pruned"
    except Diverged as error:
        reporter.noticed(str(error))
        outcome = "diverged"
    return outcome, watch.best
