"""The training loop: steps, evaluations, checkpoints, going back after a divergence, and the end.

A run has diverged when a loss or gradient is not finite, or when an evaluation is worse than the best one
by a margin. It then goes back to weights, optimiser and averages of its best checkpoint and on at 0.9 of
its rate, which compounds. The data position is not taken back, so other batches follow; the carried state
starts at zero (Melis 2022, §5; docs/mathematics.md §7).
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from rlstm_model.network.language_model import LanguageModel
from rlstm_training.batches import VOCABULARY, Texts
from rlstm_training.config import Recipe
from rlstm_training.ranks import ALONE, Ranks
from rlstm_training.reporting import Reporter
from rlstm_training.run import Diverged, RunDirectory, RunError, Saved
from rlstm_training.trainer import CPU, Trainer

LOG_EVERY = 50
SLOWER = 0.9


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How a run's evaluations have gone so far.

    best_step, best_loss   of the best evaluation, in nats a token; step 0 and infinity before the first
    since                  evaluations since it
    resets                 how often the run went back
    """

    best_step: int = 0
    best_loss: float = math.inf
    since: int = 0
    resets: int = 0

    @property
    def rate_scale(self) -> float:
        """What the recipe's learning rate is multiplied by."""
        return SLOWER**self.resets

    def diverged(self, loss: float, margin: float) -> bool:
        """Whether an evaluation of ``loss`` shows that the run has gone wrong."""
        return not math.isfinite(loss) or loss > self.best_loss + margin

    def after(self, step: int, loss: float) -> "Progress":
        """With one more evaluation."""
        if loss < self.best_loss:
            return replace(self, best_step=step, best_loss=loss, since=0)
        return replace(self, since=self.since + 1)

    def gone_back(self) -> "Progress":
        """At the best again, more slowly."""
        return replace(self, since=0, resets=self.resets + 1)


@dataclass
class _Clock:
    """Seconds of training since the run began, over all its processes, and tokens a second since a mark."""

    before: float = 0.0
    began: float = field(default_factory=time.monotonic)
    marked: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        passed, self.marked = now - self.marked, now
        return passed


class _Loop:
    """A trainer, its run directory, and what is known of its progress."""

    def __init__(
        self, trainer: Trainer, run: RunDirectory, reporters: Sequence[Reporter], *, new_texts: bool = False
    ) -> None:
        self.trainer = trainer
        self._accepts, self._new_texts = new_texts, list[dict[str, Any]]()
        self.recipe = trainer.recipe
        self._run = run
        self._reporters = reporters
        self._progress = Progress()
        self._reported: dict[str, Any] = {"weights": "raw", "length": 1}
        self._losses: list[float] = []
        self._steps_timed = 0
        self._clock = _Clock()
        self.finished = False

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        saved = self._run.newest()
        self._agree_on(saved.step if saved else 0)
        if saved is not None:
            for damage in saved.damaged:
                self._notice(f"{damage}; going back to step {saved.step}")
            self.trainer.restore(saved.tensors, saved.header["average"], saved.step)
            self._progress = Progress(**saved.header["progress"])
            self._check_texts(saved)
            self._reported = saved.header["reported"]
            self._losses = saved.header["losses"]
            self._clock.before = saved.header["seconds"]
            self.finished = saved.header["finished"]
        for reporter in self._reporters:
            reporter.started(self.trainer.step, self.recipe.steps)

    def _check_texts(self, saved: Saved) -> None:
        """Refuse other texts than those of the steps so far, unless they were asked for.

        No vocabulary may take the place of another: its ids mean other tokens.
        """
        now = self.trainer.texts.digests
        before = saved.header.get("texts", now)
        self._new_texts = [*saved.header.get("new_texts", [])]
        other = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if not other:
            return
        if VOCABULARY in other or not self._accepts:
            way = (
                "" if VOCABULARY in other else "; --accept-new-corpus goes on with them, and the card says so"
            )
            raise RunError(f"{self._run.folder}: these are not what it has read: {', '.join(other)}{way}")
        self._new_texts.append({"step": saved.step, "texts": other})
        self._notice(f"from step {saved.step} on these are new: {', '.join(other)}")
        if any(name.endswith(" valid") for name in other):  # the best so far was the best on another text
            self._progress = replace(self._progress, best_step=0, best_loss=math.inf, since=0)

    def _agree_on(self, step: int) -> None:
        """All ranks go on after ``step``, and what is written of later ones is forgotten."""
        ranks = self.trainer.ranks
        (firsts,) = ranks.told_by_first([step], self.trainer.device)
        if step != firsts:
            raise RunError(
                f"{self._run.folder}: process {ranks.rank} sees a checkpoint of step {step}, the first one "
                f"of step {firsts:.0f}; all processes need the same folder"
            )
        ranks.wait()
        if ranks.first:
            self._run.forget_after(step)

    def advance(self) -> None:
        """One step, and whatever is due after it."""
        try:
            self._losses.append(self.trainer.advance(self._progress.rate_scale))
        except FloatingPointError as error:
            # A step that failed comes after the checkpoint of the one before: resumed, it fails again.
            self._go_back(self.trainer.step + 1, str(error))
            return
        self._steps_timed += 1
        step, last = self.trainer.step, self.trainer.step == self.recipe.steps
        for reporter in self._reporters:
            reporter.advanced(step, self._losses[-1])
        if step % LOG_EVERY == 0 or last:
            self._log_losses()
        improved = False
        if (step % self.recipe.evaluate_every == 0 or last) and self.trainer.texts.valid:
            improved = self._evaluate()
        stale = self.recipe.early_stopping
        self.finished = last or (stale > 0 and self._progress.since >= stale)
        if improved or self.finished or step % self.recipe.checkpoint_every == 0:
            self._save()

    def _evaluate(self) -> bool:
        """Whether the reported weights are the best so far; goes back when they show a divergence."""
        found, bits = self.trainer.evaluate()
        losses = {"raw": found.raw, "short": found.short, "long": found.long, "reported": found.loss}
        lengths = {"short": found.short_length, "long": found.long_length, "reported": found.length}
        self._record(valid=_finite(bits), nats=_finite(losses), lengths=lengths)
        self._clock.lap()
        self._steps_timed = 0
        if self._progress.diverged(found.loss, self.recipe.divergence_margin):
            self._go_back(
                self.trainer.step,
                f"step {self.trainer.step}: {found.loss:.4f} nats on validation text, "
                f"best {self._progress.best_loss:.4f}",
            )
            return False
        self._progress = self._progress.after(self.trainer.step, found.loss)
        self._reported = {"weights": found.reported, "length": found.length}
        return self._progress.since == 0

    def _go_back(self, step: int, why: str) -> None:
        """To the best checkpoint, and on at 0.9 of the rate. Raises Diverged where that cannot help.

        ``step`` is the one that went wrong.
        """
        progress = self._progress
        if progress.best_step == 0:
            raise Diverged(f"{self._run.folder}: training diverged before its first good evaluation; {why}")
        if progress.resets >= self.recipe.divergence_resets:
            raise Diverged(
                f"{self._run.folder}: training diverged again after {progress.resets} resets; {why}"
            )
        best = self._run.load(progress.best_step)
        self.trainer.go_back(best.tensors, best.header["average"])
        self._progress = progress.gone_back()
        self._reported = best.header["reported"]
        self._losses = []
        reset = {"to_step": progress.best_step, "rate_scale": self._progress.rate_scale, "why": why}
        self._record(step=step, reset=reset)
        self._notice(
            f"diverged ({why}); going on from the weights of step {progress.best_step} "
            f"at {self._progress.rate_scale:.2f} of the rate"
        )

    def _log_losses(self) -> None:
        speed = self.recipe.tokens_per_step * self._steps_timed / self._clock.lap()
        self._steps_timed = 0
        rate = self.recipe.rate(self.trainer.step - 1) * self._progress.rate_scale
        losses, self._losses = self._losses, []
        self._record(loss=sum(losses) / len(losses), rate=rate, tokens_per_second=speed)

    def _record(self, **figures: Any) -> None:
        record = {"step": self.trainer.step, **figures, "seconds": round(self._clock.seconds, 3)}
        if self.trainer.ranks.first:
            self._run.log(record)
        for reporter in self._reporters:
            reporter.recorded(record)

    def _notice(self, message: str) -> None:
        for reporter in self._reporters:
            reporter.noticed(message)

    def _save(self) -> None:
        tensors = self.trainer.tensors()
        if not self.trainer.ranks.first:
            return
        header = {
            "recipe": self.recipe.name,
            "losses": self._losses,
            "progress": asdict(self._progress),
            "average": self.trainer.average.header(),
            "reported": self._reported,
            "seconds": self._clock.seconds,
            "finished": self.finished,
            "texts": dict(self.trainer.texts.digests),
            "new_texts": self._new_texts,
        }
        self._run.save(self.trainer.step, tensors, header, best_step=self._progress.best_step)


def train(
    recipe: Recipe,
    texts: Texts,
    run: RunDirectory,
    *reporters: Reporter,
    device: torch.device = CPU,
    ranks: Ranks = ALONE,
    new_texts: bool = False,
) -> LanguageModel:
    """Run ``recipe`` to its end, from the newest whole checkpoint if there is one.

    ``new_texts`` allows other texts than those of the steps so far; the run says so.
    Returns the model with its raw last weights; the best ones are in the run.
    Raises RunError for other texts, when all checkpoints are damaged or the disk refuses; Diverged, which is
    one, when the run diverges for good.
    """
    loop = _Loop(Trainer(recipe, texts, device, ranks), run, reporters, new_texts=new_texts)
    loop.resume()
    while not loop.finished:
        loop.advance()
    ranks.wait()
    return loop.trainer.model


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no infinity and no NaN."""
    return {name: figure if math.isfinite(figure) else None for name, figure in figures.items()}
