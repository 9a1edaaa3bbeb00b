"""Averages of the weights over a run: none, a tail, or Two-Tailed Averaging.

Training always goes on from the raw weights; an average is only evaluated, reported and kept. Lengths are
counted in iterates, the weights after every ``every``-th optimiser step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlstm_training.config import Averaging

Weights = Sequence[Tensor]
Loss = Callable[[Weights], float]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What one evaluation found: losses in nats a token, infinite for an empty average.

    ``reported`` says which weights count: early stopping, the best checkpoint and every later evaluation
    use them.
    """

    reported: Literal["raw", "long"]
    loss: float
    length: int
    raw: float
    short: float = math.inf
    long: float = math.inf
    short_length: int = 0
    long_length: int = 0


class Stagnation:
    """Counts the evaluations since the best one."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.best, self.since = math.inf, 0

    def add(self, loss: float) -> None:
        """Count one more evaluation."""
        self.best, self.since = (loss, 0) if loss < self.best else (self.best, self.since + 1)

    @property
    def stagnates(self) -> bool:
        """Whether the last ``patience`` evaluations were no better than one before them."""
        return self.since >= self._patience


class RunningMean(Stagnation):
    """The mean of ``length`` iterates, in storage of its own, and how its evaluations went."""

    def __init__(self, weights: Weights, patience: int) -> None:
        super().__init__(patience)
        self.tensors = [torch.zeros_like(weight) for weight in weights]
        self.length = 0

    @torch.no_grad()
    def take(self, weights: Weights) -> None:
        """One more iterate: mean += (weights - mean) / length."""
        self.length += 1
        torch._foreach_lerp_(self.tensors, [weight.detach() for weight in weights], 1.0 / self.length)

    def evaluated(self, loss: Loss) -> float:
        """Its loss; infinite while it is empty."""
        return loss(self.tensors) if self.length else math.inf

    def emptied(self) -> "RunningMean":
        """The same storage without iterates or history."""
        torch._foreach_zero_(self.tensors)
        self.length, self.best, self.since = 0, math.inf, 0
        return self

    def header(self) -> list[float]:
        """All but the tensors, as JSON."""
        return [self.length, self.best, self.since]

    def restore(self, tensors: Weights | None, header: Sequence[Any]) -> None:
        """Go on from tensors, if there were any, and header."""
        # What a run that diverged has left here may be no numbers, and would stay in every later mean.
        self.emptied()
        self.length, self.best, self.since = header
        for kept, tensor in zip(self.tensors, tensors or (), strict=tensors is not None):
            kept.copy_(tensor)


class WeightAverage:
    """What the training loop asks of an average; by itself, the raw weights alone."""

    def update(self, weights: Weights, step: int) -> None:
        """Take in the weights after optimiser step ``step`` (the first is 1)."""

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """Evaluate the raw ``weights`` and the averages after ``step``, and decide how to go on."""
        raw = loss(weights)
        return Evaluated(reported="raw", loss=raw, length=1, raw=raw)

    def long(self) -> Weights:
        """The average that is reported as "long"."""
        return ()

    def tensors(self) -> dict[str, Weights]:
        """All tensors, by the name of their average; empty averages have none."""
        return {}

    def header(self) -> dict[str, Any]:
        """All else, as JSON."""
        return {}

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """Go on from what :meth:`tensors` and :meth:`header` said."""


def make_average(config: Averaging, weights: Weights) -> WeightAverage:
    """The average of ``config``, empty."""
    match config.kind:
        case "none":
            return WeightAverage()
        case "tail":
            return TailAverage(config, weights)
        case "two_tailed":
            return TwoTailedAverage(config, weights)


class TailAverage(WeightAverage):
    """The mean of all iterates since the raw weights stagnated: the baseline's (docs/mathematics.md §2.11).

    The history that it keeps is that of the raw weights.
    """

    def __init__(self, config: Averaging, weights: Weights) -> None:
        self._config = config
        self._mean = RunningMean(weights, config.patience)
        self._started = False

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        self._started = self._started or step >= self._config.latest
        if self._started and step % self._config.every == 0:
            self._mean.take(weights)

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """See :class:`WeightAverage`. Once it has begun, the average is what is reported."""
        raw, length = loss(weights), self._mean.length
        long = self._mean.evaluated(loss)
        self._mean.add(raw)
        self._started = self._started or self._mean.stagnates
        if not length:
            return Evaluated(reported="raw", loss=raw, length=1, raw=raw)
        return Evaluated(reported="long", loss=long, length=length, raw=raw, long=long, long_length=length)

    def long(self) -> Weights:
        """See :class:`WeightAverage`."""
        return self._mean.tensors

    def tensors(self) -> dict[str, Weights]:
        """See :class:`WeightAverage`."""
        return {"long": self._mean.tensors} if self._mean.length else {}

    def header(self) -> dict[str, Any]:
        """See :class:`WeightAverage`."""
        return {"started": self._started, "long": self._mean.header()}

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """See :class:`WeightAverage`."""
        self._started = header["started"]
        self._mean.restore(tensors.get("long"), header["long"])


class TwoTailedAverage(WeightAverage):
    """Two running means whose lengths adapt, so that one is always near the optimal tail.

    (Melis 2022, Two-Tailed Averaging, algorithms 1 and 2; docs/mathematics.md §6.) The short mean replaces
    the long one as soon as it is no worse, and begins anew. A mean stagnates after ``patience`` evaluations
    without a better one; its history follows it when it becomes the long one.
    """

    def __init__(self, config: Averaging, weights: Weights) -> None:
        self._every = config.every
        self._short, self._long = (RunningMean(weights, config.patience) for _ in range(2))
        self._iterates = 0

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        if step % self._every == 0:
            self._iterates += 1
            self._short.take(weights)
            self._long.take(weights)

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """See :class:`WeightAverage`."""
        raw, short = loss(weights), self._short.evaluated(loss)
        # Means of equal length began together, so they are one.
        same = self._short.length == self._long.length
        long = short if same else self._long.evaluated(loss)
        lengths = {"short_length": self._short.length, "long_length": self._long.length}
        best_long = self._switch(short, long)
        length = self._long.length
        period, self._iterates = self._iterates, 0
        averaged = length == 1 or best_long < raw
        if not averaged and length == period:
            # They have seen one period only, and it was no good.
            self._short.emptied()
            self._long.emptied()
        return Evaluated(
            reported="long" if averaged else "raw",
            loss=best_long if averaged else raw,
            length=length if averaged else 1,
            raw=raw,
            short=short,
            long=long,
            **lengths,
        )

    def _switch(self, short: float, long: float) -> float:
        """Let the short mean take over, or begin anew, where that is due. Returns the long one's loss."""
        self._short.add(short)
        self._long.add(long)
        if self._short.length and (short <= long or self._long.stagnates):
            self._short, self._long = self._long.emptied(), self._short
            return short
        if self._short.stagnates:
            self._short.emptied()
        return long

    def long(self) -> Weights:
        """See :class:`WeightAverage`."""
        return self._long.tensors

    def tensors(self) -> dict[str, Weights]:
        """See :class:`WeightAverage`."""
        means = {"short": self._short, "long": self._long}
        return {name: mean.tensors for name, mean in means.items() if mean.length}

    def header(self) -> dict[str, Any]:
        """See :class:`WeightAverage`."""
        return {
            "short": self._short.header(),
            "long": self._long.header(),
            "iterates": self._iterates,
        }

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """See :class:`WeightAverage`."""
        for name, mean in (("short", self._short), ("long", self._long)):
            mean.restore(tensors.get(name), header[name])
        self._iterates = header["iterates"]
