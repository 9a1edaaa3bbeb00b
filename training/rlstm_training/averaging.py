"""Averages of the weights over a run: none, a tail, or Two-Tailed Averaging.

Training always goes on from the raw weights; an average is only evaluated, reported and kept. Lengths are
counted in iterates, the weights after every ``every``-th optimiser step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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


class RunningMean:
    """The mean of ``length`` iterates, in storage of its own."""

    def __init__(self, weights: Weights) -> None:
        self.tensors = [torch.zeros_like(weight) for weight in weights]
        self.length = 0

    @torch.no_grad()
    def add(self, weights: Weights) -> None:
        """One more iterate: mean += (weights - mean) / length."""
        self.length += 1
        torch._foreach_lerp_(self.tensors, [weight.detach() for weight in weights], 1.0 / self.length)


class Stagnation:
    """Counts the evaluations since the best one."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.best, self.since = math.inf, 0

    def hear(self, loss: float) -> None:
        """One more evaluation."""
        self.best, self.since = (loss, 0) if loss < self.best else (self.best, self.since + 1)

    @property
    def stagnates(self) -> bool:
        """Whether the last ``patience`` evaluations were no better than one before them."""
        return self.since >= self._patience


class WeightAverage(Protocol):
    """What the training loop asks of an average."""

    def update(self, weights: Weights, step: int) -> None:
        """Hear of the weights after optimiser step ``step`` (the first is 1)."""

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """Evaluate the raw ``weights`` and the averages after ``step``, and decide how to go on."""

    def long(self) -> Weights:
        """The average that is reported as "long"."""

    def tensors(self) -> dict[str, Weights]:
        """All tensors, by the name of their average; empty averages have none."""

    def header(self) -> dict[str, Any]:
        """All else, as JSON."""

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """Go on from what :meth:`tensors` and :meth:`header` said."""


def make_average(config: Averaging, weights: Weights) -> WeightAverage:
    """The average of ``config``, empty."""
    match config.kind:
        case "none":
            return NoAverage()
        case "tail":
            return TailAverage(config, weights)
        case "two_tailed":
            return TwoTailedAverage(config, weights)


class NoAverage:
    """The raw weights alone."""

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """See :class:`WeightAverage`."""
        raw = loss(weights)
        return Evaluated(reported="raw", loss=raw, length=1, raw=raw)

    def long(self) -> Weights:
        """There is none."""
        return ()

    def tensors(self) -> dict[str, Weights]:
        """See :class:`WeightAverage`."""
        return {}

    def header(self) -> dict[str, Any]:
        """See :class:`WeightAverage`."""
        return {}

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """See :class:`WeightAverage`."""


class TailAverage:
    """The mean of all iterates since the raw weights stagnated: the baseline's (mathematics: §2.11)."""

    def __init__(self, config: Averaging, weights: Weights) -> None:
        self._config = config
        self._mean = RunningMean(weights)
        self._raw = Stagnation(config.patience)
        self._started = False

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        self._started = self._started or step >= self._config.latest
        if self._started and step % self._config.every == 0:
            self._mean.add(weights)

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """See :class:`WeightAverage`. Once it has begun, the average is what is reported."""
        raw, length = loss(weights), self._mean.length
        long = loss(self._mean.tensors) if length else math.inf
        self._raw.hear(raw)
        self._started = self._started or self._raw.stagnates
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
        return {"started": self._started, "length": self._mean.length, "raw": _counts(self._raw)}

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """See :class:`WeightAverage`."""
        self._started = header["started"]
        _restore_mean(self._mean, tensors.get("long"), header["length"])
        self._raw.best, self._raw.since = header["raw"]


class TwoTailedAverage:
    """Two running means whose lengths adapt, so that one is always near the optimal tail.

    (Melis 2022, Two-Tailed Averaging, algorithms 1 and 2; mathematics: §6.) The short mean replaces the
    long one as soon as it is no worse, and begins anew. A mean stagnates after ``patience`` evaluations
    without a better one; its history follows it when it becomes the long one.
    """

    def __init__(self, config: Averaging, weights: Weights) -> None:
        self._config = config
        self._short, self._long = RunningMean(weights), RunningMean(weights)
        self._short_history, self._long_history = self._new_history(), self._new_history()
        self._iterates = 0

    def update(self, weights: Weights, step: int) -> None:
        """See :class:`WeightAverage`."""
        if step % self._config.every == 0:
            self._iterates += 1
            self._short.add(weights)
            self._long.add(weights)

    def evaluate(self, loss: Loss, weights: Weights, step: int) -> Evaluated:
        """See :class:`WeightAverage`."""
        raw = loss(weights)
        short = loss(self._short.tensors) if self._short.length else math.inf
        # Means of equal length began together, so they are one.
        same = self._short.length == self._long.length
        long = short if same else loss(self._long.tensors)
        lengths = {"short_length": self._short.length, "long_length": self._long.length}
        best_long = self._switch(short, long)
        length = self._long.length
        period, self._iterates = self._iterates, 0
        averaged = length == 1 or best_long < raw
        if not averaged and length == period:
            self._restart()
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
        self._short_history.hear(short)
        self._long_history.hear(long)
        if self._short.length and (short <= long or self._long_history.stagnates):
            self._short, self._long = self._emptied(self._long), self._short
            self._short_history, self._long_history = self._new_history(), self._short_history
            return short
        if self._short_history.stagnates:
            self._short, self._short_history = self._emptied(self._short), self._new_history()
        return long

    def _restart(self) -> None:
        """Forget both means: they have seen one period only, and it was no good."""
        self._short, self._long = self._emptied(self._short), self._emptied(self._long)
        self._short_history, self._long_history = self._new_history(), self._new_history()

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
            "short": [self._short.length, *_counts(self._short_history)],
            "long": [self._long.length, *_counts(self._long_history)],
            "iterates": self._iterates,
        }

    def restore(self, tensors: Mapping[str, Weights], header: Mapping[str, Any]) -> None:
        """See :class:`WeightAverage`."""
        for name, mean, history in (
            ("short", self._short, self._short_history),
            ("long", self._long, self._long_history),
        ):
            length, history.best, history.since = header[name]
            _restore_mean(mean, tensors.get(name), length)
        self._iterates = header["iterates"]

    def _new_history(self) -> Stagnation:
        return Stagnation(self._config.patience)

    @staticmethod
    def _emptied(mean: RunningMean) -> RunningMean:
        torch._foreach_zero_(mean.tensors)
        mean.length = 0
        return mean


def _counts(history: Stagnation) -> list[float | int]:
    return [history.best, history.since]


def _restore_mean(mean: RunningMean, tensors: Weights | None, length: int) -> None:
    mean.length = length
    if tensors is None:
        # What a run that diverged has left here may be no numbers, and would stay in every later mean.
        torch._foreach_zero_(mean.tensors)
        return
    for kept, tensor in zip(mean.tensors, tensors, strict=True):
        kept.copy_(tensor)
