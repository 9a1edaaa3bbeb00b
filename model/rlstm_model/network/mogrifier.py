"""Mogrification: the input and the hidden state gate each other in turn before the cell reads them.

    k odd :  x <- 2 sigma(Q_k h + q_k) * x
    k even:  h <- 2 sigma(R_k x + r_k) * h          k = 1 .. rounds

(Melis, Kocisky & Blunsom 2020; docs/mathematics.md §1.2.) Every layer and round has weights of its own. As in
the cells, steps write into the activations that their window saves, and local derivatives are worked out for
several steps at once.
Shape suffixes: S steps, B batch rows, H hidden units, R rounds, K rank.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

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
    unbind,
    weight_gradient,
)

Saved = TypeVar("Saved", "MogrifierActivations", "MogrifierDeltas")


class MogrifierWeights(NamedTuple):
    """The weights of one layer's rounds, stacked over rounds; or those of one, without R.

    ``up``: ``[R, H, K]`` and ``down``: ``[R, K, H]``, the factors of each round's matrix; at full rank
    ``up`` is the whole matrix ``[R, H, H]`` and ``down`` is None. ``bias``: ``[R, H]`` or None. Where rows
    have weights of their own, a matrix is a
    :class:`~rlstm_model.network.products.RowMatrix`, ``bias`` ``[R, B, H]``.
    """

    up: Matrix
    down: Matrix | None
    bias: Tensor | None

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out."""
        return any(map(takes_gradient, self))

    def rounds(self) -> "list[MogrifierWeights]":
        """The weights of each round, as views."""
        ups = unbind(self.up)
        downs: Sequence[Matrix | None] = [None] * len(ups) if self.down is None else unbind(self.down)
        biases: Sequence[Tensor | None] = [None] * len(ups) if self.bias is None else self.bias.unbind()
        return [MogrifierWeights(*weights) for weights in zip(ups, downs, biases, strict=True)]

    def factors(self, precision: torch.dtype, *, transposed: bool) -> "list[MogrifierWeights]":
        """As a step's rounds multiply with them, in ``precision``: transposed forward, not so backward."""
        up, down = (None if matrix is None else factor_of(matrix, precision) for matrix in self[:2])
        assert up is not None
        if transposed:
            up, down = up.mT, None if down is None else down.mT
        return MogrifierWeights(up, down, self.bias).rounds()


class MogrifierActivations(NamedTuple):
    """What the rounds save of a window for the backward pass; or of one round of one step, ``[B, ..]``.

    ``low`` ``[R, S, B, K]``, between the two factors, or None at full rank; ``gate`` ``[R, S, B, H]``,
    2 sigma; ``gated`` ``[R, S, B, H]``, the x or h that left each round.
    """

    low: Tensor | None
    gate: Tensor
    gated: Tensor

    @classmethod
    def empty(cls, weights: MogrifierWeights, like_SBH: Tensor) -> "MogrifierActivations":
        """Buffers for a window."""
        low, gate = _low_and_gate(weights, weights.up.shape[0], like_SBH)
        return cls(low, gate, torch.empty_like(gate))

    def some(self, steps: slice) -> "MogrifierActivations":
        """Some steps."""
        low = None if self.low is None else self.low[:, steps]
        return MogrifierActivations(low, self.gate[:, steps], self.gated[:, steps])

    def steps(self) -> "list[list[MogrifierActivations]]":
        """For every step, the views of its rounds."""
        return _by_step(self)

    def left(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """What the cell read: the last x and h that left a round, or what entered where there is none."""
        rounds = len(self.gated)
        last_odd, last_even = (rounds - 1) // 2 * 2, rounds // 2 * 2 - 1
        return (self.gated[last_odd] if rounds > 0 else x), (self.gated[last_even] if rounds > 1 else h)


class MogrifierDeltas(NamedTuple):
    """Loss gradients: ``low`` between the two factors, ``gate`` before the sigmoid; shapes as activations'.

    Until the backward pass reaches a step, its ``gate`` holds derivatives of ``gated`` by it.
    """

    low: Tensor | None
    gate: Tensor

    @classmethod
    def empty(cls, weights: MogrifierWeights, like_SBH: Tensor) -> "MogrifierDeltas":
        """Buffers for so many steps."""
        return cls(*_low_and_gate(weights, weights.up.shape[0], like_SBH))

    def some(self, steps: slice) -> "MogrifierDeltas":
        """Those of some steps."""
        return MogrifierDeltas(None if self.low is None else self.low[:, steps], self.gate[:, steps])

    def steps(self, activations: MogrifierActivations) -> "list[list[MogrifierDeltas]]":
        """For every step, the views of its rounds, filled with local derivatives.

        Those are y (1 - sigma), where y = 2 sigma(a) z left a round.
        """
        gated, gate = activations.gated, activations.gate
        torch.addcmul(gated, gated, gate, value=-0.5, out=self.gate)
        return _by_step(self)


def mogrify(
    weights: Sequence[MogrifierWeights], steps: Sequence[MogrifierActivations], x_BH: Tensor, h_BH: Tensor
) -> tuple[Tensor, Tensor]:
    """All rounds of a step, with transposed weights. Returns the mogrified x and h, kept in ``steps``."""
    for k, (weight, step) in enumerate(zip(weights, steps, strict=True)):
        source, gated = (h_BH, x_BH) if k % 2 == 0 else (x_BH, h_BH)
        if weight.down is not None and step.low is not None:
            product(source, weight.down, step.low)
            source = step.low
        affine(weight.bias, source, weight.up, step.gate)
        step.gate.sigmoid_()
        step.gate.add_(step.gate)  # twice: a product with a Python number would take longer
        torch.mul(step.gate, gated, out=step.gated)
        if k % 2 == 0:
            x_BH = step.gated
        else:
            h_BH = step.gated
    return x_BH, h_BH


def mogrify_backward(
    weights: Sequence[MogrifierWeights],
    steps: Sequence[MogrifierActivations],
    deltas: Sequence[MogrifierDeltas],
    dx_BH: Tensor,
    dh_BH: Tensor,
) -> None:
    """Turn gradients at the x and h that left a step's rounds into those at what entered them, in place.

    ``deltas``, which came in as local derivatives, become loss gradients.
    """
    for k in reversed(range(len(weights))):
        d_gated, d_source = (dx_BH, dh_BH) if k % 2 == 0 else (dh_BH, dx_BH)
        weight, (d_low, delta) = weights[k], deltas[k]
        delta.mul_(d_gated)
        d_gated.mul_(steps[k].gate)
        if weight.down is None or d_low is None:
            add_product(d_source, delta, weight.up)
        else:
            product(delta, weight.up, d_low)
            add_product(d_source, d_low, weight.down)


def mogrifier_gradients(
    weights: MogrifierWeights,
    activations: MogrifierActivations,
    deltas: MogrifierDeltas,
    h_TBH: Tensor,
    precision: torch.dtype,
) -> list[Tensor | None]:
    """One layer's gradients in the order of :class:`MogrifierWeights`; ``h_TBH`` entered the first round.

    None for weights that take none.
    """
    sources = (h_TBH, *activations.gated)[: len(activations.gated)]
    lows = sources if activations.low is None else tuple(activations.low)
    d_lows = () if deltas.low is None else tuple(deltas.low)
    bias = None
    if weights.bias is not None and weights.bias.requires_grad:
        own = [bias_gradient(*each) for each in zip(weights.bias, deltas.gate, strict=True)]
        bias = torch.stack(own) if own else torch.zeros_like(weights.bias)
    return [
        _round_gradients(weights.up, tuple(deltas.gate), lows, precision),
        _round_gradients(weights.down, d_lows, sources, precision),
        bias,
    ]


def _round_gradients(
    weight: Matrix | None, deltas: Sequence[Tensor], sources: Sequence[Tensor], precision: torch.dtype
) -> Tensor | None:
    if weight is None or not takes_gradient(weight):
        return None
    rounds = zip(unbind(weight), deltas, sources, strict=True)
    gradients = [weight_gradient(*each, precision) for each in rounds]
    if gradients:
        return torch.stack(gradients)
    return torch.zeros_like(weight if isinstance(weight, Tensor) else weight[-1])


def _low_and_gate(weights: MogrifierWeights, rounds: int, like: Tensor) -> tuple[Tensor | None, Tensor]:
    gate = like.new_empty(rounds, *like.shape)
    low = None if weights.down is None else like.new_empty(rounds, *like.shape[:-1], weights.up.shape[-1])
    return low, gate


def _by_step(window: Saved) -> list[list[Saved]]:
    """From ``[R, S, ..]`` tensors to a list over steps of lists over rounds of ``[..]`` views."""
    rounds, steps = window.gate.shape[:2]
    views: list[Any] = [
        [[None] * steps] * rounds if field is None else [part.unbind() for part in field] for field in window
    ]
    return [[type(window)(*(view[k][s] for view in views)) for k in range(rounds)] for s in range(steps)]
