"""A group of layers over a window: forward, and back-propagation through time written out.

Time is walked once in each direction; each weight's gradient is then one matrix product over all steps and
rows, where automatic differentiation would add a weight-sized outer product at every step.
Shape suffixes: T time, L layers of the group, S steps of its wave, B batch rows, H hidden units.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlstm_model.cell_tape import CellDeltas, CellDeltaStep, CellSlopes, CellStep, CellTape, slopes
from rlstm_model.cells import Cell, StepGradients
from rlstm_model.config import Stacking
from rlstm_model.mogrifier import (
    MogrifierDeltas,
    MogrifierTape,
    RoundDeltas,
    RoundStep,
    mogrified,
    mogrifier_gradients,
    mogrifier_slopes,
    mogrify,
    mogrify_backward,
)
from rlstm_model.wave import Flow, Wave, some_layers
from rlstm_model.weights import GroupWeights, LayerWeights

# Slopes are worked out for as many steps at once as a core's cache holds.
_CACHED_VALUES = 2**15


class Group(NamedTuple):
    """What a group of layers is, and the precision of the factors of its matrix products."""

    cell: Cell
    stacking: Stacking
    precision: torch.dtype


class GroupState(NamedTuple):
    """Raw h and c of the layers, ``[L, B, H]``."""

    h: Tensor
    c: Tensor


class GroupMasks(NamedTuple):
    """Dropout masks of a window: ``state`` ``[L, B, H]``, ``cell`` ``[L, T, B, H]``."""

    state: Tensor | None
    cell: Tensor | None


def read_window(
    group: Group, layers: Sequence[LayerWeights], x_TBH: Tensor, state: GroupState, masks: GroupMasks
) -> tuple[Tensor, GroupState]:
    """Read a window: what the group hands on, ``[T, B, H]``, and its last state.

    In code under ``torch.compile`` it stays a function of its own.
    """
    if torch.compiler.is_compiling():
        # Steps write into views of buffers, which a compiler would have to take apart: they run as they are.
        read: Callable[..., tuple[Tensor, GroupState]] = torch.compiler.disable(_read_window)  # type: ignore[no-untyped-call]
        return read(group, layers, x_TBH, state, masks)
    return _read_window(group, layers, x_TBH, state, masks)


def _read_window(
    group: Group, layers: Sequence[LayerWeights], x_TBH: Tensor, state: GroupState, masks: GroupMasks
) -> tuple[Tensor, GroupState]:
    if torch.is_grad_enabled():
        flat = [tensor for layer in layers for tensor in layer.flat()]
        out, h, c = _Window.apply(group, masks, x_TBH, *state, *flat)  # type: ignore[no-untyped-call]
        return out, GroupState(h, c)
    weights = GroupWeights.of(layers, group.precision)
    flow = Flow.begin(Wave(len(layers), len(x_TBH)), group.stacking, x_TBH, state.h, masks.cell)
    hs = flow.h.unbind(1)
    cell = CellStep.scratch(state.c, group.cell.blocks)
    rounds = RoundStep.scratch(weights.rounds, state.c)
    masked = None if masks.state is None else torch.empty_like(masks.state)
    steps = [
        _Step(x, h, h if masked is None else masked, h_new, cell, rounds)
        for x, h, h_new in zip(flow.x.unbind(1), hs[:-1], hs[1:], strict=True)
    ]
    _walk(group, weights.transposed(), flow, steps, masks.state)
    return flow.out(), GroupState(flow.wave.last(flow.h), cell.c)


class _Step(NamedTuple):
    """The views of one step: the x that comes in; the old h, the same masked, and the new."""

    x: Tensor
    h: Tensor
    h_in: Tensor
    h_new: Tensor
    cell: CellStep
    rounds: list[RoundStep]


def _walk(
    group: Group, weights: GroupWeights, flow: Flow, steps: Sequence[_Step], mask_LBH: Tensor | None
) -> None:
    """All steps of a window, with transposed weights."""
    for s, step in enumerate(steps):
        own, mask = weights, mask_LBH
        if not flow.wave.all_active(s):
            own, mask, step = some_layers((own, mask, step), flow.wave.active(s))
        if mask is not None:
            torch.mul(step.h, mask, out=step.h_in)
        x_LBH, h_LBH = mogrify(own.rounds, step.rounds, step.x, step.h_in)
        group.cell.step(own.cell, step.cell, x_LBH, h_LBH, mask)
        torch.mul(step.cell.o, step.cell.tanh_c, out=step.h_new)
        if flow.wave.layers > 1:
            flow.pass_up(s)


class _Tape(NamedTuple):
    """What the way back needs; ``h_in`` ``[L, S, B, H]`` is the masked h that the layers read."""

    h_in: Tensor
    cell: CellTape
    mogrifier: MogrifierTape

    @classmethod
    def empty(cls, weights: GroupWeights, flow: Flow, *, masked: bool) -> "_Tape":
        new = flow.h[:, 1:]
        h_in = torch.empty_like(new) if masked else flow.h[:, :-1]
        return cls(h_in, CellTape.empty(new, masked=masked), MogrifierTape.empty(weights.rounds, new))

    def steps(self, group: Group, flow: Flow) -> list[_Step]:
        hs = flow.h.unbind(1)
        cells, rounds = self.cell.steps(group.cell.blocks), self.mogrifier.steps()
        views = zip(flow.x.unbind(1), hs[:-1], self.h_in.unbind(1), hs[1:], cells, rounds, strict=True)
        return [_Step(*view) for view in views]

    def flat(self) -> tuple[Tensor | None, ...]:
        return (self.h_in, *self.cell, *self.mogrifier)

    @classmethod
    def from_flat(cls, tensors: Sequence[Any]) -> "_Tape":
        size = len(CellTape._fields)
        return cls(tensors[0], CellTape(*tensors[1 : 1 + size]), MogrifierTape(*tensors[1 + size :]))

    def of(self, layer: int, steps: slice) -> "_Tape":
        """One layer's, ``[T, B, ..]``."""
        low, gate, gated = self.mogrifier
        low = None if low is None else low[:, layer, steps]
        mogrifier = MogrifierTape(low, gate[:, layer, steps], gated[:, layer, steps])
        cell = CellTape(*(part[layer, steps] for part in self.cell))
        return _Tape(self.h_in[layer, steps], cell, mogrifier)


class _Deltas(NamedTuple):
    """What the way back fills in: loss gradients at x, and at what entered the cells' and rounds' gates."""

    x: Tensor
    cell: CellDeltas
    mogrifier: MogrifierDeltas

    @classmethod
    def empty(cls, weights: GroupWeights, flow: Flow, tape: _Tape) -> "_Deltas":
        cell = CellDeltas(torch.empty_like(tape.cell.gates))
        return cls(torch.empty_like(flow.x), cell, MogrifierDeltas.empty(weights.rounds, flow.x))

    def of(self, layer: int, steps: slice) -> "_Deltas":
        """One layer's, ``[T, B, ..]``."""
        low, gate = self.mogrifier
        mogrifier = MogrifierDeltas(None if low is None else low[:, layer, steps], gate[:, layer, steps])
        return _Deltas(self.x[layer, steps], CellDeltas(self.cell.gates[layer, steps]), mogrifier)


class _StepBack(NamedTuple):
    """The views of one step of the way back; ``arriving`` are loss gradients at the layers' outputs."""

    weights: GroupWeights
    mask: Tensor | None
    slopes: CellSlopes
    cell: CellStep
    rounds: list[RoundStep]
    cell_deltas: CellDeltaStep
    round_deltas: list[RoundDeltas]
    gradients: StepGradients
    arriving: Tensor
    cell_mask: Tensor | None


class _WayBack(NamedTuple):
    """A window to be walked back. ``arriving`` ``[L, S, B, H]``; ``mask`` ``[L, B, H]``: of the state."""

    group: Group
    weights: GroupWeights
    flow: Flow
    tape: _Tape
    deltas: _Deltas
    arriving: Tensor
    mask: Tensor | None

    def walk(self, dh_LBH: Tensor, dc_LBH: Tensor) -> None:
        """All steps: fills in the deltas, and turns gradients at the last h and c into those at the first."""
        wave, views = self.flow.wave, self._views(dh_LBH, dc_LBH)
        at_once = wave.steps if dh_LBH.is_cuda else max(1, _CACHED_VALUES // dh_LBH.numel())
        for stop in range(wave.steps, 0, -at_once):
            steps = range(max(0, stop - at_once), stop)
            for s, slope in reversed(list(zip(steps, self._slopes(slice(steps.start, stop)), strict=True))):
                if wave.layers > 1:
                    self.flow.pass_down(s, self.arriving, self.deltas.x)
                step = _StepBack(self.weights, self.mask, slope, *views[s])
                if not wave.all_active(s):
                    step = some_layers(step, wave.active(s))
                _step_back(self.group.cell, step)

    def _slopes(self, steps: slice) -> list[CellSlopes]:
        mogrifier_slopes(self.tape.mogrifier, self.deltas.mogrifier, steps)
        new = self.flow.h[:, 1:]
        return slopes(self.tape.cell, new, self.deltas.cell, steps, capped=self.group.cell.capped)

    def _views(self, dh_LBH: Tensor, dc_LBH: Tensor) -> list[tuple[Any, ...]]:
        blocks, cell_mask = self.group.cell.blocks, self.flow.mask
        return list(
            zip(
                self.tape.cell.steps(blocks),
                self.tape.mogrifier.steps(),
                self.deltas.cell.steps(blocks),
                self.deltas.mogrifier.steps(),
                [StepGradients(dx_LBH, dh_LBH, dc_LBH) for dx_LBH in self.deltas.x.unbind(1)],
                self.arriving.unbind(1),
                [None] * self.flow.wave.steps if cell_mask is None else cell_mask.unbind(1),
                strict=True,
            )
        )


def _step_back(cell: Cell, step: _StepBack) -> None:
    dx_LBH, dh_LBH, _ = step.gradients
    if step.cell_mask is None:
        dh_LBH.add_(step.arriving)
    else:
        dh_LBH.addcmul_(step.arriving, step.cell_mask)
    cell.backward(step.weights.cell, step.cell, step.slopes, step.cell_deltas, step.mask, step.gradients)
    mogrify_backward(step.weights.rounds, step.rounds, step.round_deltas, dx_LBH, dh_LBH)
    if step.mask is not None:
        dh_LBH.mul_(step.mask)


class _Window(torch.autograd.Function):
    """The group over a window, as one operation of automatic differentiation."""

    @staticmethod
    def forward(
        ctx: Any,
        group: Group,
        masks: GroupMasks,
        x_TBH: Tensor,
        h_LBH: Tensor,
        c_LBH: Tensor,
        *flat: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        layers = LayerWeights.from_flat(flat)
        weights = GroupWeights.of(layers, group.precision)
        flow = Flow.begin(Wave(len(layers), len(x_TBH)), group.stacking, x_TBH, h_LBH, masks.cell)
        tape = _Tape.empty(weights, flow, masked=masks.state is not None)
        flow.wave.first(tape.cell.c, c_LBH)
        _walk(group, weights.transposed(), flow, tape.steps(group, flow), masks.state)
        ctx.group, ctx.wave, ctx.split = group, flow.wave, len(flat)
        ctx.save_for_backward(*flat, masks.state, flow.x, flow.h, flow.mask, *tape.flat())
        return flow.out(), flow.wave.last(flow.h), flow.wave.last(tape.cell.c)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TBH: Tensor, dh_LBH: Tensor, dc_LBH: Tensor) -> tuple[Tensor | None, ...]:
        group, wave, saved = ctx.group, ctx.wave, ctx.saved_tensors
        layers, (mask, x, h, cell_mask, *rest) = (
            LayerWeights.from_flat(saved[: ctx.split]),
            saved[ctx.split :],
        )
        flow, tape = Flow(wave, group.stacking, x, h, cell_mask), _Tape.from_flat(rest)
        weights = GroupWeights.of(layers, group.precision)
        deltas = _Deltas.empty(weights, flow, tape)
        dh_LBH, dc_LBH = dh_LBH.clone(), dc_LBH.clone()
        _WayBack(group, weights, flow, tape, deltas, flow.arrive(d_out_TBH), mask).walk(dh_LBH, dc_LBH)
        gradients = [
            gradient
            for layer, own in enumerate(layers)
            for gradient in _gradients(
                group, own, x[wave.of(layer)], tape.of(*wave.of(layer)), deltas.of(*wave.of(layer))
            )
        ]
        return None, None, deltas.x[wave.of(0)], dh_LBH, dc_LBH, *gradients


def _gradients(
    group: Group, own: LayerWeights, x_TBH: Tensor, tape: _Tape, deltas: _Deltas
) -> tuple[Tensor | None, ...]:
    """One layer's weight gradients, in the order of :meth:`LayerWeights.flat`."""
    x, h = mogrified(tape.mogrifier, x_TBH, tape.h_in)
    cell = group.cell.gradients(tape.cell, deltas.cell.gates, x, h, group.precision)
    rounds = mogrifier_gradients(own.mogrifier, tape.mogrifier, deltas.mogrifier, tape.h_in, group.precision)
    return LayerWeights(cell, rounds).flat()
