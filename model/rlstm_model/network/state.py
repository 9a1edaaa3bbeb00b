"""The recurrent state: what a model remembers of the text it has read.

Shape suffixes: L layers, B batch rows, H hidden units.
"""

from typing import NamedTuple

from torch import Tensor


class State(NamedTuple):
    """Hidden and cell values of every layer: raw, never masked nor mogrified (docs/mathematics.md §1.2).

    ``h`` and ``c`` are ``[L, B, H]``. States are values: functions take one and return another.
    """

    h: Tensor
    c: Tensor

    @classmethod
    def zeros(cls, layers: int, batch: int, hidden: int, like: Tensor) -> "State":
        """The state before any text, on the device and in the dtype of ``like``."""
        return cls(like.new_zeros(layers, batch, hidden), like.new_zeros(layers, batch, hidden))

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
