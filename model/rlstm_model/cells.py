"""The two recurrent cells: the rewired LSTM (RLSTM) and the baseline LSTM with a capped input gate.

    i = sigma(W_ix x + W_ih h + b_i)            j = tanh(W_jx x + W_jh h + b_j)
    f = sigma(W_fu (i * j) + W_fh h + b_f)      LSTM: sigma(W_fx x + W_fh h + b_f)
    c' = f * c + min(i, 1 - f) * j
    o = sigma(W_oc (c' * M_state) + b_o)        LSTM: sigma(W_ox x + W_oh h + b_o)
    h' = o * tanh(c')

(Melis 2022, §3.1; mathematics: §1.2 and, for the backward pass, §1.3.) A cell is three pure functions:
a step, the step's backward, and the weight gradients of a whole window, which are one matrix product a
weight over all steps and rows at once. ``i`` feeds ``i * j`` uncapped; ``c`` is masked only inside ``o``.
Shape suffixes: B batch rows, H hidden units.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class CellWeights(NamedTuple):
    """One layer's cell weights. Blocks stand in the order i, j, f, o.

    ============  ==============  =============
    weight        RLSTM           LSTM
    ============  ==============  =============
    ``x``         [2H, H] i j     [4H, H] i j f o
    ``h``         [3H, H] i j f   [4H, H] i j f o
    ``u``         [H, H] f        None
    ``c``         [H, H] o        None
    ``bias``      [4H]            [4H]
    ============  ==============  =============
    """

    x: Tensor
    h: Tensor
    u: Tensor | None
    c: Tensor | None
    bias: Tensor


class CellTape(NamedTuple):
    """The values of one step that its backward pass needs."""

    x: Tensor
    h: Tensor
    c: Tensor
    i: Tensor
    j: Tensor
    f: Tensor
    o: Tensor
    u: Tensor | None
    tanh_c: Tensor
    seen_c: Tensor | None


class CellDeltas(NamedTuple):
    """Loss gradients at the gates' pre-activations, ``[B, 4H]``: i, j, f, o."""

    gates: Tensor


class Cell(Protocol):
    """What a layer needs of a cell. All three are pure."""

    def step(
        self, weights: CellWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, CellTape]:
        """One token: the new h and c, and a tape."""

    def backward(
        self, weights: CellWeights, tape: CellTape, dh_BH: Tensor, dc_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, CellDeltas]:
        """Gradients at x, h and c of one step, from those at the new h and c."""

    def gradients(self, weights: CellWeights, tapes: list[CellTape], deltas: list[CellDeltas]) -> CellWeights:
        """Weight gradients of a window."""


def _capped(i: Tensor, f: Tensor) -> Tensor:
    return torch.minimum(i, 1 - f)


def _at_sigmoid(gradient: Tensor, value: Tensor) -> Tensor:
    """The gradient before a sigmoid whose value is given: one fused pass."""
    before: Tensor = torch.ops.aten.sigmoid_backward(gradient, value)
    return before


def _at_tanh(gradient: Tensor, value: Tensor) -> Tensor:
    """The gradient before a tanh whose value is given: one fused pass."""
    before: Tensor = torch.ops.aten.tanh_backward(gradient, value)
    return before


class RLSTMCell:
    """The rewired LSTM: f reads what the cell is about to write, o reads what it holds."""

    def step(
        self, weights: CellWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, CellTape]:
        """See :class:`Cell`."""
        assert weights.u is not None
        assert weights.c is not None
        n = h_BH.shape[1]
        b_ijf, b_o = weights.bias[: 3 * n], weights.bias[3 * n :]
        from_h = torch.addmm(b_ijf, h_BH, weights.h.t())
        ij = torch.addmm(from_h[:, : 2 * n], x_BH, weights.x.t())
        i, j = torch.sigmoid(ij[:, :n]), torch.tanh(ij[:, n:])
        u = i * j
        f = torch.sigmoid(torch.addmm(from_h[:, 2 * n :], u, weights.u.t()))
        c_new = torch.addcmul(f * c_BH, _capped(i, f), j)
        seen = c_new if mask_BH is None else c_new * mask_BH
        o = torch.sigmoid(torch.addmm(b_o, seen, weights.c.t()))
        tanh_c = torch.tanh(c_new)
        return o * tanh_c, c_new, CellTape(x_BH, h_BH, c_BH, i, j, f, o, u, tanh_c, seen)

    def backward(
        self, weights: CellWeights, tape: CellTape, dh_BH: Tensor, dc_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, CellDeltas]:
        """See :class:`Cell`."""
        assert weights.u is not None
        assert weights.c is not None
        c, i, j, f, o, tanh_c = tape.c, tape.i, tape.j, tape.f, tape.o, tape.tanh_c
        n = c.shape[1]
        delta_o = _at_sigmoid(dh_BH * tanh_c, o)
        d_seen = delta_o @ weights.c
        dc = dc_BH + _at_tanh(dh_BH * o, tanh_c)
        dc = dc + (d_seen if mask_BH is None else d_seen * mask_BH)
        di, dj, df, dc_old = _through_memory(dc, c, i, j, f, capped=True)
        delta_f = _at_sigmoid(df, f)
        du = delta_f @ weights.u
        delta_i = _at_sigmoid(torch.addcmul(di, du, j), i)
        delta_j = _at_tanh(torch.addcmul(dj, du, i), j)
        deltas = torch.cat((delta_i, delta_j, delta_f, delta_o), 1)
        dx = deltas[:, : 2 * n] @ weights.x
        dh = deltas[:, : 3 * n] @ weights.h
        return dx, dh, dc_old, CellDeltas(deltas)

    def gradients(self, weights: CellWeights, tapes: list[CellTape], deltas: list[CellDeltas]) -> CellWeights:
        """See :class:`Cell`."""
        n = tapes[0].h.shape[1]
        gates = torch.cat([step.gates for step in deltas])
        return CellWeights(
            x=gates[:, : 2 * n].t() @ torch.cat([step.x for step in tapes]),
            h=gates[:, : 3 * n].t() @ torch.cat([step.h for step in tapes]),
            u=gates[:, 2 * n : 3 * n].t() @ torch.cat([step.u for step in tapes if step.u is not None]),
            c=gates[:, 3 * n :].t() @ torch.cat([step.seen_c for step in tapes if step.seen_c is not None]),
            bias=gates.sum(0),
        )


class LSTMCell:
    """The baseline. ``capped=False`` is the textbook LSTM, as in torch.nn.LSTM."""

    def __init__(self, *, capped: bool = True) -> None:
        self.capped = capped

    def step(
        self, weights: CellWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, CellTape]:
        """See :class:`Cell`; no gate reads c, so the mask has no use here."""
        n = h_BH.shape[1]
        gates = torch.addmm(torch.addmm(weights.bias, h_BH, weights.h.t()), x_BH, weights.x.t())
        i, j = torch.sigmoid(gates[:, :n]), torch.tanh(gates[:, n : 2 * n])
        f, o = torch.sigmoid(gates[:, 2 * n :]).chunk(2, 1)
        c_new = torch.addcmul(f * c_BH, _capped(i, f) if self.capped else i, j)
        tanh_c = torch.tanh(c_new)
        return o * tanh_c, c_new, CellTape(x_BH, h_BH, c_BH, i, j, f, o, None, tanh_c, None)

    def backward(
        self, weights: CellWeights, tape: CellTape, dh_BH: Tensor, dc_BH: Tensor, mask_BH: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, CellDeltas]:
        """See :class:`Cell`."""
        c, i, j, f, o, tanh_c = tape.c, tape.i, tape.j, tape.f, tape.o, tape.tanh_c
        delta_o = _at_sigmoid(dh_BH * tanh_c, o)
        dc = dc_BH + _at_tanh(dh_BH * o, tanh_c)
        di, dj, df, dc_old = _through_memory(dc, c, i, j, f, capped=self.capped)
        delta_f = _at_sigmoid(df, f)
        delta_i, delta_j = _at_sigmoid(di, i), _at_tanh(dj, j)
        deltas = torch.cat((delta_i, delta_j, delta_f, delta_o), 1)
        return deltas @ weights.x, deltas @ weights.h, dc_old, CellDeltas(deltas)

    def gradients(self, weights: CellWeights, tapes: list[CellTape], deltas: list[CellDeltas]) -> CellWeights:
        """See :class:`Cell`."""
        gates = torch.cat([step.gates for step in deltas])
        return CellWeights(
            x=gates.t() @ torch.cat([step.x for step in tapes]),
            h=gates.t() @ torch.cat([step.h for step in tapes]),
            u=None,
            c=None,
            bias=gates.sum(0),
        )


def _through_memory(
    dc: Tensor, c: Tensor, i: Tensor, j: Tensor, f: Tensor, *, capped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients at i, j, f and the old c, from that at c' = f c + min(i, 1 - f) j.

    Where the cap binds, what would reach i goes to f with the opposite sign (mathematics: §1.3). At an
    exact tie the gradient is i's, as in TensorFlow's minimum.
    """
    d_write = dc * j
    df = dc * c
    if capped:
        room = 1 - f
        free = i <= room
        written = torch.minimum(i, room)
        di = d_write * free
        df = df - d_write + di
    else:
        written, di = i, d_write
    return di, dc * written, df, dc * f
