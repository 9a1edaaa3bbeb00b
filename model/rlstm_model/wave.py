"""The wave: layers of a group step together (mathematics: §1.5).

At step s layer l reads token t = s - l, so that all cells of a step are independent and their products are
done at once; a window of T tokens takes S = T + L - 1 steps. A group of one layer is plain layer by layer.
Shape suffixes: T time, L layers of the group, S steps, B batch rows, H hidden units.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlstm_model.config import Stacking


class Wave(NamedTuple):
    """Which layer reads which token when."""

    layers: int
    time: int

    @property
    def steps(self) -> int:
        """S."""
        return self.time + self.layers - 1

    def active(self, step: int) -> slice:
        """The layers that read a token at a step."""
        return slice(max(0, step - self.time + 1), min(self.layers, step + 1))

    def all_active(self, step: int) -> bool:
        """Whether that is every layer."""
        return self.layers - 1 <= step < self.time

    def below(self, step: int) -> slice:
        """The active layers that have another above them: it reads the same tokens at the next step."""
        active = self.active(step)
        return slice(active.start, min(active.stop, self.layers - 1))

    def of(self, layer: int) -> tuple[int, slice]:
        """Where a layer's tokens are in ``[L, S, ..]``."""
        return layer, slice(layer, layer + self.time)

    def skew(self, source_LTBH: Tensor) -> Tensor:
        """``[L, S, B, H]``: each layer's tokens at the steps that read them, zeros elsewhere."""
        if self.layers == 1:
            return source_LTBH
        skewed = source_LTBH.new_zeros(self.layers, self.steps, *source_LTBH.shape[2:])
        for layer in range(self.layers):
            skewed[self.of(layer)] = source_LTBH[layer]
        return skewed

    def first(self, buffer: Tensor, value_LBH: Tensor) -> None:
        """Put each layer's value before its first token into ``[L, S + 1, B, H]``."""
        for layer in range(self.layers):
            buffer[layer, layer] = value_LBH[layer]

    def last(self, buffer: Tensor) -> Tensor:
        """Each layer's value after its last token, from ``[L, S + 1, B, H]``: a copy."""
        return torch.stack([buffer[layer, layer + self.time] for layer in range(self.layers)])


class Flow(NamedTuple):
    """What flows between the layers of a group.

    ``x`` ``[L, S, B, H]`` goes in, raw ``h`` ``[L, S + 1, B, H]`` comes out; ``mask`` is the cell dropout
    mask ``[L, S, B, H]``.
    """

    wave: Wave
    stacking: Stacking
    x: Tensor
    h: Tensor
    mask: Tensor | None

    @classmethod
    def begin(
        cls, wave: Wave, stacking: Stacking, x_TBH: Tensor, h_LBH: Tensor, mask_LTBH: Tensor | None
    ) -> "Flow":
        """The flow before the first step; ``mask_LTBH`` is the cell dropout mask."""
        x = x_TBH.unsqueeze(0)
        if wave.layers > 1:
            x = x_TBH.new_empty(wave.layers, wave.steps, *x_TBH.shape[1:])
            x[wave.of(0)] = x_TBH
        h = x_TBH.new_empty(wave.layers, wave.steps + 1, *x_TBH.shape[1:])
        wave.first(h, h_LBH)
        return cls(wave, stacking, x, h, None if mask_LTBH is None else wave.skew(mask_LTBH))

    def pass_up(self, step: int) -> None:
        """After a step: what the layers above read at the next one."""
        below = self.wave.below(step)
        if below.start >= below.stop:
            return
        above = self.x[below.start + 1 : below.stop + 1, step + 1]
        output = self.h[below, step + 1]
        if self.mask is None:
            above.copy_(output)
        else:
            torch.mul(output, self.mask[below, step], out=above)
        if self.stacking == "residual":  # what the first layer reads is the embedding, which joins no sum
            first = max(1, below.start)
            above[first - below.start :].add_(self.x[first : below.stop, step])

    def out(self) -> Tensor:
        """What the group hands on, ``[T, B, H]``: the sum of all outputs, or with plain stacking the last."""
        outputs = []
        for layer in range(self.wave.layers - 1 if self.stacking == "plain" else 0, self.wave.layers):
            where = self.wave.of(layer)
            output = self.h[:, 1:][where]
            outputs.append(output if self.mask is None else output * self.mask[where])
        total = outputs[0]
        for output in outputs[1:]:
            total = total + output
        return total

    def arrive(self, d_out_TBH: Tensor) -> Tensor:
        """Loss gradients at the layers' outputs ``[L, S, B, H]``, as far as the group's own output tells."""
        if self.wave.layers == 1:
            return d_out_TBH.unsqueeze(0)
        arriving = torch.zeros_like(self.x)
        for layer in range(0 if self.stacking == "skip" else self.wave.layers - 1, self.wave.layers):
            arriving[self.wave.of(layer)] = d_out_TBH
        return arriving

    def pass_down(self, step: int, arriving: Tensor, dx_LSBH: Tensor) -> None:
        """Before a step of the way back: what the layers above, at the step after it, say of its outputs."""
        below = self.wave.below(step)
        if below.start >= below.stop:
            return
        above = slice(below.start + 1, below.stop + 1)
        arriving[below, step].add_(dx_LSBH[above, step + 1])
        if self.stacking == "residual":
            arriving[below, step].add_(arriving[above, step + 1])


def some_layers(value: Any, rows: slice) -> Any:
    """The same structure of tensors ``[L, ..]``, reduced to some of the layers."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value[rows]
    parts = [some_layers(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else parts
