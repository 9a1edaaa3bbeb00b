"""One layer over a window, forward and by back-propagation through time.

Time is walked once in each direction; each weight's gradient is then one matrix product over all steps and
rows, where automatic differentiation would add a weight-sized outer product at every step.
Shape suffixes: T time, S some steps, B batch rows, H hidden units.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlstm_model.network.cells import (
    Cell,
    CellActivations,
    CellDeltas,
    CellDerivatives,
    CellStep,
    CellWeights,
    StepGradients,
    cell_gradients,
    local_derivatives,
)
from rlstm_model.network.mogrifier import (
    MogrifierActivations,
    MogrifierDeltas,
    MogrifierWeights,
    mogrifier_gradients,
    mogrify,
    mogrify_backward,
)
from rlstm_model.network.products import Matrix
from rlstm_model.network.state import State

# Local derivatives are worked out for as many steps at once as a core's cache holds.
_CACHED_VALUES = 2**15


class LayerWeights(NamedTuple):
    """One layer's weights, in float32 or float64. Of other matrices than tensors the last part is learned."""

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

    def tensors(self) -> list[Tensor | None]:
        """All that they are made of, in one row."""
        return [part for w in self.flat() for part in (w if isinstance(w, tuple) else (w,))]

    def of(self, tensors: Iterable[Tensor | None]) -> "LayerWeights":
        """The same made of other tensors."""
        left: Any = iter(tensors)
        return self.from_flat(
            [type(w)(*islice(left, len(w))) if isinstance(w, tuple) else next(left) for w in self.flat()]
        )

    def spread(self, gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Gradients in the order of :meth:`flat` in that of :meth:`tensors`."""
        spread: list[Tensor | None] = []
        for weight, gradient in zip(self.flat(), gradients, strict=True):
            spread += [None] * (len(weight) - 1 if isinstance(weight, tuple) else 0) + [gradient]
        return spread


class LayerKind(NamedTuple):
    """What a layer is, and the precision of the factors of its matrix products."""

    cell: Cell
    precision: torch.dtype


class LayerMasks(NamedTuple):
    """Dropout masks of a window: ``state`` ``[B, H]``, ``cell`` ``[T, B, H]``."""

    state: Tensor | None = None
    cell: Tensor | None = None


class Step(NamedTuple):
    """The views of one step: the x that comes in; the old h, the same masked, and the new."""

    x: Tensor
    h: Tensor
    h_in: Tensor
    h_new: Tensor
    cell: CellStep
    rounds: list[MogrifierActivations]


class StepBack(NamedTuple):
    """The views of one step of the backward pass; ``arriving`` are loss gradients at the layer's output."""

    derivatives: CellDerivatives
    cell: CellStep
    rounds: list[MogrifierActivations]
    cell_deltas: CellDeltas
    round_deltas: list[MogrifierDeltas]
    gradients: StepGradients
    arriving: Tensor
    cell_mask: Tensor | None


class UnrolledLayer(NamedTuple):
    """A window that a layer has read, with the activations that the backward pass needs.

    ``x`` ``[T, B, H]`` went in; raw ``h`` ``[T + 1, B, H]``; ``h_in`` ``[T, B, H]`` is the masked h that was
    read.
    """

    kind: LayerKind
    layer: LayerWeights
    masks: LayerMasks
    x: Tensor
    h: Tensor
    h_in: Tensor
    cell: CellActivations
    mogrifier: MogrifierActivations

    @property
    def out(self) -> Tensor:
        """What the layer hands on, ``[T, B, H]``."""
        return self.h[1:] if self.masks.cell is None else self.h[1:] * self.masks.cell

    @property
    def state(self) -> State:
        """The last state: a copy."""
        return State(self.h[-1].clone(), self.cell.c[-1].clone())

    def backward(self, d_out_TBH: Tensor, last: State) -> tuple[Tensor, State, Sequence[Tensor | None]]:
        """From loss gradients at what the layer handed on, and at its last state, which is overwritten.

        To those at x, at the first state, and at the layer's weights in the order of
        :meth:`LayerWeights.flat`.
        """
        kind, layer, time = self.kind, self.layer, len(self.x)
        at_once = time if d_out_TBH.is_cuda else max(1, _CACHED_VALUES // last.h.numel())
        few = self.h_in[: min(at_once, time)]
        # Where weights take no gradients from them, deltas of a few steps are overwritten by those before:
        # what stays in a core's cache is done in half the time.
        for_cell = self.h_in if layer.cell.take_gradients else few
        d_x_TBH = torch.empty_like(self.x)
        d_gates = for_cell.new_empty(*for_cell.shape[:-1], 4 * for_cell.shape[-1])
        d_rounds = MogrifierDeltas.empty(
            layer.mogrifier, self.h_in if layer.mogrifier.take_gradients else few
        )
        cell, rounds = _factors(layer, kind.precision, transposed=False)
        for stop in range(time, 0, -at_once):
            steps = slice(max(0, stop - at_once), stop)
            some = slice(steps.stop - steps.start)
            views = self._views(
                steps,
                d_gates[steps if len(d_gates) == time else some],
                d_rounds.some(steps if d_rounds.gate.shape[1] == time else some),
                [StepGradients(dx_BH, *last) for dx_BH in d_x_TBH[steps].unbind()],
                d_out_TBH[steps],
            )
            for step in reversed(views):
                _step_back(kind.cell, cell, rounds, step, self.masks.state)
        return d_x_TBH, last, self._weight_gradients(d_gates, d_rounds)

    def _views(
        self,
        steps: slice,
        d_gates_SB4H: Tensor,
        d_rounds: MogrifierDeltas,
        gradients: Sequence[StepGradients],
        arriving_SBH: Tensor,
    ) -> list[StepBack]:
        cell, masks = self.kind.cell, self.masks.cell
        saved, rounds = self.cell.some(steps), self.mogrifier.some(steps)
        round_deltas = d_rounds.steps(rounds)
        views = zip(
            local_derivatives(saved, self.h[1:][steps], d_gates_SB4H, capped=cell.capped),
            saved.steps(cell.blocks),
            rounds.steps(),
            CellDeltas.steps(d_gates_SB4H, cell.blocks),
            round_deltas,
            gradients,
            arriving_SBH.unbind(),
            [None] * len(gradients) if masks is None else masks[steps].unbind(),
            strict=True,
        )
        return [StepBack(*view) for view in views]

    def _weight_gradients(self, d_gates: Tensor, d_rounds: MogrifierDeltas) -> Sequence[Tensor | None]:
        layer, precision = self.layer, self.kind.precision
        if not layer.take_gradients:
            return [None] * len(layer.flat())
        x, h = self.mogrifier.left(self.x, self.h_in)
        of_cell = cell_gradients(layer.cell, self.cell, d_gates, x, h, precision)
        return [
            *of_cell,
            *mogrifier_gradients(layer.mogrifier, self.mogrifier, d_rounds, self.h_in, precision),
        ]


def unroll(
    kind: LayerKind, layer: LayerWeights, x_TBH: Tensor, state: State, masks: LayerMasks
) -> UnrolledLayer:
    """Read a window and save its activations."""
    h = state.h.new_empty(len(x_TBH) + 1, *state.h.shape)  # raw, the first one in its place
    h[0] = state.h
    h_in = h[:-1] if masks.state is None else torch.empty_like(h[1:])
    cell = CellActivations.empty(h[1:], masked=masks.state is not None)
    cell.c[0] = state.c
    mogrifier = MogrifierActivations.empty(layer.mogrifier, h[1:])
    hs = h.unbind()
    views = zip(
        x_TBH.unbind(),
        hs[:-1],
        h_in.unbind(),
        hs[1:],
        cell.steps(kind.cell.blocks),
        mogrifier.steps(),
        strict=True,
    )
    _walk(kind, layer, [Step(*view) for view in views], masks.state)
    return UnrolledLayer(kind, layer, masks, x_TBH, h, h_in, cell, mogrifier)


def read_window(
    kind: LayerKind, layer: LayerWeights, x_TBH: Tensor, state: State, masks: LayerMasks
) -> tuple[Tensor, State]:
    """Read a window: what the layer hands on, ``[T, B, H]``, and its last state.

    In code under ``torch.compile`` it stays a function of its own.
    """
    tensors, apply = layer.tensors(), _Window.apply
    if torch.compiler.is_compiling():
        # Steps write into views of buffers, which a compiler would have to take apart: they run as they are.
        apply = torch.compiler.disable(apply)  # type: ignore[no-untyped-call]
    out, h, c = apply(kind, layer.of([None] * len(tensors)), masks, x_TBH, *state, *tensors)  # type: ignore[no-untyped-call]
    return out, State(h, c)


class _Window(torch.autograd.Function):
    """A layer over a window, as one operation of automatic differentiation."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: LayerKind,
        form: LayerWeights,
        masks: LayerMasks,
        x_TBH: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        read = unroll(kind, form.of(tensors), x_TBH, State(h_BH, c_BH), masks)
        ctx.kind, ctx.form, ctx.weights = kind, form, len(tensors)
        ctx.save_for_backward(*tensors, *masks, read.x, read.h, read.h_in, *read.cell, *read.mogrifier)
        return read.out, *read.state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TBH: Tensor, dh_BH: Tensor, dc_BH: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.form.of(ctx.saved_tensors[: ctx.weights])
        state, cell_mask, x, h, h_in, *saved = ctx.saved_tensors[ctx.weights :]
        size = len(CellActivations._fields)
        read = UnrolledLayer(
            ctx.kind,
            layer,
            LayerMasks(state, cell_mask),
            x,
            h,
            h_in,
            CellActivations(*saved[:size]),
            MogrifierActivations(*saved[size:]),
        )
        dx_TBH, first, gradients = read.backward(d_out_TBH, State(dh_BH.clone(), dc_BH.clone()))
        return None, None, None, dx_TBH, *first, *layer.spread(gradients)


def _factors(
    layer: LayerWeights, precision: torch.dtype, *, transposed: bool
) -> tuple[CellWeights, list[MogrifierWeights]]:
    cell = layer.cell.factors(precision, transposed=transposed)
    return cell, layer.mogrifier.factors(precision, transposed=transposed)


def _walk(kind: LayerKind, layer: LayerWeights, steps: Sequence[Step], mask_BH: Tensor | None) -> None:
    """All steps of a window, one after the other."""
    cell, rounds = _factors(layer, kind.precision, transposed=True)
    for step in steps:
        if mask_BH is not None:
            torch.mul(step.h, mask_BH, out=step.h_in)
        x_BH, h_BH = mogrify(rounds, step.rounds, step.x, step.h_in)
        kind.cell.step(cell, step.cell, x_BH, h_BH, mask_BH)
        torch.mul(step.cell.o, step.cell.tanh_c, out=step.h_new)


def _step_back(
    cell: Cell,
    weights: CellWeights,
    rounds: Sequence[MogrifierWeights],
    step: StepBack,
    mask_BH: Tensor | None,
) -> None:
    dx_BH, dh_BH, _ = step.gradients
    if step.cell_mask is None:
        dh_BH.add_(step.arriving)
    else:
        dh_BH.addcmul_(step.arriving, step.cell_mask)
    cell.backward(weights, step.cell, step.derivatives, step.cell_deltas, mask_BH, step.gradients)
    mogrify_backward(rounds, step.rounds, step.round_deltas, dx_BH, dh_BH)
    if mask_BH is not None:
        dh_BH.mul_(mask_BH)
