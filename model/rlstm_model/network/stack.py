"""The stack: mogrified recurrent layers, and what flows between them.

    xhat_l = h_l * M_cell,l               in_1 = embedding (it joins no sum)

    stacking    in_l, l >= 2              out
    residual    xhat_1 + .. + xhat_{l-1}  xhat_1 + .. + xhat_L
    skip        xhat_{l-1}                xhat_1 + .. + xhat_L
    plain       xhat_{l-1}                xhat_L

(Melis 2022, §3.2; docs/mathematics.md §1.2, §2.3.) ``step`` reads one token, ``sequence`` a window, layer by
layer; they give the same numbers.
Shape suffixes: T time, B batch rows, L layers, H hidden units.
"""

import torch
from torch import Tensor, nn

from rlstm_model.config import ModelConfig
from rlstm_model.network.cells import Cell, CellWeights, LSTMCell, RLSTMCell
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.mogrifier import MogrifierWeights
from rlstm_model.network.state import State
from rlstm_model.network.window import (
    LayerKind,
    LayerMasks,
    LayerState,
    LayerWeights,
    read_token,
    read_window,
)


class RecurrentLayer(nn.Module):
    """The weights of one mogrifier and one cell."""

    def __init__(self, config: ModelConfig, below: int, n: int) -> None:
        """``below`` is the width of what the layer reads, ``n`` its own."""
        super().__init__()
        rounds, rank = config.mogrifier_rounds, config.mogrifier_rank
        self.rlstm = config.cell == "rlstm"
        self.cell: Cell = RLSTMCell() if self.rlstm else LSTMCell(capped=config.cap_input_gate)
        self.x = _weight((2 if self.rlstm else 4) * n, below)
        self.h = _weight((3 if self.rlstm else 4) * n, n)
        self.u = _weight(n, n) if self.rlstm else None
        self.c = _weight(n, n) if self.rlstm else None
        self.bias = _weight(4 * n)
        self.mogrifier_up = _weight(rounds, n, rank or n)
        self.mogrifier_down = _weight(rounds, rank, n) if rank else None
        self.mogrifier_bias = _weight(rounds, n) if config.mogrifier_bias else None

    @property
    def weights(self) -> LayerWeights:
        """The cell's and the mogrifier's weights."""
        return LayerWeights(
            CellWeights(self.x, self.h, self.u, self.c, self.bias),
            MogrifierWeights(self.mogrifier_up, self.mogrifier_down, self.mogrifier_bias),
        )


class Stack(nn.Module):
    """L layers; ``config.stacking`` says what each of them and the softmax read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stacking = config.stacking
        self.widths = config.layer_widths
        self.layers = nn.ModuleList(RecurrentLayer(config, *widths) for widths in self.widths)

    def step(self, x_BH: Tensor, state: State) -> tuple[Tensor, State]:
        """One token, without dropout: what the softmax reads, and the new state."""
        source, total, states = x_BH, None, []
        for layer, (h, c) in zip(self._layers(), state.layers(self.widths), strict=True):
            h, c = read_token(layer.weights, source, h, c, capped=layer.cell.capped)
            states.append((h, c))
            source, total = self.join(total, h)
        assert total is not None
        return total, State.of(states)

    def sequence(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, State]:
        """A window: what the softmax reads, ``[T, B, H]``, and the last state.

        ``precision`` is that of the factors of matrix products (None: of the weights): bfloat16 is faster.
        """
        kind, source, total, states = self.kind(precision), x_TBH, None, []
        for index, (layer, before) in enumerate(zip(self._layers(), state.layers(self.widths), strict=True)):
            n = self.widths[index][1]
            drawn = (masks.state, masks.cell)
            own = LayerMasks(*(None if mask is None else mask[index, ..., :n] for mask in drawn))
            output, last = read_window(kind, layer.weights, source, LayerState(*before), own)
            states.append(last)
            source, total = self.join(total, output)
        assert total is not None
        return total, State.of(states)

    def kind(self, precision: torch.dtype | None) -> LayerKind:
        """What the layers are; ``precision`` None is that of the weights."""
        first = self._layers()[0]
        return LayerKind(first.cell, precision or first.x.dtype)

    def join(self, total: Tensor | None, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the next layer reads, and what the softmax would, after one more layer's output."""
        if total is None or self.stacking == "plain":
            return output, output
        total = total + output
        return (total if self.stacking == "residual" else output), total

    def arriving_below(self, arriving: Tensor, d_out: Tensor, d_read: Tensor) -> Tensor:
        """:meth:`join` backward: the loss gradient at the output of the layer below.

        From that at this layer's output, at what the softmax read, and at what this layer read.
        """
        if self.stacking == "plain":
            return d_read
        return (arriving if self.stacking == "residual" else d_out) + d_read

    def layer(self, index: int) -> LayerWeights:
        """The weights of one layer."""
        return self._layers()[index].weights

    def _layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))
