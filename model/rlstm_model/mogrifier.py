"""Mogrification: the input and the hidden state gate each other in turn before the cell reads them.

    k odd :  x <- 2 sigma(Q_k h + q_k) * x
    k even:  h <- 2 sigma(R_k x + r_k) * h          k = 1 .. rounds

(Melis, Kocisky & Blunsom 2020; mathematics: §1.2.) Every layer and round has weights of its own.
Shape suffixes: B batch rows, H hidden units, R rounds, K rank.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class MogrifierWeights(NamedTuple):
    """The weights of one layer's rounds, stacked over rounds.

    ``up``: ``[R, H, K]`` and ``down``: ``[R, K, H]``, the factors of each round's matrix; at full rank
    ``up`` is the whole matrix ``[R, H, H]`` and ``down`` is None. ``bias``: ``[R, H]`` or None.
    """

    up: Tensor
    down: Tensor | None
    bias: Tensor | None

    @property
    def rounds(self) -> int:
        """The number of rounds R."""
        return self.up.shape[0]


class RoundTape(NamedTuple):
    """What the backward pass of one round needs: ``gate`` multiplied ``gated``; ``source`` made the gate."""

    source: Tensor
    low: Tensor
    gate: Tensor
    gated: Tensor


class RoundDeltas(NamedTuple):
    """Loss gradients at one round's affine map: at its output, and between its two factors."""

    gate: Tensor
    low: Tensor


def mogrify(weights: MogrifierWeights, x_BH: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor, list[RoundTape]]:
    """All rounds. Returns the mogrified x and h, and a tape for :func:`mogrify_backward`."""
    tape = []
    for k in range(weights.rounds):
        source, gated = (h_BH, x_BH) if k % 2 == 0 else (x_BH, h_BH)
        low = source if weights.down is None else source @ weights.down[k].t()
        if weights.bias is None:
            gate = torch.sigmoid(low @ weights.up[k].t()) * 2
        else:
            gate = torch.sigmoid(torch.addmm(weights.bias[k], low, weights.up[k].t())) * 2
        tape.append(RoundTape(source, low, gate, gated))
        if k % 2 == 0:
            x_BH = gate * gated
        else:
            h_BH = gate * gated
    return x_BH, h_BH, tape


def mogrify_backward(
    weights: MogrifierWeights, tape: list[RoundTape], dx_BH: Tensor, dh_BH: Tensor
) -> tuple[Tensor, Tensor, list[RoundDeltas]]:
    """Gradients at the x and h that entered :func:`mogrify`, from those at what left it."""
    deltas: list[RoundDeltas] = [RoundDeltas(dx_BH, dx_BH)] * len(tape)
    for k in reversed(range(len(tape))):
        gate, gated = tape[k].gate, tape[k].gated
        d_gated = dx_BH if k % 2 == 0 else dh_BH
        d_gate = d_gated * gated * gate * (1 - gate / 2)
        d_low = d_gate @ weights.up[k]
        d_source = d_low if weights.down is None else d_low @ weights.down[k]
        if k % 2 == 0:
            dx_BH, dh_BH = d_gated * gate, dh_BH + d_source
        else:
            dx_BH, dh_BH = dx_BH + d_source, d_gated * gate
        deltas[k] = RoundDeltas(d_gate, d_low)
    return dx_BH, dh_BH, deltas


def mogrifier_gradients(
    weights: MogrifierWeights, tapes: list[list[RoundTape]], deltas: list[list[RoundDeltas]]
) -> MogrifierWeights:
    """Weight gradients of a whole window: one product a matrix over all its steps and rows at once."""
    up, down, bias = [], [], []
    for k in range(weights.rounds):
        d_gate = torch.cat([step[k].gate for step in deltas])
        up.append(d_gate.t() @ torch.cat([step[k].low for step in tapes]))
        if weights.down is not None:
            d_low = torch.cat([step[k].low for step in deltas])
            down.append(d_low.t() @ torch.cat([step[k].source for step in tapes]))
        if weights.bias is not None:
            bias.append(d_gate.sum(0))
    return MogrifierWeights(
        torch.stack(up) if up else torch.zeros_like(weights.up),
        None if weights.down is None else (torch.stack(down) if down else torch.zeros_like(weights.down)),
        None if weights.bias is None else (torch.stack(bias) if bias else torch.zeros_like(weights.bias)),
    )
