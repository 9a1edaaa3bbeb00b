"""The stack: mogrified recurrent layers, and what flows between them.

    xhat_l = h_l * M_cell,l               in_1 = embedding (it joins no sum)

    stacking    in_l, l >= 2              out
    residual    xhat_1 + .. + xhat_{l-1}  xhat_1 + .. + xhat_L
    skip        xhat_{l-1}                xhat_1 + .. + xhat_L
    plain       xhat_{l-1}                xhat_L

(Melis 2022, §3.2; mathematics: §1.2, §2.3.) ``step`` reads one token, ``sequence`` a window; they give the
same numbers. A window is read layer by layer, or in a wave over all layers: where every operation has its
price and little to do, on a GPU, the wave does as much in fewer.
Shape suffixes: T time, B batch rows, L layers, H hidden units.
"""

import torch
from torch import Tensor, nn

from rlstm_model.cells import Cell, CellWeights, LSTMCell, RLSTMCell
from rlstm_model.config import ModelConfig
from rlstm_model.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.mogrifier import MogrifierWeights
from rlstm_model.one_token import read_token
from rlstm_model.state import State
from rlstm_model.weights import LayerWeights
from rlstm_model.window import Group, GroupMasks, GroupState, read_window


class RecurrentLayer(nn.Module):
    """The weights of one mogrifier and one cell."""

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
        self.layers = nn.ModuleList(RecurrentLayer(config) for _ in range(config.num_layers))

    def step(self, x_BH: Tensor, state: State) -> tuple[Tensor, State]:
        """One token, without dropout: what the softmax reads, and the new state."""
        source, total, hs, cs = x_BH, None, [], []
        for layer, h, c in zip(self._layers(), state.h.unbind(), state.c.unbind(), strict=True):
            h, c = read_token(layer.weights, source, h, c, capped=layer.cell.capped)
            hs.append(h)
            cs.append(c)
            source, total = self._join(total, h)
        assert total is not None
        return total, State(torch.stack(hs), torch.stack(cs))

    def sequence(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
        wave: bool | None = None,
    ) -> tuple[Tensor, State]:
        """A window: what the softmax reads, ``[T, B, H]``, and the last state.

        ``precision`` is that of the factors of matrix products (None: of the weights): bfloat16 is faster.
        ``wave``: all layers step together; None chooses. Both change nothing but speed and rounding.
        """
        layers = self._layers()
        group = Group(layers[0].cell, self.stacking, precision or layers[0].x.dtype)
        together = x_TBH.is_cuda and len(x_TBH) > 1 if wave is None else wave
        size = len(layers) if together else 1
        source, total, states = x_TBH, None, []
        for start in range(0, len(layers), size):
            part = slice(start, start + size)
            output, last = read_window(
                group,
                [layer.weights for layer in layers[part]],
                source,
                GroupState(state.h[part], state.c[part]),
                GroupMasks(*(None if mask is None else mask[part] for mask in (masks.state, masks.cell))),
            )
            states.append(last)
            source, total = self._join(total, output)
        assert total is not None
        h, c = (torch.cat(parts) for parts in zip(*states, strict=True))
        return total, State(h, c)

    def _layers(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]

    def _join(self, total: Tensor | None, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the next layer reads, and what the softmax would, after one more layer's output."""
        if total is None or self.stacking == "plain":
            return output, output
        total = total + output
        return (total if self.stacking == "residual" else output), total


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))
