"""The guard of a single expert: what a mixture does by itself, one that learns alone has to be told.

A mixture with a frozen baseline loses next to nothing to it, whatever the text (docs/adaptation.md §4). One
expert alone may lose without end, so where the baseline reads along its losses are compared with the
baseline's, segment by segment, since it was last ahead:

    excess <- max(0, excess + (its loss - the baseline's))

Above LIMIT its fast weights are reset, and the next segments are read without learning: FREEZE at first, and
twice as many each time. That bounds the whole loss too (docs/adaptation.md §5; a cumulative sum that is
tested against a limit: Page 1954).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LIMIT: Final = 16.0
"""Nats: what a mixture of four may lose over a million tokens, ln 4 + ln 1,000,001 = 15.2."""

FREEZE: Final = 16
"""Segments of the first freeze."""


class GuardedSegment(NamedTuple):
    """The guard after some tokens.

    lost    the fast weights are to be reset now
    frozen  a segment ended that was not to be learned from
    """

    guard: "LossGuard"
    lost: bool = False
    frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class LossGuard:
    """How an expert stands against the slow weights: a value, never written to.

    excess   nats lost to them since it was last ahead, over whole segments
    segment  nats lost to them in the unfinished segment; below 0 where it is ahead
    frozen   segments yet to be read without learning, the one that is being read among them
    freeze   how many it will be next time
    """

    excess: float = 0.0
    segment: float = 0.0
    frozen: int = 0
    freeze: int = FREEZE

    def after(
        self,
        logprobs: Sequence[float],
        static_logprobs: Sequence[float],
        *,
        ends: bool,
    ) -> GuardedSegment:
        """The guard after more tokens of a segment; ``ends`` says that they complete it.

        The sum is taken token by token, so that it is the same however a text is cut. Raises
        ValueError for columns of different lengths.
        """
        nats = self.segment
        for own, static in zip(logprobs, static_logprobs, strict=True):
            nats += static - own
        if not ends:
            return GuardedSegment(
                LossGuard(excess=self.excess, segment=nats, frozen=self.frozen, freeze=self.freeze)
            )
        if self.frozen:
            return GuardedSegment(LossGuard(frozen=self.frozen - 1, freeze=self.freeze), frozen=True)
        excess = max(0.0, self.excess + nats)
        if excess > LIMIT:
            return GuardedSegment(LossGuard(frozen=self.freeze, freeze=2 * self.freeze), lost=True)
        return GuardedSegment(LossGuard(excess=excess, freeze=self.freeze))
