"""The weights of a layer, and of a group of layers that step together.

Shape suffixes: L layers, R rounds, H hidden units, K rank.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.cells import CellWeights
from rlstm_model.mogrifier import MogrifierWeights, RoundWeights


class LayerWeights(NamedTuple):
    """One layer's weights, in float32 or float64: its own tensors."""

    cell: CellWeights
    mogrifier: MogrifierWeights

    def flat(self) -> tuple[Tensor | None, ...]:
        """All of them in one row."""
        return (*self.cell, *self.mogrifier)

    @classmethod
    def from_flat(cls, tensors: Sequence[Tensor | None]) -> list["LayerWeights"]:
        """The layers whose :meth:`flat` stand one after the other."""
        size, cell = len(CellWeights._fields) + len(MogrifierWeights._fields), len(CellWeights._fields)
        parts = (tensors[start : start + size] for start in range(0, len(tensors), size))
        return [cls(CellWeights(*part[:cell]), MogrifierWeights(*part[cell:])) for part in parts]  # type: ignore[arg-type]


class GroupWeights(NamedTuple):
    """The weights of several layers, stacked; matrices in the precision of the products."""

    cell: CellWeights
    rounds: list[RoundWeights]

    @classmethod
    def of(cls, layers: Sequence[LayerWeights], precision: torch.dtype) -> "GroupWeights":
        """Views where possible: of one layer in its own precision."""
        x, h, u, c = (
            _stacked(tensors, precision)
            for tensors in zip(*(layer.cell[:4] for layer in layers), strict=True)
        )
        up, down = (
            _stacked(tensors, precision)
            for tensors in zip(*(layer.mogrifier[:2] for layer in layers), strict=True)
        )
        bias = _stacked([layer.cell.bias for layer in layers], None)
        round_bias = _stacked([layer.mogrifier.bias for layer in layers], None)
        assert x is not None
        assert h is not None
        assert up is not None
        assert bias is not None
        rounds = _rounds(up, down, None if round_bias is None else round_bias.unsqueeze(2))
        return cls(CellWeights(x, h, u, c, bias.unsqueeze(1)), rounds)

    def transposed(self) -> "GroupWeights":
        """As a forward step multiplies with them: views."""
        return GroupWeights(self.cell.transposed(), [weights.transposed() for weights in self.rounds])


def _stacked(tensors: Sequence[Tensor | None], precision: torch.dtype | None) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    whole = given[0].unsqueeze(0) if len(given) == 1 else torch.stack(given)
    return whole if precision is None else whole.to(precision)


def _rounds(up: Tensor, down: Tensor | None, bias: Tensor | None) -> list[RoundWeights]:
    """From ``[L, R, ..]`` to a list over rounds of ``[L, ..]``."""
    rounds = up.shape[1]
    downs, biases = ([None] * rounds if tensor is None else tensor.unbind(1) for tensor in (down, bias))
    return [RoundWeights(*weights) for weights in zip(up.unbind(1), downs, biases, strict=True)]
