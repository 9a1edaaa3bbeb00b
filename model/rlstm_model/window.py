"""A group of layers over a window, as one operation of automatic differentiation.

Shape suffixes: T time, L layers of the group, S steps of its wave, B batch rows, H hidden units.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlstm_model.cell_tape import CellStep
from rlstm_model.mogrifier import RoundStep
from rlstm_model.walk import Group, GroupMasks, GroupState, Step, walk
from rlstm_model.wave import Flow, Wave
from rlstm_model.way_back import Tape, Walked
from rlstm_model.weights import GroupWeights, LayerWeights


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
        Step(x, h, h if masked is None else masked, h_new, cell, rounds)
        for x, h, h_new in zip(flow.x.unbind(1), hs[:-1], hs[1:], strict=True)
    ]
    walk(group, weights.transposed(), flow, steps, masks.state)
    return flow.out(), GroupState(flow.wave.last(flow.h), cell.c)


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
        walked = Walked.forth(group, layers, x_TBH, GroupState(h_LBH, c_LBH), masks)
        flow, tape = walked.flow, walked.tape
        ctx.group, ctx.wave, ctx.split = group, flow.wave, len(flat)
        ctx.save_for_backward(*flat, masks.state, flow.x, flow.h, flow.mask, *tape.flat())
        return flow.out(), *walked.state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TBH: Tensor, dh_LBH: Tensor, dc_LBH: Tensor) -> tuple[Tensor | None, ...]:
        layers, (mask, x, h, cell_mask, *rest) = (
            LayerWeights.from_flat(ctx.saved_tensors[: ctx.split]),
            ctx.saved_tensors[ctx.split :],
        )
        flow = Flow(ctx.wave, ctx.group.stacking, x, h, cell_mask)
        walked = Walked(ctx.group, layers, flow, Tape.from_flat(rest), mask)
        dx_TBH, before, gradients = walked.back(d_out_TBH, GroupState(dh_LBH.clone(), dc_LBH.clone()))
        return None, None, dx_TBH, *before, *(gradient for layer in gradients for gradient in layer)
