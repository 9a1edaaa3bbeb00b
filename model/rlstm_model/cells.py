"""The two recurrent cells: the rewired LSTM (RLSTM) and the baseline LSTM with a capped input gate.

    i = sigma(W_ix x + W_ih h + b_i)            j = tanh(W_jx x + W_jh h + b_j)
    f = sigma(W_fu (i * j) + W_fh h + b_f)      LSTM: sigma(W_fx x + W_fh h + b_f)
    c' = f * c + min(i, 1 - f) * j
    o = sigma(W_oc (c' * M_state) + b_o)        LSTM: sigma(W_ox x + W_oh h + b_o)
    h' = o * tanh(c')

(Melis 2022, §3.1; mathematics: §1.2 and, for the backward pass, §1.3.) ``i`` feeds ``i * j`` uncapped; ``c``
is masked only inside ``o``. A cell is three pure functions: a step, the step's backward, and the weight
gradients of a whole window, which are one matrix product a weight over all steps and rows at once. Steps
write where their window's tape keeps it. What of the backward pass does not depend on the future, the
*slopes*, is worked out for several steps at once; a step then only multiplies.
Shape suffixes: L layers, S steps, B batch rows, H hidden units.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlstm_model.cell_tape import CellDeltaStep, CellSlopes, CellStep, CellTape
from rlstm_model.products import (
    Matrix,
    add_product,
    affine,
    bias_gradient,
    bias_takes_gradient,
    product,
    takes_gradient,
    weight_gradient,
)


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

    Weights of several layers are stacked: ``[L, .., H]``, and ``bias`` is ``[L, 1, 4H]``. Where rows have
    weights of their own, a matrix is a :class:`~rlstm_model.products.RowMatrix` and ``bias`` ``[B, 4H]``.
    """

    x: Matrix
    h: Matrix
    u: Matrix | None
    c: Matrix | None
    bias: Tensor

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out. Of weights of one layer, not stacked."""
        return bias_takes_gradient(self.bias, 1) or any(map(takes_gradient, self[:4]))

    def transposed(self) -> "CellWeights":
        """Views of stacked matrices as a step multiplies with them, ``[L, H, ..]``."""
        u, c = (None if weight is None else weight.mT for weight in (self.u, self.c))
        return CellWeights(self.x.mT, self.h.mT, u, c, self.bias)


class Cell(Protocol):
    """What a layer needs of a cell. ``blocks``: how many of the gates i, j, f, o x enters, and how many h."""

    blocks: tuple[int, int]
    capped: bool

    def step(
        self, weights: CellWeights, step: CellStep, x_LBH: Tensor, h_LBH: Tensor, mask_LBH: Tensor | None
    ) -> None:
        """One token: the gates, c and tanh c in ``step``. Weights are transposed. The new h is o tanh c."""

    def backward(
        self,
        weights: CellWeights,
        step: CellStep,
        slopes: CellSlopes,
        deltas: CellDeltaStep,
        mask_LBH: Tensor | None,
        gradients: "StepGradients",
    ) -> None:
        """One step back: from gradients at the new h and c to those at x, h and c, in place.

        ``deltas``, which came in as slopes, become loss gradients.
        """

    def gradients(
        self,
        weights: CellWeights,
        tape: CellTape,
        deltas_TB4H: Tensor,
        x_TBH: Tensor,
        h_TBH: Tensor,
        precision: torch.dtype,
    ) -> "CellGradients":
        """Weight gradients of one layer over a window, whose tape is ``[T, B, ..]``."""


class CellGradients(NamedTuple):
    """Gradients of :class:`CellWeights`, in their order; None for a weight that takes none."""

    x: Tensor | None
    h: Tensor | None
    u: Tensor | None
    c: Tensor | None
    bias: Tensor | None


class StepGradients(NamedTuple):
    """Loss gradients ``[L, B, H]``: h and c are carried from step to step, x is left behind."""

    x: Tensor
    h: Tensor
    c: Tensor


class RLSTMCell:
    """The rewired LSTM: f reads what the cell is about to write, o reads what it holds."""

    blocks = (2, 3)
    capped = True

    def step(
        self, weights: CellWeights, step: CellStep, x_LBH: Tensor, h_LBH: Tensor, mask_LBH: Tensor | None
    ) -> None:
        """See :class:`Cell`."""
        assert weights.u is not None
        assert weights.c is not None
        bias_ijf, bias_o = weights.bias.split_with_sizes([step.from_h.shape[-1], step.o.shape[-1]], -1)
        affine(bias_ijf, h_LBH, weights.h, step.from_h)
        add_product(step.from_x, x_LBH, weights.x)
        step.i.sigmoid_()
        _tanh(step.j, step.one, step.j)
        torch.mul(step.i, step.j, out=step.u)
        add_product(step.f, step.u, weights.u)
        step.f.sigmoid_()
        _remember(step, capped=True)
        seen = step.c if mask_LBH is None else torch.mul(step.c, mask_LBH, out=step.seen)
        affine(bias_o, seen, weights.c, step.o)
        step.o.sigmoid_()
        _tanh(step.c, step.one, step.tanh_c)

    def backward(
        self,
        weights: CellWeights,
        step: CellStep,
        slopes: CellSlopes,
        deltas: CellDeltaStep,
        mask_LBH: Tensor | None,
        gradients: StepGradients,
    ) -> None:
        """See :class:`Cell`."""
        assert weights.u is not None
        assert weights.c is not None
        dx, dh, dc = gradients
        deltas.o.mul_(dh)
        dc.addcmul_(dh, slopes.c)
        if mask_LBH is None:
            add_product(dc, deltas.o, weights.c)
        else:
            product(deltas.o, weights.c, dx)
            dc.addcmul_(dx, mask_LBH)
        deltas.ijf.mul_(dc.unsqueeze(2))
        du = dx
        product(deltas.f, weights.u, du)
        deltas.ij.addcmul_(slopes.u, du.unsqueeze(2))
        product(deltas.from_x, weights.x, dx)
        product(deltas.from_h, weights.h, dh)
        dc.mul_(step.f)

    def gradients(
        self,
        weights: CellWeights,
        tape: CellTape,
        deltas_TB4H: Tensor,
        x_TBH: Tensor,
        h_TBH: Tensor,
        precision: torch.dtype,
    ) -> CellGradients:
        """See :class:`Cell`."""
        assert weights.u is not None
        assert weights.c is not None
        n = x_TBH.shape[-1]
        return CellGradients(
            x=_gradient(weights.x, deltas_TB4H[..., : 2 * n], x_TBH, precision),
            h=_gradient(weights.h, deltas_TB4H[..., : 3 * n], h_TBH, precision),
            u=_gradient(weights.u, deltas_TB4H[..., 2 * n : 3 * n], tape.u, precision),
            c=_gradient(weights.c, deltas_TB4H[..., 3 * n :], tape.seen, precision),
            bias=_bias_gradient(weights.bias, deltas_TB4H),
        )


class LSTMCell:
    """The baseline. ``capped=False`` is the textbook LSTM, as in torch.nn.LSTM. No gate reads c: no mask."""

    blocks = (4, 4)

    def __init__(self, *, capped: bool = True) -> None:
        self.capped = capped

    def step(
        self, weights: CellWeights, step: CellStep, x_LBH: Tensor, h_LBH: Tensor, mask_LBH: Tensor | None
    ) -> None:
        """See :class:`Cell`."""
        affine(weights.bias, h_LBH, weights.h, step.from_h)
        add_product(step.from_x, x_LBH, weights.x)
        step.i.sigmoid_()
        _tanh(step.j, step.one, step.j)
        step.f.sigmoid_()
        step.o.sigmoid_()
        torch.mul(step.i, step.j, out=step.u)
        _remember(step, capped=self.capped)
        _tanh(step.c, step.one, step.tanh_c)

    def backward(
        self,
        weights: CellWeights,
        step: CellStep,
        slopes: CellSlopes,
        deltas: CellDeltaStep,
        mask_LBH: Tensor | None,
        gradients: StepGradients,
    ) -> None:
        """See :class:`Cell`."""
        dx, dh, dc = gradients
        deltas.o.mul_(dh)
        dc.addcmul_(dh, slopes.c)
        deltas.ijf.mul_(dc.unsqueeze(2))
        product(deltas.from_x, weights.x, dx)
        product(deltas.from_h, weights.h, dh)
        dc.mul_(step.f)

    def gradients(
        self,
        weights: CellWeights,
        tape: CellTape,
        deltas_TB4H: Tensor,
        x_TBH: Tensor,
        h_TBH: Tensor,
        precision: torch.dtype,
    ) -> CellGradients:
        """See :class:`Cell`."""
        return CellGradients(
            x=_gradient(weights.x, deltas_TB4H, x_TBH, precision),
            h=_gradient(weights.h, deltas_TB4H, h_TBH, precision),
            u=None,
            c=None,
            bias=_bias_gradient(weights.bias, deltas_TB4H),
        )


def _remember(step: CellStep, *, capped: bool) -> None:
    """The new c, which may lie where the old one does."""
    torch.mul(step.f, step.c_old, out=step.c)
    if capped:
        written = step.tanh_c  # room that is free until the step's end
        torch.sub(step.one, step.f, out=written)
        torch.minimum(step.i, written, out=written)
        step.c.addcmul_(written, step.j)
    else:
        step.c.add_(step.u)


def _tanh(x: Tensor, one: Tensor, out: Tensor) -> None:
    """1 - 2 sigma(-2 x), which on a CPU takes a quarter of torch.tanh's time; 2e-7 is its greatest error."""
    if x.is_cuda:
        torch.tanh(x, out=out)
        return
    torch.sub(x, x, alpha=3, out=out)
    out.sigmoid_()
    torch.sub(one, out, alpha=2, out=out)


def _gradient(weight: Matrix, delta: Tensor, source: Tensor, precision: torch.dtype) -> Tensor | None:
    return weight_gradient(weight, delta, source, precision) if takes_gradient(weight) else None


def _bias_gradient(bias: Tensor, delta: Tensor) -> Tensor | None:
    return bias_gradient(bias, delta) if bias_takes_gradient(bias, 1) else None
