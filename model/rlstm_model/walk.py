"""Walking a group of layers through a window, one step after the other.

Shape suffixes: T time, L layers of the group, S steps of its wave, B batch rows, H hidden units.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.cell_tape import CellStep
from rlstm_model.cells import Cell
from rlstm_model.config import Stacking
from rlstm_model.mogrifier import RoundStep, mogrify
from rlstm_model.wave import Flow, some_layers
from rlstm_model.weights import GroupWeights


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


class Step(NamedTuple):
    """The views of one step: the x that comes in; the old h, the same masked, and the new."""

    x: Tensor
    h: Tensor
    h_in: Tensor
    h_new: Tensor
    cell: CellStep
    rounds: list[RoundStep]


def walk(
    group: Group, weights: GroupWeights, flow: Flow, steps: Sequence[Step], mask_LBH: Tensor | None
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
        if own.out is not None:
            own.out.add_own(step.h_new, step.h_new)
        if flow.wave.layers > 1:
            flow.pass_up(s)
