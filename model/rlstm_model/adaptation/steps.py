"""What a round's gradients make of the streams: one step of the rule for all rows, and its guards.

Shape suffixes: N rows of a pass, K rows of a stream that learn, P fast weights.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from rlstm_model.adaptation.batch_items import Decisions, ObserveChunk
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.rows import Taught
from rlstm_model.adaptation.rules import Decided

MAX_BAD_STEPS = 3


class Stepped(NamedTuple):
    """What a step made of a stream.

    delta_KP        after it; the value that there was where no row took it
    bad_steps       for each row, steps skipped in a row
    lost            which rows have skipped too many, and must restart
    updates, guards, gradient_norms, norm_ratio, decisions   see
                    :class:`~rlstm_model.adaptation.batch_items.ObservedChunk`
    """

    delta_KP: Tensor | None
    bad_steps: tuple[int, ...]
    lost: tuple[bool, ...]
    updates: int
    guards: tuple[str, ...]
    gradient_norms: tuple[float, ...]
    norm_ratio: float | None
    decisions: Decisions


class _Figures(NamedTuple):
    """What became of rows, as numbers."""

    taken: list[bool]
    scales: list[float]
    norm_ratios: list[float]
    gradient_norms: list[float]

    def of(self, rows: slice) -> "_Figures":
        """Those of some rows."""
        return _Figures(
            self.taken[rows], self.scales[rows], self.norm_ratios[rows], self.gradient_norms[rows]
        )


def step(learner: Learner, parts: Sequence[ObserveChunk], taught: Taught) -> Iterator[Stepped]:
    """The step of each part, all at once: their rows lie one after the other in ``taught``."""
    # Padding takes the step too: how many rows a norm is taken of may change its last bits.
    gradient_NP, delta_NP = taught.gradient_NP, taught.delta_NP
    if delta_NP is None:
        delta_NP = learner.fast_weights.zero(len(gradient_NP))
    rates = [min(part.state.rate_scale * rate, sys.float_info.max) for part in parts for rate in part.rates]
    more = len(gradient_NP) - len(rates)
    decided = [*(own for part in parts for own in _decided(part)), *more * [None]]
    steps = learner.rule.step(delta_NP, gradient_NP, [*rates, *more * [0.0]], decided)
    figures = _Figures(steps.taken, steps.scales, steps.norm_ratios, steps.gradient_norms)
    first = 0
    for part in parts:
        own = slice(first, first + len(part.rates))
        yield _stepped(part, steps.delta_NP[own], figures.of(own))
        first = own.stop


def _decided(part: ObserveChunk) -> Sequence[Decided | None]:
    """What is known of the rows that learn, where the part was done before."""
    if part.decided is None:
        return [None] * len(part.rates)
    skipped = part.decided.skipped or [False] * len(part.rates)
    scales = part.decided.scales or [1.0] * len(part.rates)
    return [Decided(not own, scale) for own, scale in zip(skipped, scales, strict=True)]


def _stepped(part: ObserveChunk, after_KP: Tensor, rows: _Figures) -> Stepped:
    bad_steps = [0 if ok else bad + 1 for ok, bad in zip(rows.taken, part.state.bad_steps, strict=True)]
    lost = tuple(bad == MAX_BAD_STEPS for bad in bad_steps)
    guards = [
        *("step_skipped" for taken in rows.taken if not taken),
        *("projected" for scale, taken in zip(rows.scales, rows.taken, strict=True) if taken and scale != 1),
        *("restarted" for row in lost if row),
    ]
    ratios = [ratio for ratio, taken in zip(rows.norm_ratios, rows.taken, strict=True) if taken]
    return Stepped(
        delta_KP=_own(after_KP) if any(rows.taken) else part.state.delta_KP,
        bad_steps=tuple(bad_steps),
        lost=lost,
        updates=int(any(rows.taken)),
        guards=tuple(guards),
        gradient_norms=tuple(norm for norm in rows.gradient_norms if math.isfinite(norm)),
        norm_ratio=max(ratios, default=None),
        decisions=Decisions.of(rows.taken, rows.scales),
    )


def _own(delta_KP: Tensor) -> Tensor:
    """A value that keeps nothing else alive: a copy, unless it is all there is."""
    whole = delta_KP.untyped_storage().nbytes() == delta_KP.nbytes
    return delta_KP if whole else delta_KP.clone()
