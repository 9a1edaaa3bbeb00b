"""A walk that remembers its way, and the way back: back-propagation through time written out.

Time is walked once in each direction; each weight's gradient is then one matrix product over all steps and
rows, where automatic differentiation would add a weight-sized outer product at every step.
Shape suffixes: T time, L layers of the group, S steps of its wave, B batch rows, H hidden units.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlstm_model.cell_tape import CellDeltas, CellDeltaStep, CellSlopes, CellStep, CellTape, slopes
from rlstm_model.cells import Cell, StepGradients
from rlstm_model.mogrifier import (
    MogrifierDeltas,
    MogrifierTape,
    RoundDeltas,
    RoundStep,
    mogrified,
    mogrifier_gradients,
    mogrifier_slopes,
    mogrify_backward,
)
from rlstm_model.products import weight_gradient
from rlstm_model.walk import Group, GroupMasks, GroupState, Step, walk
from rlstm_model.wave import Flow, Wave, some_layers
from rlstm_model.weights import GroupWeights, LayerWeights

# Slopes are worked out for as many steps at once as a core's cache holds.
_CACHED_VALUES = 2**15


class Tape(NamedTuple):
    """What the way back needs; ``h_in`` ``[L, S, B, H]`` is the masked h that the layers read."""

    h_in: Tensor
    cell: CellTape
    mogrifier: MogrifierTape

    @classmethod
    def empty(cls, weights: GroupWeights, flow: Flow, *, masked: bool) -> "Tape":
        """Room for a window."""
        new = flow.h[:, 1:]
        h_in = torch.empty_like(new) if masked else flow.h[:, :-1]
        return cls(h_in, CellTape.empty(new, masked=masked), MogrifierTape.empty(weights.rounds, new))

    def steps(self, group: Group, flow: Flow) -> list[Step]:
        """The views of every step, to be walked."""
        hs = flow.h.unbind(1)
        cells, rounds = self.cell.steps(group.cell.blocks), self.mogrifier.steps()
        views = zip(flow.x.unbind(1), hs[:-1], self.h_in.unbind(1), hs[1:], cells, rounds, strict=True)
        return [Step(*view) for view in views]

    def flat(self) -> tuple[Tensor | None, ...]:
        """All tensors in one row, to be saved."""
        return (self.h_in, *self.cell, *self.mogrifier)

    @classmethod
    def from_flat(cls, tensors: Sequence[Any]) -> "Tape":
        """The tape whose :meth:`flat` this is."""
        size = len(CellTape._fields)
        return cls(tensors[0], CellTape(*tensors[1 : 1 + size]), MogrifierTape(*tensors[1 + size :]))

    def of(self, layer: int, steps: slice) -> "Tape":
        """One layer's, ``[T, B, ..]``."""
        low, gate, gated = self.mogrifier
        low = None if low is None else low[:, layer, steps]
        mogrifier = MogrifierTape(low, gate[:, layer, steps], gated[:, layer, steps])
        cell = CellTape(*(part[layer, steps] for part in self.cell))
        return Tape(self.h_in[layer, steps], cell, mogrifier)


class Deltas(NamedTuple):
    """What the way back fills in: loss gradients at x, and at what entered the cells' and rounds' gates.

    The latter two of all steps where weights take gradients from them. Else there is room for a few steps, to
    be overwritten by those before: what stays in a core's cache is done in half the time.
    ``out`` are those at h + M h, where rows add to their h, and else None.
    """

    x: Tensor
    cell: CellDeltas
    mogrifier: MogrifierDeltas
    out: Tensor | None

    @classmethod
    def empty(
        cls, layers: Sequence[LayerWeights], weights: GroupWeights, flow: Flow, at_once: int
    ) -> "Deltas":
        """Room for a window, or for ``at_once`` steps of it."""
        few = slice(min(at_once, flow.wave.steps))
        for_cell = flow.x if any(layer.cell.take_gradients for layer in layers) else flow.x[:, few]
        for_rounds = flow.x if any(layer.mogrifier.take_gradients for layer in layers) else flow.x[:, few]
        cell = CellDeltas(for_cell.new_empty(*for_cell.shape[:-1], 4 * for_cell.shape[-1]))
        out = None if weights.out is None else torch.empty_like(flow.x)
        return cls(torch.empty_like(flow.x), cell, MogrifierDeltas.empty(weights.rounds, for_rounds), out)

    def some(self, steps: slice) -> "Deltas":
        """Those of some steps, ``at_once`` at most."""
        few, all_steps = slice(steps.stop - steps.start), self.x.shape[1]
        cell = self.cell.some(steps if self.cell.gates.shape[1] == all_steps else few)
        mogrifier = self.mogrifier.some(steps if self.mogrifier.gate.shape[2] == all_steps else few)
        return Deltas(self.x[:, steps], cell, mogrifier, None if self.out is None else self.out[:, steps])

    def of(self, layer: int, steps: slice) -> "Deltas":
        """One layer's, ``[T, B, ..]``."""
        low, gate = self.mogrifier
        mogrifier = MogrifierDeltas(None if low is None else low[:, layer, steps], gate[:, layer, steps])
        out = None if self.out is None else self.out[layer, steps]
        return Deltas(self.x[layer, steps], CellDeltas(self.cell.gates[layer, steps]), mogrifier, out)


class StepBack(NamedTuple):
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
    d_out: Tensor | None


class WayBack(NamedTuple):
    """A window to be walked back. ``arriving`` ``[L, S, B, H]``; ``mask`` ``[L, B, H]``: of the state."""

    group: Group
    weights: GroupWeights
    flow: Flow
    tape: Tape
    deltas: Deltas
    arriving: Tensor
    mask: Tensor | None

    def walk(self, dh_LBH: Tensor, dc_LBH: Tensor, at_once: int) -> None:
        """All steps: fills in the deltas, and turns gradients at the last h and c into those at the first.

        Slopes are worked out for ``at_once`` steps.
        """
        wave = self.flow.wave
        for stop in range(wave.steps, 0, -at_once):
            steps = slice(max(0, stop - at_once), stop)
            views = self._views(steps, dh_LBH, dc_LBH)
            for s, view in reversed(list(zip(range(steps.start, stop), views, strict=True))):
                if wave.layers > 1:
                    self.flow.pass_down(s, self.arriving, self.deltas.x)
                step = StepBack(self.weights, self.mask, *view)
                if not wave.all_active(s):
                    step = some_layers(step, wave.active(s))
                _step_back(self.group.cell, step)

    def _views(self, steps: slice, dh_LBH: Tensor, dc_LBH: Tensor) -> list[tuple[Any, ...]]:
        cell, capped, cell_mask = self.group.cell, self.group.cell.capped, self.flow.mask
        taped, rounds = self.tape.cell.some(steps), self.tape.mogrifier.some(steps)
        deltas = self.deltas.some(steps)
        mogrifier_slopes(rounds, deltas.mogrifier)
        h = self.flow.h[:, 1:][:, steps] if deltas.out is None else taped.h
        return list(
            zip(
                slopes(taped, h, deltas.cell, capped=capped),
                taped.steps(cell.blocks),
                rounds.steps(),
                deltas.cell.steps(cell.blocks),
                deltas.mogrifier.steps(),
                [StepGradients(dx_LBH, dh_LBH, dc_LBH) for dx_LBH in deltas.x.unbind(1)],
                self.arriving[:, steps].unbind(1),
                [None] * len(deltas.x[0]) if cell_mask is None else cell_mask[:, steps].unbind(1),
                [None] * len(deltas.x[0]) if deltas.out is None else deltas.out.unbind(1),
                strict=True,
            )
        )


def _step_back(cell: Cell, step: StepBack) -> None:
    dx_LBH, dh_LBH, _ = step.gradients
    if step.cell_mask is None:
        dh_LBH.add_(step.arriving)
    else:
        dh_LBH.addcmul_(step.arriving, step.cell_mask)
    if step.weights.out is not None and step.d_out is not None:
        step.d_out.copy_(dh_LBH)
        step.weights.out.add_own(dh_LBH, dh_LBH)
    cell.backward(step.weights.cell, step.cell, step.slopes, step.cell_deltas, step.mask, step.gradients)
    mogrify_backward(step.weights.rounds, step.rounds, step.round_deltas, dx_LBH, dh_LBH)
    if step.mask is not None:
        dh_LBH.mul_(step.mask)


class Walked(NamedTuple):
    """A window that has been walked; ``mask`` ``[L, B, H]``: of the state."""

    group: Group
    layers: Sequence[LayerWeights]
    flow: Flow
    tape: Tape
    mask: Tensor | None

    @classmethod
    def forth(
        cls, group: Group, layers: Sequence[LayerWeights], x_TBH: Tensor, state: GroupState, masks: GroupMasks
    ) -> "Walked":
        """Read a window."""
        weights = GroupWeights.of(layers, group.precision)
        flow = Flow.begin(Wave(len(layers), len(x_TBH)), group.stacking, x_TBH, state.h, masks.cell)
        tape = Tape.empty(weights, flow, masked=masks.state is not None)
        flow.wave.first(tape.cell.c, state.c)
        walk(group, weights.transposed(), flow, tape.steps(group, flow), masks.state)
        return cls(group, layers, flow, tape, masks.state)

    @property
    def state(self) -> GroupState:
        """The last state: a copy."""
        return GroupState(self.flow.wave.last(self.flow.h), self.flow.wave.last(self.tape.cell.c))

    def back(
        self, d_out_TBH: Tensor, last: GroupState
    ) -> tuple[Tensor, GroupState, list[tuple[Tensor | None, ...]]]:
        """From loss gradients at what the group handed on, and at its last state, which is overwritten.

        To those at x, at the first state, and at each layer's weights in the order of
        :meth:`LayerWeights.flat`.
        """
        group, wave = self.group, self.flow.wave
        weights = GroupWeights.of(self.layers, group.precision)
        at_once = wave.steps if d_out_TBH.is_cuda else max(1, _CACHED_VALUES // last.h.numel())
        deltas = Deltas.empty(self.layers, weights, self.flow, at_once)
        arriving = self.flow.arrive(d_out_TBH)
        WayBack(group, weights, self.flow, self.tape, deltas, arriving, self.mask).walk(*last, at_once)
        gradients: list[tuple[Tensor | None, ...]] = []
        for layer, own in enumerate(self.layers):
            if not own.take_gradients:
                gradients.append((None,) * len(own.flat()))
                continue
            steps = wave.of(layer)
            x_TBH, tape, own_deltas = self.flow.x[steps], self.tape.of(*steps), deltas.of(*steps)
            gradients.append(_layer_gradients(group, own, x_TBH, tape, own_deltas))
        return deltas.x[wave.of(0)], last, gradients


def _layer_gradients(
    group: Group, own: LayerWeights, x_TBH: Tensor, tape: Tape, deltas: Deltas
) -> tuple[Tensor | None, ...]:
    """One layer's weight gradients, in the order of :meth:`LayerWeights.flat`."""
    x, h = mogrified(tape.mogrifier, x_TBH, tape.h_in)
    cell = group.cell.gradients(own.cell, tape.cell, deltas.cell.gates, x, h, group.precision)
    rounds = mogrifier_gradients(own.mogrifier, tape.mogrifier, deltas.mogrifier, tape.h_in, group.precision)
    out = None
    if own.out is not None and deltas.out is not None:
        out = weight_gradient(own.out, deltas.out, tape.cell.h, group.precision)
    return (*cell, *rounds, out)
