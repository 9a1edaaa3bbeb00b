"""The two recurrent cells: the rewired LSTM (RLSTM) and the baseline LSTM with a capped input gate.

    i = sigma(W_ix x + W_ih h + b_i)            j = tanh(W_jx x + W_jh h + b_j)
    f = sigma(W_fu (i * j) + W_fh h + b_f)      LSTM: sigma(W_fx x + W_fh h + b_f)
    c' = f * c + min(i, 1 - f) * j
    o = sigma(W_oc (c' * M_state) + b_o)        LSTM: sigma(W_ox x + W_oh h + b_o)
    h' = o * tanh(c')

(Melis 2022, §3.1; docs/mathematics.md §1.2 and, for the backward pass, §1.3.) ``i`` feeds ``i * j`` uncapped;
``c`` is masked only inside ``o``. A cell is two functions, a step and the step's backward; the weight
gradients of a whole window are one matrix product a weight over all steps and rows at once. Steps write
into the activations that their window saves. What of the backward pass does not depend on the future, the
*local derivatives*, is worked out for several steps at once; a step then only multiplies.
Shape suffixes: S steps, B batch rows, H hidden units.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlstm_model.network.products import (
    Matrix,
    add_product,
    affine,
    bias_gradient,
    factor_of,
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

    Where rows have weights of their own, a matrix is a
    :class:`~rlstm_model.network.products.RowMatrix` and ``bias`` ``[B, 4H]``.
    """

    x: Matrix
    h: Matrix
    u: Matrix | None
    c: Matrix | None
    bias: Tensor

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out."""
        return any(map(takes_gradient, self))

    def factors(self, precision: torch.dtype, *, transposed: bool) -> "CellWeights":
        """As a step multiplies with them, in ``precision``: transposed forward, and as they are backward."""
        x, h, u, c = (None if weight is None else factor_of(weight, precision) for weight in self[:4])
        assert x is not None
        assert h is not None
        if transposed:
            u, c = (None if weight is None else weight.mT for weight in (u, c))
            return CellWeights(x.mT, h.mT, u, c, self.bias)
        return CellWeights(x, h, u, c, self.bias)


class CellStep(NamedTuple):
    """The views of one step, ``[B, ..]``, gates by name and by what enters them.

    See :class:`CellActivations`.
    ``one`` is the number, ``[1, 1]``: a Python number takes longer.
    """

    from_x: Tensor
    from_h: Tensor
    i: Tensor
    j: Tensor
    f: Tensor
    o: Tensor
    u: Tensor
    c_old: Tensor
    c: Tensor
    seen: Tensor
    tanh_c: Tensor
    one: Tensor


class CellActivations(NamedTuple):
    """What a cell saves of a window for the backward pass.

    ``gates`` ``[S, B, 4H]``: i, j, f, o; ``c`` ``[S + 1, B, H]``, from the one before the first step;
    ``u`` i * j; ``seen`` c as ``o`` sees it; ``tanh_c``.
    """

    gates: Tensor
    c: Tensor
    u: Tensor
    seen: Tensor
    tanh_c: Tensor

    @classmethod
    def empty(cls, like_SBH: Tensor, *, masked: bool) -> "CellActivations":
        """Buffers for a window. Without a mask ``seen`` is c itself."""
        steps, batch, hidden = like_SBH.shape
        gates = like_SBH.new_empty(steps, batch, 4 * hidden)
        c = like_SBH.new_empty(steps + 1, batch, hidden)
        seen = torch.empty_like(like_SBH) if masked else c[1:]
        return cls(gates, c, torch.empty_like(like_SBH), seen, torch.empty_like(like_SBH))

    def some(self, steps: slice) -> "CellActivations":
        """Some steps."""
        c = self.c[steps.start : steps.stop + 1]
        return CellActivations(self.gates[steps], c, self.u[steps], self.seen[steps], self.tanh_c[steps])

    def steps(self, blocks: tuple[int, int]) -> list[CellStep]:
        """The steps; ``blocks``: how many of the gates x enters, and how many h."""
        by_gate = *_entered(self.gates, blocks), *self.gates.chunk(4, -1)
        fields = *by_gate, self.u, self.c[:-1], self.c[1:], self.seen, self.tanh_c
        one = self.c.new_ones(1, 1)
        return [
            CellStep._make((*views, one)) for views in zip(*(field.unbind() for field in fields), strict=True)
        ]


class CellDeltas(NamedTuple):
    """Loss gradients at one step's pre-activations, ``[B, ..]``, or ``[B, gates, H]`` for several gates.

    Until the backward pass reaches the step they are local derivatives: of c by i, j, f, and of h by o.
    """

    from_x: Tensor
    from_h: Tensor
    f: Tensor
    o: Tensor
    ij: Tensor
    ijf: Tensor

    @classmethod
    def steps(cls, gates_SB4H: Tensor, blocks: tuple[int, int]) -> list["CellDeltas"]:
        """The views of every step; ``blocks`` as in :meth:`CellActivations.steps`."""
        by_gate = gates_SB4H.view(*gates_SB4H.shape[:-1], 4, -1)
        gates = by_gate[..., 2, :], by_gate[..., 3, :], by_gate[..., :2, :], by_gate[..., :3, :]
        fields = *_entered(gates_SB4H, blocks), *gates
        return [cls(*views) for views in zip(*(field.unbind() for field in fields), strict=True)]


class CellDerivatives(NamedTuple):
    """A step's other local derivatives: of h by c through the tanh ``[B, H]``; of u by i, j ``[B, 2, H]``."""

    c: Tensor
    u: Tensor


class StepGradients(NamedTuple):
    """Loss gradients ``[B, H]``: h and c are carried from step to step, x is left behind."""

    x: Tensor
    h: Tensor
    c: Tensor


class RLSTMCell:
    """The rewired LSTM: f reads what the cell is about to write, o reads what it holds.

    ``blocks``: how many of the gates i, j, f, o x enters, and how many h.
    """

    blocks = (2, 3)
    capped = True

    def step(
        self, weights: CellWeights, step: CellStep, x_BH: Tensor, h_BH: Tensor, mask_BH: Tensor | None
    ) -> None:
        """One token: the gates, c and tanh c in ``step``. Weights are transposed. The new h is o tanh c."""
        assert weights.u is not None
        assert weights.c is not None
        bias_ijf, bias_o = weights.bias.split_with_sizes([step.from_h.shape[-1], step.o.shape[-1]], -1)
        affine(bias_ijf, h_BH, weights.h, step.from_h)
        add_product(step.from_x, x_BH, weights.x)
        step.i.sigmoid_()
        _tanh(step.j, step.one, step.j)
        torch.mul(step.i, step.j, out=step.u)
        add_product(step.f, step.u, weights.u)
        step.f.sigmoid_()
        _new_c(step, capped=True)
        seen = step.c if mask_BH is None else torch.mul(step.c, mask_BH, out=step.seen)
        affine(bias_o, seen, weights.c, step.o)
        step.o.sigmoid_()
        _tanh(step.c, step.one, step.tanh_c)

    def backward(
        self,
        weights: CellWeights,
        step: CellStep,
        derivatives: CellDerivatives,
        deltas: CellDeltas,
        mask_BH: Tensor | None,
        gradients: StepGradients,
    ) -> None:
        """One step back: from gradients at the new h and c to those at x, h and c, in place.

        ``deltas``, which came in as local derivatives, become loss gradients.
        """
        assert weights.u is not None
        assert weights.c is not None
        dx, dh, dc = gradients
        deltas.o.mul_(dh)
        dc.addcmul_(dh, derivatives.c)
        if mask_BH is None:
            add_product(dc, deltas.o, weights.c)
        else:
            product(deltas.o, weights.c, dx)
            dc.addcmul_(dx, mask_BH)
        deltas.ijf.mul_(dc.unsqueeze(1))
        du = dx
        product(deltas.f, weights.u, du)
        deltas.ij.addcmul_(derivatives.u, du.unsqueeze(1))
        product(deltas.from_x, weights.x, dx)
        product(deltas.from_h, weights.h, dh)
        dc.mul_(step.f)


class LSTMCell:
    """The baseline. ``capped=False`` is the textbook LSTM, as in torch.nn.LSTM. No gate reads c: no mask."""

    blocks = (4, 4)

    def __init__(self, *, capped: bool = True) -> None:
        self.capped = capped

    def step(
        self, weights: CellWeights, step: CellStep, x_BH: Tensor, h_BH: Tensor, mask_BH: Tensor | None
    ) -> None:
        """See :meth:`RLSTMCell.step`."""
        affine(weights.bias, h_BH, weights.h, step.from_h)
        add_product(step.from_x, x_BH, weights.x)
        step.i.sigmoid_()
        _tanh(step.j, step.one, step.j)
        step.f.sigmoid_()
        step.o.sigmoid_()
        torch.mul(step.i, step.j, out=step.u)
        _new_c(step, capped=self.capped)
        _tanh(step.c, step.one, step.tanh_c)

    def backward(
        self,
        weights: CellWeights,
        step: CellStep,
        derivatives: CellDerivatives,
        deltas: CellDeltas,
        mask_BH: Tensor | None,
        gradients: StepGradients,
    ) -> None:
        """See :meth:`RLSTMCell.backward`."""
        dx, dh, dc = gradients
        deltas.o.mul_(dh)
        dc.addcmul_(dh, derivatives.c)
        deltas.ijf.mul_(dc.unsqueeze(1))
        product(deltas.from_x, weights.x, dx)
        product(deltas.from_h, weights.h, dh)
        dc.mul_(step.f)


Cell: TypeAlias = RLSTMCell | LSTMCell


def local_derivatives(
    activations: CellActivations, h_SBH: Tensor, deltas_SB4H: Tensor, *, capped: bool
) -> list[CellDerivatives]:
    """Fill local derivatives of some steps into ``deltas``, return the others (docs/mathematics.md §1.3).

    ``h_SBH`` are the h that left the steps. Where the cap binds, what would reach i goes to f with the
    opposite sign. At an exact tie the derivative is i's, as in TensorFlow's minimum.
    """
    i, j, f, o = activations.gates.chunk(4, -1)
    by_i, by_j, by_f, by_o = deltas_SB4H.chunk(4, -1)
    h, c_old, u = h_SBH, activations.c[:-1], activations.u
    torch.addcmul(h, h, o, value=-1, out=by_o)
    by_c = torch.addcmul(o, h, activations.tanh_c, value=-1)
    of_u = u.new_empty(*u.shape[:-1], 2, u.shape[-1])
    u_by_i, u_by_j = of_u.unbind(-2)
    torch.addcmul(u, u, i, value=-1, out=u_by_i)
    torch.addcmul(i, u, j, value=-1, out=u_by_j)
    left = torch.sub(f.new_ones(1, 1), f)
    if capped:
        free = torch.le(i, left, out=torch.empty_like(left))
        torch.mul(u_by_i, free, out=by_i)
        torch.addcmul(c_old - j, j, free, out=by_f)
        written = torch.minimum(i, left, out=free)
        torch.addcmul(written, written * j, j, value=-1, out=by_j)
        by_f.mul_(f).mul_(left)
    else:
        by_i.copy_(u_by_i)
        by_j.copy_(u_by_j)
        torch.mul(c_old, f * left, out=by_f)
    return [CellDerivatives(*views) for views in zip(by_c.unbind(), of_u.unbind(), strict=True)]


def cell_gradients(
    weights: CellWeights,
    activations: CellActivations,
    deltas_TB4H: Tensor,
    x_TBH: Tensor,
    h_TBH: Tensor,
    precision: torch.dtype,
) -> list[Tensor | None]:
    """Gradients of a window in the order of :class:`CellWeights`; None for a weight that takes none."""
    n = x_TBH.shape[-1]
    places = (
        (weights.x, deltas_TB4H[..., : weights.x.shape[-2]], x_TBH),
        (weights.h, deltas_TB4H[..., : weights.h.shape[-2]], h_TBH),
        (weights.u, deltas_TB4H[..., 2 * n : 3 * n], activations.u),
        (weights.c, deltas_TB4H[..., 3 * n :], activations.seen),
    )
    gradients = [
        weight_gradient(weight, delta, source, precision)
        if weight is not None and takes_gradient(weight)
        else None
        for weight, delta, source in places
    ]
    bias = weights.bias
    return [*gradients, bias_gradient(bias, deltas_TB4H) if takes_gradient(bias) else None]


def _new_c(step: CellStep, *, capped: bool) -> None:
    """The new c, which may lie where the old one does."""
    torch.mul(step.f, step.c_old, out=step.c)
    if capped:
        written = step.tanh_c  # a buffer that is free until the step's end
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


def _entered(gates: Tensor, blocks: tuple[int, int]) -> tuple[Tensor, Tensor]:
    hidden = gates.shape[-1] // 4
    return gates[..., : blocks[0] * hidden], gates[..., : blocks[1] * hidden]
