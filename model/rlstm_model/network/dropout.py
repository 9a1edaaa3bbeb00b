"""Dropout masks, drawn outside the model and handed down to it, so that no module remembers one.

Shape suffixes: T time, B batch rows, L layers, H hidden units.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DropoutRates:
    """Probabilities of dropping a unit (Melis 2022, §3.3): each in [0, 1)."""

    input: float = 0.0
    cell: float = 0.0
    state: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        for name in ("input", "cell", "state", "output"):
            rate = getattr(self, name)
            if not 0.0 <= rate < 1.0:
                raise ValueError(f"dropout.{name} must lie in [0, 1), not {rate}")

    @property
    def any(self) -> bool:
        """Whether any unit is ever dropped."""
        return any((self.input, self.cell, self.state, self.output))


class DropoutMasks(NamedTuple):
    """The masks of one BPTT window. ``None`` keeps every unit.

    ``input``, ``output``: ``[T, B, H]``; ``cell``: ``[L, T, B, H]``; all fresh at every step.
    ``state``: ``[L, B, H]``, one mask a layer and row for the whole window.
    """

    input: Tensor | None = None
    cell: Tensor | None = None
    state: Tensor | None = None
    output: Tensor | None = None


NO_DROPOUT = DropoutMasks()


def sample_masks(
    rates: DropoutRates,
    *,
    time: int,
    batch: int,
    layers: int,
    hidden: int,
    like: Tensor,
    generator: torch.Generator | None = None,
) -> DropoutMasks:
    """Inverted dropout: a unit is 0 with its rate's probability, else ``1 / (1 - rate)``."""

    def draw(rate: float, *shape: int) -> Tensor | None:
        if rate == 0.0:
            return None
        kept = like.new_empty(shape).bernoulli_(1.0 - rate, generator=generator)
        return kept.div_(1.0 - rate)

    return DropoutMasks(
        input=draw(rates.input, time, batch, hidden),
        cell=draw(rates.cell, layers, time, batch, hidden),
        state=draw(rates.state, layers, batch, hidden),
        output=draw(rates.output, time, batch, hidden),
    )
