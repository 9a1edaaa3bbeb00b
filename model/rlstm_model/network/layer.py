"""One layer: its weights, and one token through it as plain functions of values, with nothing kept.

The token's equations are those of :mod:`rlstm_model.network.cells` and :mod:`rlstm_model.network.mogrifier`, without dropout;
a single step is too short to prepare buffers for. Automatic differentiation can follow it.
Shape suffixes: B batch rows, H hidden units.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.network.cells import CellWeights
from rlstm_model.network.mogrifier import MogrifierWeights
from rlstm_model.network.products import Matrix, add_linear, linear


class LayerWeights(NamedTuple):
    """One layer's weights, in float32 or float64."""

    cell: CellWeights
    mogrifier: MogrifierWeights

    def flat(self) -> tuple[Matrix | None, ...]:
        """All of them in one row."""
        return (*self.cell, *self.mogrifier)

    @classmethod
    def from_flat(cls, tensors: Sequence[Matrix | None]) -> "LayerWeights":
        """The layer whose :meth:`flat` this is."""
        size = len(CellWeights._fields)
        return cls(CellWeights(*tensors[:size]), MogrifierWeights(*tensors[size:]))  # type: ignore[arg-type]

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out."""
        return self.cell.take_gradients or self.mogrifier.take_gradients

    def detached(self) -> "LayerWeights":
        """The same, of which only rows' own weights and observed matrices take gradients."""
        return self.from_flat([w.detach() if isinstance(w, Tensor) else w for w in self.flat()])


def read_token(
    weights: LayerWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, *, capped: bool
) -> tuple[Tensor, Tensor]:
    """The new h and c. ``capped``: whether the input gate is."""
    x_BH, h_BH = _mogrify(weights.mogrifier, x_BH, h_BH)
    cell, n = weights.cell, h_BH.shape[1]
    if cell.u is None or cell.c is None:
        gates = add_linear(linear(h_BH, cell.h, cell.bias), x_BH, cell.x)
        i, j = torch.sigmoid(gates[:, :n]), torch.tanh(gates[:, n : 2 * n])
        f, o = torch.sigmoid(gates[:, 2 * n :]).chunk(2, 1)
        c_BH = _new_c(i, j, f, c_BH, capped=capped)
        return o * torch.tanh(c_BH), c_BH
    from_h = linear(h_BH, cell.h, cell.bias[..., : 3 * n])
    ij = add_linear(from_h[:, : 2 * n], x_BH, cell.x)
    i, j = torch.sigmoid(ij[:, :n]), torch.tanh(ij[:, n:])
    f = torch.sigmoid(add_linear(from_h[:, 2 * n :], i * j, cell.u))
    c_BH = _new_c(i, j, f, c_BH, capped=capped)
    o = torch.sigmoid(linear(c_BH, cell.c, cell.bias[..., 3 * n :]))
    return o * torch.tanh(c_BH), c_BH


def _mogrify(weights: MogrifierWeights, x_BH: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor]:
    for k, (up, down, bias) in enumerate(weights.rounds()):
        source, gated = (h_BH, x_BH) if k % 2 == 0 else (x_BH, h_BH)
        low = source if down is None else linear(source, down)
        half = torch.sigmoid(linear(low, up, bias)) * gated
        if k % 2 == 0:
            x_BH = half + half
        else:
            h_BH = half + half
    return x_BH, h_BH


def _new_c(i: Tensor, j: Tensor, f: Tensor, c_BH: Tensor, *, capped: bool) -> Tensor:
    written = torch.minimum(i, 1 - f) if capped else i
    return torch.addcmul(f * c_BH, written, j)
