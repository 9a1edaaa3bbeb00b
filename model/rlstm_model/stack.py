"""The stack: mogrified recurrent layers, and what flows between them.

    xhat_l = h_l * M_cell,l               in_1 = embedding (it joins no sum)

    stacking    in_l, l >= 2              out
    residual    xhat_1 + .. + xhat_{l-1}  xhat_1 + .. + xhat_L
    skip        xhat_{l-1}                xhat_1 + .. + xhat_L
    plain       xhat_{l-1}                xhat_L

(Melis 2022, §3.2; mathematics: §1.2, §2.3.) ``step`` reads one token, ``sequence`` a window layer by layer;
they give the same numbers. A window's backward pass is written out by hand: time is walked once, and
each weight's gradient is then one matrix product over all steps and rows, where automatic
differentiation would add a weight-sized outer product at every step.
Shape suffixes: T time, B batch rows, L layers, H hidden units.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlstm_model.cells import Cell, CellDeltas, CellTape, CellWeights, LSTMCell, RLSTMCell
from rlstm_model.config import ModelConfig
from rlstm_model.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.mogrifier import (
    MogrifierWeights,
    RoundDeltas,
    RoundTape,
    mogrifier_gradients,
    mogrify,
    mogrify_backward,
)
from rlstm_model.state import State


class RecurrentLayer(nn.Module):
    """One mogrifier and one cell. Reads x and its own (h, c)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        n, rounds, rank = config.hidden_size, config.mogrifier_rounds, config.mogrifier_rank
        self.rlstm = config.cell == "rlstm"
        self.cell: Cell = RLSTMCell() if self.rlstm else LSTMCell(capped=config.cap_input_gate)
        self.x = _weight((2 if self.rlstm else 4) * n, n)
        self.h = _weight((3 if self.rlstm else 4) * n, n)
        self.u = _weight(n, n) if self.rlstm else None
        self.c = _weight(n, n) if self.rlstm else None
        self.bias = _weight(4 * n)
        self.mogrifier_up = _weight(rounds, n, rank or n)
        self.mogrifier_down = _weight(rounds, rank, n) if rank else None
        self.mogrifier_bias = _weight(rounds, n) if config.mogrifier_bias else None

    @property
    def cell_weights(self) -> CellWeights:
        """The cell's weights."""
        return CellWeights(self.x, self.h, self.u, self.c, self.bias)

    @property
    def mogrifier_weights(self) -> MogrifierWeights:
        """The mogrifier's weights."""
        return MogrifierWeights(self.mogrifier_up, self.mogrifier_down, self.mogrifier_bias)

    def step(
        self, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, mask_BH: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One token: the new h and c. ``mask_BH`` is the state dropout mask of the window."""
        h_BH, c_BH, _ = _forward_step(
            self.cell, self.cell_weights, self.mogrifier_weights, x_BH, h_BH, c_BH, mask_BH
        )
        return h_BH, c_BH

    def sequence(
        self, x_TBH: Tensor, h_BH: Tensor, c_BH: Tensor, mask_BH: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A window: h after every step ``[T, B, H]``, and the last c."""
        weights = (*self.cell_weights, *self.mogrifier_weights)
        if torch.is_grad_enabled():
            outputs_and_c: tuple[Tensor, Tensor] = _LayerOverTime.apply(  # type: ignore[no-untyped-call]
                self.cell, mask_BH, x_TBH, h_BH, c_BH, *weights
            )
            return outputs_and_c
        outputs = []
        for x_BH in x_TBH.unbind():
            h_BH, c_BH = self.step(x_BH, h_BH, c_BH, mask_BH)
            outputs.append(h_BH)
        return torch.stack(outputs), c_BH


class Stack(nn.Module):
    """L layers; ``config.stacking`` says what each of them and the softmax read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stacking = config.stacking
        self.layers = nn.ModuleList(RecurrentLayer(config) for _ in range(config.num_layers))

    def step(self, x_BH: Tensor, state: State) -> tuple[Tensor, State]:
        """One token, without dropout: what the softmax reads, and the new state."""
        source, total, hs, cs = x_BH, None, [], []
        for index, layer in enumerate(self._layers()):
            h, c = layer.step(source, state.h[index], state.c[index])
            hs.append(h)
            cs.append(c)
            source, total = self._join(total, h)
        assert total is not None
        return total, State(torch.stack(hs), torch.stack(cs))

    def sequence(self, x_TBH: Tensor, state: State, masks: DropoutMasks = NO_DROPOUT) -> tuple[Tensor, State]:
        """A window: what the softmax reads, ``[T, B, H]``, and the last state."""
        source, total, hs, cs = x_TBH, None, [], []
        for index, layer in enumerate(self._layers()):
            outputs, c = layer.sequence(
                source,
                state.h[index],
                state.c[index],
                None if masks.state is None else masks.state[index],
            )
            hs.append(outputs[-1])
            cs.append(c)
            if masks.cell is not None:
                outputs = outputs * masks.cell[index]
            source, total = self._join(total, outputs)
        assert total is not None
        return total, State(torch.stack(hs), torch.stack(cs))

    def _join(self, total: Tensor | None, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the next layer reads, and what the softmax would, after one more layer's output."""
        if total is None or self.stacking == "plain":
            return output, output
        total = total + output
        return (total if self.stacking == "residual" else output), total

    def _layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def _forward_step(
    cell: Cell,
    cell_weights: CellWeights,
    mogrifier_weights: MogrifierWeights,
    x_BH: Tensor,
    h_BH: Tensor,
    c_BH: Tensor,
    mask_BH: Tensor | None,
) -> tuple[Tensor, Tensor, tuple[list[RoundTape], CellTape]]:
    masked_h = h_BH if mask_BH is None else h_BH * mask_BH
    x_BH, masked_h, rounds = mogrify(mogrifier_weights, x_BH, masked_h)
    h_BH, c_BH, tape = cell.step(cell_weights, x_BH, masked_h, c_BH, mask_BH)
    return h_BH, c_BH, (rounds, tape)


class _LayerOverTime(torch.autograd.Function):
    """One layer over a window, with back-propagation through time written out."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        mask_BH: Tensor | None,
        x_TBH: Tensor,
        h_BH: Tensor,
        c_BH: Tensor,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.cell, ctx.mask = cell, mask_BH
        ctx.cell_weights = CellWeights(*weights[:5])  # type: ignore[arg-type]
        ctx.mogrifier_weights = MogrifierWeights(*weights[5:])  # type: ignore[arg-type]
        outputs, ctx.tapes = [], []
        for x_BH in x_TBH.unbind():
            h_BH, c_BH, tape = _forward_step(
                cell, ctx.cell_weights, ctx.mogrifier_weights, x_BH, h_BH, c_BH, mask_BH
            )
            outputs.append(h_BH)
            ctx.tapes.append(tape)
        # A copy: the last tape holds c itself, and a context that holds its own output is never freed.
        return torch.stack(outputs), c_BH.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_TBH: Tensor, dc_BH: Tensor) -> tuple[Tensor | Cell | None, ...]:
        cell, mask = ctx.cell, ctx.mask
        dh_BH = torch.zeros_like(dh_TBH[0])
        dx_TBH = torch.empty_like(dh_TBH)
        cell_deltas: list[CellDeltas] = []
        round_deltas: list[list[RoundDeltas]] = []
        for t in reversed(range(len(ctx.tapes))):
            rounds, tape = ctx.tapes[t]
            dx_BH, dh_BH, dc_BH, deltas = cell.backward(
                ctx.cell_weights, tape, dh_BH + dh_TBH[t], dc_BH, mask
            )
            dx_TBH[t], dh_BH, gate_deltas = mogrify_backward(ctx.mogrifier_weights, rounds, dx_BH, dh_BH)
            if mask is not None:
                dh_BH = dh_BH * mask
            cell_deltas.append(deltas)
            round_deltas.append(gate_deltas)
        rounds_TR = [rounds for rounds, _ in reversed(ctx.tapes)]
        tapes_T = [tape for _, tape in reversed(ctx.tapes)]
        cell_gradients = cell.gradients(ctx.cell_weights, tapes_T, cell_deltas)
        mogrifier = mogrifier_gradients(ctx.mogrifier_weights, rounds_TR, round_deltas)
        return None, None, dx_TBH, dh_BH, dc_BH, *cell_gradients, *mogrifier
