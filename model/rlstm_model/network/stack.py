"""The stack: mogrified recurrent layers, and what flows between them.

    xhat_l = h_l * M_cell,l               in_1 = embedding (it joins no sum)

    stacking    in_l, l >= 2              out
    residual    xhat_1 + .. + xhat_{l-1}  xhat_1 + .. + xhat_L
    skip        xhat_{l-1}                xhat_1 + .. + xhat_L
    plain       xhat_{l-1}                xhat_L

(Melis 2022, §3.2; docs/mathematics.md §1.2, §2.3.) A window is read layer by layer.
Shape suffixes: T time, B batch rows, L layers, H hidden units.
"""

from collections.abc import Sequence

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
    LayerWeights,
    read_window,
)
from rlstm_model.parameters import shapes

_LAYER = (*CellWeights._fields, *(f"mogrifier_{name}" for name in MogrifierWeights._fields))


def layer_names(layer: int) -> list[str]:
    """The names of a layer's weights, in the order of :meth:`LayerWeights.flat`."""
    return [f"stack.layers.{layer}.{name}" for name in _LAYER]


class RecurrentLayer(nn.Module):
    """The weights of one mogrifier and one cell."""

    x: Tensor
    h: Tensor
    u: Tensor | None
    c: Tensor | None
    bias: Tensor
    mogrifier_up: Tensor
    mogrifier_down: Tensor | None
    mogrifier_bias: Tensor | None

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.cell: Cell = RLSTMCell() if config.cell == "rlstm" else LSTMCell(capped=config.cap_input_gate)
        known = shapes(config)
        for name in layer_names(layer):
            weight = nn.Parameter(torch.zeros(known[name])) if name in known else None
            self.register_parameter(name.rpartition(".")[2], weight)

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
        self.layers = nn.ModuleList(RecurrentLayer(config, layer) for layer in range(config.num_layers))

    def sequence(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
        weights: Sequence[LayerWeights] | None = None,
    ) -> tuple[Tensor, State]:
        """A window: what the softmax reads, ``[T, B, H]``, and the last state.

        ``precision`` is that of the factors of matrix products (None: of the weights): bfloat16 is faster.
        ``weights`` take the place of the layers' own.
        """
        layers = self._layers()
        kind = LayerKind(layers[0].cell, precision or layers[0].x.dtype)
        source, total, states = x_TBH, None, []
        for index, (layer, before) in enumerate(
            zip(weights or self.weights, state.layers(self.widths), strict=True)
        ):
            n = self.widths[index][1]
            drawn = (masks.state, masks.cell)
            own = LayerMasks(*(None if mask is None else mask[index, ..., :n] for mask in drawn))
            output, last = read_window(kind, layer, source, before, own)
            states.append(last)
            source, total = self.join(total, output)
        assert total is not None
        return total, State.of(states)

    def join(self, total: Tensor | None, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the next layer reads, and what the softmax would, after one more layer's output."""
        if total is None or self.stacking == "plain":
            return output, output
        total = total + output
        return (total if self.stacking == "residual" else output), total

    @property
    def weights(self) -> list[LayerWeights]:
        """Those of each layer."""
        return [layer.weights for layer in self._layers()]

    def _layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]
