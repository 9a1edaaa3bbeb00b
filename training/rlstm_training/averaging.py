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
    """What the training loop asks of an average; by itself, the raw weights alone.

    All that changes are the named means, and what is noted beside them as JSON.
    """

    def __init__(self, **means: RunningMean) -> None:
        self._means = means
        self._noted: dict[str, Any] = {}

    def update(self, weights: Weights, step: int) -> None:
        """Take in the weights after optimiser step ``step`` (the first is 1)."""

    def evaluate(self, loss: Loss, weights: Weights) -> Evaluated:
        """Evaluate the raw ``weights`` and the averages, and decide how to go on."""
        raw = loss(weights)
        return Evaluated(reported="raw", loss=raw, length=1, raw=raw)

    def long(self) -> Weights:
        """The average that is reported as "long"."""
        return self._means["long"].tensors

    def tensors(self) -> dict[str, Weights]:
        """All tensors, by the name of their average; empty averages have none."""
        return {name: mean.tensors for name, mean in self._means.items() if mean.length}

    def header(self) -> dict[str, Any]:
        """All else, as JSON."""
        return self._noted | {name: mean.header() for name, mean in self._means.items()}

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """Go on from what :meth:`tensors` and :meth:`header` said."""
        for name, mean in self._means.items():
            mean.restore(tensors.get(name), header[name])
        self._noted = {name: header[name] for name in self._noted}


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
        super().__init__(long=RunningMean(weights, config.patience))
        self._config = config
        self._noted = {"started": False}

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        self._noted["started"] |= step >= self._config.latest
        if self._noted["started"] and step % self._config.every == 0:
            self._means["long"].take(weights)

    def evaluate(self, loss: Loss, weights: Weights) -> Evaluated:
        """See :class:`WeightAverage`. Once it has begun, the average is what is reported."""
        mean = self._means["long"]
        raw, long, length = loss(weights), mean.evaluated(loss), mean.length
        mean.add(raw)
        self._noted["started"] |= mean.stagnates
        if not length:
            return Evaluated(reported="raw", loss=raw, length=1, raw=raw)
        return Evaluated(reported="long", loss=long, length=length, raw=raw, long=long, long_length=length)


class TwoTailedAverage(WeightAverage):
    """Two running means whose lengths adapt, so that one is always near the optimal tail.

    (Melis 2022, Two-Tailed Averaging, algorithms 1 and 2; docs/mathematics.md §6.) The short mean replaces
    the long one as soon as it is no worse, and begins anew. A mean stagnates after ``patience`` evaluations
    without a better one; its history follows it when it becomes the long one.
    """

    def __init__(self, config: Averaging, weights: Weights) -> None:
        super().__init__(**{name: RunningMean(weights, config.patience) for name in ("short", "long")})
        self._every = config.every
        self._noted = {"iterates": 0}

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        if step % self._every == 0:
            self._noted["iterates"] += 1
            for mean in self._means.values():
                mean.take(weights)

    def evaluate(self, loss: Loss, weights: Weights) -> Evaluated:
        """See :class:`WeightAverage`."""
        raw, short = loss(weights), self._means["short"].evaluated(loss)
        lengths = {f"{name}_length": mean.length for name, mean in self._means.items()}
        # Means of equal length began together, so they are one.
        same = lengths["short_length"] == lengths["long_length"]
        long = short if same else self._means["long"].evaluated(loss)
        best_long = self._switch(short, long)
        length = self._means["long"].length
        period, self._noted["iterates"] = self._noted["iterates"], 0
        averaged = length == 1 or best_long < raw
        if not averaged and length == period:
            # They have seen one period only, and it was no good.
            for mean in self._means.values():
                mean.emptied()
        return Evaluated(
            reported="long" if averaged else "raw",
            loss=best_long if averaged else raw,
            length=length if averaged else 1,
            raw=raw,
            short=short,
            long=long,
            **lengths,
        )

    def _switch(self, short_loss: float, long_loss: float) -> float:
        """Let the short mean take over, or begin anew, where that is due. Returns the long one's loss."""
        short, long = self._means["short"], self._means["long"]
        short.add(short_loss)
        long.add(long_loss)
        if short.length and (short_loss <= long_loss or long.stagnates):
            self._means = {"short": long.emptied(), "long": short}
            return short_loss
        if short.stagnates:
            short.emptied()
        return long_loss
