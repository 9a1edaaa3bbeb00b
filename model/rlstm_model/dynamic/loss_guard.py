"""The watch over a single expert: what a mixture does by itself, one that learns alone has to be told.

A mixture with a static expert loses next to nothing to the slow weights, whatever the text (adaptation: §4).
One expert alone may lose without end, so where the slow weights read along its losses are compared with
theirs, segment by segment, since it was last ahead:

    excess <- max(0, excess + (its loss - theirs))

Above LIMIT its fast weights are reset, and the next segments are read without learning: FREEZE at first, and
twice as many each time, so that a text that cannot be learned from is soon hardly ever tried. While it is
frozen it is the static model. Hence for a text of T segments, of which the worst costs w nats more than the
slow weights, the whole loss is at most n (LIMIT + w) + LIMIT more than theirs, with n <= log2(T / FREEZE + 1)
+ 1 resets. (A cumulative sum that is tested against a limit: Page 1954.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LIMIT: Final = 16.0
"""Nats: what a mixture of four may lose over a million tokens, ln 4 + ln 1,000,001 = 15.2."""

FREEZE: Final = 16
"""Segments of the first freeze."""


class GuardedSegment(NamedTuple):
    """A watch after some tokens.

    lost    the fast weights are to be reset now
    frozen  a segment ended that was not to be learned from
    """

    watch: "LossGuard"
    lost: bool = False
    frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class LossGuard:
    """How an expert stands against the slow weights: a value, never written to.

    excess   nats lost to them since it was last ahead, over whole segments
    segment  nats lost to them in the unfinished segment; below 0 where it is ahead
    frozen   segments yet to be read without learning
    freeze   how many it will be next time
    """

    excess: float = 0.0
    segment: float = 0.0
    frozen: int = 0
    freeze: int = FREEZE

    @property
    def learns(self) -> bool:
        """Whether the segment that is being read may be learned from."""
        return self.frozen == 0

    def after(
        self,
        logprobs: Sequence[float],
        static_logprobs: Sequence[float],
        *,
        ends: bool,
        lost: bool | None = None,
    ) -> GuardedSegment:
        """The watch after more tokens of a segment; ``ends`` says that they complete it.

        The sum is taken token by token, so that it is the same however a text is cut. ``lost``: whether the
        fast weights were reset here when the same tokens were read before; they are as then, whatever the sum
        says now. Raises ValueError for columns of different lengths.
        """
        nats = self.segment
        for own, static in zip(logprobs, static_logprobs, strict=True):
            nats += static - own
        if not ends:
            return GuardedSegment(
                LossGuard(excess=self.excess, segment=nats, frozen=self.frozen, freeze=self.freeze)
            )
        if not self.learns:
            return GuardedSegment(LossGuard(frozen=self.frozen - 1, freeze=self.freeze), frozen=True)
        excess = max(0.0, self.excess + nats)
        if excess > LIMIT if lost is None else lost:
            return GuardedSegment(LossGuard(frozen=self.freeze, freeze=2 * self.freeze), lost=True)
        return GuardedSegment(LossGuard(excess=excess, freeze=self.freeze))
