"""The divergence guard: when a run has gone wrong, and at what rate it goes on from its best.

A run has diverged when a loss or gradient is not finite, or when an evaluation is worse than the best one
by a margin. It then goes back to weights, optimiser and averages of its best checkpoint and on at 0.9 of
its rate, which compounds. The data position is not taken back, so other batches follow; the carried state
starts at zero (Melis 2022, §5; mathematics: §7).
"""

import math
from dataclasses import dataclass
from typing import Any, Self

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
            return Progress(best_step=step, best_loss=loss, resets=self.resets)
        return Progress(
            best_step=self.best_step, best_loss=self.best_loss, since=self.since + 1, resets=self.resets
        )

    def gone_back(self) -> "Progress":
        """At the best again, more slowly."""
        return Progress(best_step=self.best_step, best_loss=self.best_loss, resets=self.resets + 1)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What :meth:`to_json` said."""
        return cls(**data)
