"""The weights of a layer, and of a group of layers that step together.

Shape suffixes: L layers, R rounds, H hidden units, K rank.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.cells import CellWeights
from rlstm_model.mogrifier import MogrifierWeights, RoundWeights
from rlstm_model.products import Matrix, RowMatrix, stack, unbind


class LayerWeights(NamedTuple):
    """One layer's weights, in float32 or float64: its own tensors.

    ``out`` is a matrix whose own parts M rows let their units add to each other with: h + M h takes the place
    of h (mathematics: §8.4); what it shares is not used. None adds nothing, and costs nothing.
    """

    cell: CellWeights
    mogrifier: MogrifierWeights
    out: RowMatrix | None = None

    def flat(self) -> tuple[Matrix | None, ...]:
        """All of them in one row."""
        return (*self.cell, *self.mogrifier, self.out)

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out."""
        return self.cell.take_gradients or self.mogrifier.take_gradients or self.out is not None

    def detached(self) -> "LayerWeights":
        """The same, of which only rows' own weights and observed matrices take gradients."""
        (layer,) = self.from_flat([w.detach() if isinstance(w, Tensor) else w for w in self.flat()])
        return layer

    @classmethod
    def from_flat(cls, tensors: Sequence[Matrix | None]) -> list["LayerWeights"]:
        """The layers whose :meth:`flat` stand one after the other."""
        cell = len(CellWeights._fields)
        size = cell + len(MogrifierWeights._fields) + 1
        parts = (tensors[start : start + size] for start in range(0, len(tensors), size))
        return [
            cls(CellWeights(*part[:cell]), MogrifierWeights(*part[cell:-1]), part[-1])  # type: ignore[arg-type]
            for part in parts
        ]


class GroupWeights(NamedTuple):
    """The weights of several layers, stacked; matrices in the precision of the products."""

    cell: CellWeights
    rounds: list[RoundWeights]
    out: RowMatrix | None

    @classmethod
    def of(cls, layers: Sequence[LayerWeights], precision: torch.dtype) -> "GroupWeights":
        """Views where possible: of one layer in its own precision."""
        x, h, u, c = (
            _stacked(matrices, precision)
            for matrices in zip(*(layer.cell[:4] for layer in layers), strict=True)
        )
        up, down = (
            _stacked(matrices, precision)
            for matrices in zip(*(layer.mogrifier[:2] for layer in layers), strict=True)
        )
        bias = torch.stack([layer.cell.bias for layer in layers])
        assert x is not None
        assert h is not None
        assert up is not None
        rounds = _rounds(up, down, [layer.mogrifier.bias for layer in layers])
        out = _stacked([layer.out for layer in layers], precision)
        assert out is None or isinstance(out, RowMatrix)
        return cls(CellWeights(x, h, u, c, bias if bias.dim() == 3 else bias.unsqueeze(1)), rounds, out)

    def transposed(self) -> "GroupWeights":
        """As a forward step multiplies with them: views."""
        rounds = [weights.transposed() for weights in self.rounds]
        return GroupWeights(self.cell.transposed(), rounds, None if self.out is None else self.out.mT)


def _stacked(matrices: Sequence[Matrix | None], precision: torch.dtype) -> Matrix | None:
    given = [matrix for matrix in matrices if matrix is not None]
    return stack(given, precision) if given else None


def _rounds(up: Matrix, down: Matrix | None, biases: Sequence[Tensor | None]) -> list[RoundWeights]:
    """From ``[L, R, ..]`` to a list over rounds of ``[L, ..]``."""
    ups = unbind(up, 1)
    downs: Sequence[Matrix | None] = [None] * len(ups) if down is None else unbind(down, 1)
    given = [bias for bias in biases if bias is not None]
    rows: Sequence[Tensor | None] = [None] * len(ups)
    if given:
        bias = torch.stack(given)
        rows = (bias if bias.dim() == 4 else bias.unsqueeze(2)).unbind(1)
    return [RoundWeights(*weights) for weights in zip(ups, downs, rows, strict=True)]
