"""One token through one layer, as plain functions of values: for reading on, with nothing kept.

The same equations as in :mod:`rlstm_model.cells` and :mod:`rlstm_model.mogrifier`, without dropout; a single
step is too short to prepare buffers for. Automatic differentiation can follow it.
Shape suffixes: B batch rows, H hidden units.
"""

import torch
from torch import Tensor

from rlstm_model.cells import CellWeights
from rlstm_model.mogrifier import MogrifierWeights
from rlstm_model.products import add_linear, linear, unbind
from rlstm_model.weights import LayerWeights


def read_token(
    weights: LayerWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, *, capped: bool
) -> tuple[Tensor, Tensor]:
    """The new h and c. ``capped``: whether the input gate is."""
    x_BH, h_BH = _mogrify(weights.mogrifier, x_BH, h_BH)
    cell = weights.cell
    n = h_BH.shape[1]
    if cell.u is None or cell.c is None:
        gates = add_linear(linear(h_BH, cell.h, cell.bias), x_BH, cell.x)
        i, j = torch.sigmoid(gates[:, :n]), torch.tanh(gates[:, n : 2 * n])
        f, o = torch.sigmoid(gates[:, 2 * n :]).chunk(2, 1)
        c_BH = _remember(i, j, f, c_BH, capped=capped)
        return _out(weights, o * torch.tanh(c_BH)), c_BH
    i, j, f = _rewired_gates(cell, x_BH, h_BH)
    c_BH = _remember(i, j, f, c_BH, capped=capped)
    o = torch.sigmoid(linear(c_BH, cell.c, cell.bias[..., 3 * n :]))
    return _out(weights, o * torch.tanh(c_BH)), c_BH


def _out(weights: LayerWeights, h_BH: Tensor) -> Tensor:
    return h_BH if weights.out is None else weights.out.add_own_to(h_BH, h_BH)


def _mogrify(weights: MogrifierWeights, x_BH: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor]:
    downs = None if weights.down is None else unbind(weights.down, 0)
    for k, up in enumerate(unbind(weights.up, 0)):
        source, gated = (h_BH, x_BH) if k % 2 == 0 else (x_BH, h_BH)
        low = source if downs is None else linear(source, downs[k])
        gate = torch.sigmoid(linear(low, up, None if weights.bias is None else weights.bias[k]))
        half = gate * gated
        if k % 2 == 0:
            x_BH = half + half
        else:
            h_BH = half + half
    return x_BH, h_BH


def _rewired_gates(cell: CellWeights, x_BH: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert cell.u is not None
    n = h_BH.shape[1]
    from_h = linear(h_BH, cell.h, cell.bias[..., : 3 * n])
    ij = add_linear(from_h[:, : 2 * n], x_BH, cell.x)
    i, j = torch.sigmoid(ij[:, :n]), torch.tanh(ij[:, n:])
    return i, j, torch.sigmoid(add_linear(from_h[:, 2 * n :], i * j, cell.u))


def _remember(i: Tensor, j: Tensor, f: Tensor, c_BH: Tensor, *, capped: bool) -> Tensor:
    written = torch.minimum(i, 1 - f) if capped else i
    return torch.addcmul(f * c_BH, written, j)
