"""The recurrent state: what a model remembers of the text it has read.

Shape suffixes: L layers, B batch rows, H hidden units.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class State(NamedTuple):
    """Hidden and cell values of every layer: raw, never masked nor mogrified (docs/mathematics.md §1.2).

    ``h`` and ``c`` are ``[L, B, H]``, or ``[B, H]`` of one layer; a layer narrower than H has zeros behind
    its own values. States are values: functions take one and return another.
    """

    h: Tensor
    c: Tensor

    @classmethod
    def zeros(cls, layers: int, batch: int, hidden: int, like: Tensor) -> "State":
        """The state before any text, on the device and in the dtype of ``like``."""
        return cls(like.new_zeros(layers, batch, hidden), like.new_zeros(layers, batch, hidden))

    @classmethod
    def of(cls, layers: Iterable[tuple[Tensor, Tensor]]) -> "State":
        """From h and c of each layer, ``[B, H]`` or narrower."""
        return cls(*(_stacked(parts) for parts in zip(*layers, strict=True)))

    def layers(self, widths: Iterable[tuple[int, int]]) -> "list[State]":
        """Those of each layer, as wide as the second of each pair says."""
        own = enumerate(width for _, width in widths)
        return [State(self.h[layer, ..., :width], self.c[layer, ..., :width]) for layer, width in own]

    @property
    def batch(self) -> int:
        """The number of rows B."""
        return self.h.shape[1]

    def detach(self) -> "State":
        """The same values without their history: the cut of truncated back-propagation."""
        return State(self.h.detach(), self.c.detach())

    def rows(self, index: Tensor | slice) -> "State":
        """The chosen batch rows, ``[L, b, H]``."""
        return State(self.h[:, index], self.c[:, index])

    def expand(self, batch: int) -> "State":
        """A single-row state repeated for ``batch`` rows (a view)."""
        return State(self.h.expand(-1, batch, -1), self.c.expand(-1, batch, -1))

    def where(self, keep_B: Tensor) -> "State":
        """Rows where ``keep_B`` is false become zero, hidden and cell values of all layers together."""
        return State(self.h * keep_B[:, None].to(self.h), self.c * keep_B[:, None].to(self.c))


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    widest = max(part.shape[-1] for part in parts)
    narrow = any(part.shape[-1] < widest for part in parts)
    return torch.stack([functional.pad(p, (0, widest - p.shape[-1])) for p in parts] if narrow else [*parts])
