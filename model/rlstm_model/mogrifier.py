"""Mogrification: the input and the hidden state gate each other in turn before the cell reads them.

    k odd :  x <- 2 sigma(Q_k h + q_k) * x
    k even:  h <- 2 sigma(R_k x + r_k) * h          k = 1 .. rounds

(Melis, Kocisky & Blunsom 2020; mathematics: §1.2.) Every layer and round has weights of its own. As in the
cells, steps write where their window's tape keeps it, and slopes are worked out for several steps at once.
Shape suffixes: L layers, S steps, B batch rows, H hidden units, R rounds, K rank.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rlstm_model.products import (
    Matrix,
    ObservedMatrix,
    RowMatrix,
    add_product,
    affine,
    bias_gradient,
    bias_takes_gradient,
    product,
    takes_gradient,
    unbind,
    weight_gradient,
)

Step = TypeVar("Step")


class MogrifierWeights(NamedTuple):
    """The weights of one layer's rounds, stacked over rounds.

    ``up``: ``[R, H, K]`` and ``down``: ``[R, K, H]``, the factors of each round's matrix; at full rank
    ``up`` is the whole matrix ``[R, H, H]`` and ``down`` is None. ``bias``: ``[R, H]`` or None. Where rows
    have weights of their own, a matrix is a :class:`~rlstm_model.products.RowMatrix`, ``bias`` ``[R, B, H]``.
    """

    up: Matrix
    down: Matrix | None
    bias: Tensor | None

    @property
    def take_gradients(self) -> bool:
        """Whether there is any gradient to work out."""
        return bias_takes_gradient(self.bias, 2) or any(map(takes_gradient, (self.up, self.down)))


class RoundWeights(NamedTuple):
    """One round's weights of several layers: ``[L, H, K]``, ``[L, K, H]`` or None, ``[L, 1, H]`` or None."""

    up: Matrix
    down: Matrix | None
    bias: Tensor | None

    def transposed(self) -> "RoundWeights":
        """Views as a forward step multiplies with them: ``[L, K, H]`` and ``[L, H, K]``."""
        return RoundWeights(self.up.mT, None if self.down is None else self.down.mT, self.bias)


class RoundStep(NamedTuple):
    """One round of one step, ``[L, B, ..]``; see :class:`MogrifierTape`."""

    low: Tensor | None
    gate: Tensor
    gated: Tensor

    @classmethod
    def scratch(cls, weights: Sequence[RoundWeights], like_LBH: Tensor) -> list["RoundStep"]:
        """Room for the rounds of any number of steps that nothing goes back to."""
        low, gate = _low_and_gate(weights[:1], like_LBH)
        gated = like_LBH.new_empty(len(weights), *like_LBH.shape)
        return [cls(None if low is None else low[0], gate[0], own) for own in gated.unbind()]


class MogrifierTape(NamedTuple):
    """What the backward pass of a window needs.

    ``low`` ``[R, L, S, B, K]``, between the two factors, or None at full rank; ``gate`` ``[R, L, S, B, H]``,
    2 sigma; ``gated`` ``[R, L, S, B, H]``, the x or h that left each round.
    """

    low: Tensor | None
    gate: Tensor
    gated: Tensor

    @classmethod
    def empty(cls, weights: Sequence[RoundWeights], like_LSBH: Tensor) -> "MogrifierTape":
        """Room for a window."""
        low, gate = _low_and_gate(weights, like_LSBH)
        return cls(low, gate, torch.empty_like(gate))

    def some(self, steps: slice) -> "MogrifierTape":
        """Some steps."""
        low = None if self.low is None else self.low[:, :, steps]
        return MogrifierTape(low, self.gate[:, :, steps], self.gated[:, :, steps])

    def steps(self) -> list[list[RoundStep]]:
        """For every step, the views of its rounds."""
        return _by_step(RoundStep, self.gate, self)


class RoundDeltas(NamedTuple):
    """One round of one step, ``[L, B, ..]``; see :class:`MogrifierDeltas`."""

    low: Tensor | None
    gate: Tensor


class MogrifierDeltas(NamedTuple):
    """Loss gradients: ``low`` between the two factors, ``gate`` before the sigmoid; shapes as in the tape.

    Until the backward pass reaches a step, its ``gate`` holds slopes: derivatives of ``gated`` by it.
    """

    low: Tensor | None
    gate: Tensor

    @classmethod
    def empty(cls, weights: Sequence[RoundWeights], like_LSBH: Tensor) -> "MogrifierDeltas":
        """Room for so many steps."""
        return cls(*_low_and_gate(weights, like_LSBH))

    def some(self, steps: slice) -> "MogrifierDeltas":
        """Those of some steps."""
        return MogrifierDeltas(None if self.low is None else self.low[:, :, steps], self.gate[:, :, steps])

    def steps(self) -> list[list[RoundDeltas]]:
        """For every step, the views of its rounds."""
        return _by_step(RoundDeltas, self.gate, self)


def mogrify(
    weights: Sequence[RoundWeights], steps: Sequence[RoundStep], x_LBH: Tensor, h_LBH: Tensor
) -> tuple[Tensor, Tensor]:
    """All rounds of a step, with transposed weights. Returns the mogrified x and h, kept in ``steps``."""
    for k, (weight, step) in enumerate(zip(weights, steps, strict=True)):
        source, gated = (h_LBH, x_LBH) if k % 2 == 0 else (x_LBH, h_LBH)
        if weight.down is not None and step.low is not None:
            product(source, weight.down, step.low)
            source = step.low
        affine(weight.bias, source, weight.up, step.gate)
        step.gate.sigmoid_()
        step.gate.add_(step.gate)  # twice: a product with a Python number would take longer
        torch.mul(step.gate, gated, out=step.gated)
        if k % 2 == 0:
            x_LBH = step.gated
        else:
            h_LBH = step.gated
    return x_LBH, h_LBH


def mogrifier_slopes(tape: MogrifierTape, deltas: MogrifierDeltas) -> None:
    """Fill in the slopes of the tape's steps: y (1 - sigma), where y = 2 sigma(a) z left a round."""
    torch.addcmul(tape.gated, tape.gated, tape.gate, value=-0.5, out=deltas.gate)


def mogrify_backward(
    weights: Sequence[RoundWeights],
    steps: Sequence[RoundStep],
    deltas: Sequence[RoundDeltas],
    dx_LBH: Tensor,
    dh_LBH: Tensor,
) -> None:
    """Turn gradients at the x and h that left a step's rounds into those at what entered them, in place.

    ``deltas``, which came in as slopes, become loss gradients.
    """
    for k in reversed(range(len(weights))):
        d_gated, d_source = (dx_LBH, dh_LBH) if k % 2 == 0 else (dh_LBH, dx_LBH)
        weight, (d_low, delta) = weights[k], deltas[k]
        delta.mul_(d_gated)
        d_gated.mul_(steps[k].gate)
        if weight.down is None or d_low is None:
            add_product(d_source, delta, weight.up)
        else:
            product(delta, weight.up, d_low)
            add_product(d_source, d_low, weight.down)


def mogrified(tape: MogrifierTape, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """What the cell read, of one layer's tape ``[R, T, B, ..]``: the last x and h that left a round."""
    rounds = len(tape.gated)
    last_odd, last_even = (rounds - 1) // 2 * 2, rounds // 2 * 2 - 1
    return (tape.gated[last_odd] if rounds > 0 else x), (tape.gated[last_even] if rounds > 1 else h)


class MogrifierGradients(NamedTuple):
    """Gradients of :class:`MogrifierWeights`, in their order; None for weights that take none."""

    up: Tensor | None
    down: Tensor | None
    bias: Tensor | None


def mogrifier_gradients(
    weights: MogrifierWeights,
    tape: MogrifierTape,
    deltas: MogrifierDeltas,
    h_TBH: Tensor,
    precision: torch.dtype,
) -> MogrifierGradients:
    """One layer's weight gradients, from its tape ``[R, T, B, ..]``; ``h_TBH`` entered the first round."""
    sources = (h_TBH, *tape.gated)[: len(tape.gated)]
    lows = sources if tape.low is None else tuple(tape.low)
    d_lows = () if deltas.low is None else tuple(deltas.low)
    return MogrifierGradients(
        up=_round_gradients(weights.up, tuple(deltas.gate), lows, precision),
        down=_round_gradients(weights.down, d_lows, sources, precision),
        bias=_bias_gradients(weights.bias, tuple(deltas.gate)),
    )


def _round_gradients(
    weight: Matrix | None, deltas: Sequence[Tensor], sources: Sequence[Tensor], precision: torch.dtype
) -> Tensor | None:
    if weight is None or not takes_gradient(weight):
        return None
    rounds = zip(unbind(weight, 0), deltas, sources, strict=True)
    like = weight.shared if isinstance(weight, ObservedMatrix) else weight
    like = like.core if isinstance(like, RowMatrix) else like
    return _stacked([weight_gradient(*each, precision) for each in rounds], like)


def _bias_gradients(bias: Tensor | None, deltas: Sequence[Tensor]) -> Tensor | None:
    if bias is None or not bias_takes_gradient(bias, 2):
        return None
    return _stacked([bias_gradient(*each) for each in zip(bias, deltas, strict=True)], bias)


def _stacked(gradients: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.stack(list(gradients)) if gradients else torch.zeros_like(like)


def _low_and_gate(weights: Sequence[RoundWeights], like: Tensor) -> tuple[Tensor | None, Tensor]:
    gate = like.new_empty(len(weights), *like.shape)
    if not weights or weights[0].down is None:
        return None, gate
    return gate.new_empty(*gate.shape[:-1], weights[0].up.shape[-1]), gate


def _by_step(kind: Callable[..., Step], gate: Tensor, fields: Iterable[Tensor | None]) -> list[list[Step]]:
    """From ``[R, L, S, ..]`` tensors to a list over steps of lists over rounds of ``[L, ..]`` views."""
    rounds, steps = len(gate), gate.shape[2]
    views = [
        [[None] * steps] * rounds if field is None else [part.unbind(1) for part in field] for field in fields
    ]
    return [[kind(*(view[k][s] for view in views)) for k in range(rounds)] for s in range(steps)]
