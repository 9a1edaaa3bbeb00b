"""What a round is made of: pieces of work of many streams, and what each gives.

Shape suffixes: K experts, V vocabulary, P fast weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import AdaptedState, Cursor
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.rows import Rows
from rlstm_model.scoring import TokenScores
from rlstm_model.state import State
from rlstm_model.vocab import InvalidToken, check_ids


@dataclass(frozen=True, eq=False)
class FrozenExperts:
    """A stream's experts at one moment.

    rows       what reads them
    delta_KP   fast weights of those that learn; None is zero for all
    cursor     where the stream was: the rows that are mixed, and with ``static`` the static one first
    static     whether that row's log-probabilities are wanted too
    """

    rows: Rows
    delta_KP: Tensor | None
    cursor: Cursor
    static: bool = False


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What guards decided over a part, for each of the rows that learn; empty where it was so for none.

    restarted  computed no distribution, and was read again without fast weights
    skipped    whose step was not finite, so that it kept its own fast weights
    scales     what its fast weights were cut back by after the step: 1 where they were not too great
    """

    restarted: tuple[bool, ...] = ()
    skipped: tuple[bool, ...] = ()
    scales: tuple[float, ...] = ()

    @classmethod
    def of(cls, taken: Sequence[bool], scales: Sequence[float]) -> "Decisions":
        """Those over a step."""
        return cls(
            skipped=() if all(taken) else tuple(not ok for ok in taken),
            scales=() if all(scale == 1 for scale in scales) else tuple(scales),
        )


@dataclass(frozen=True, eq=False)
class ObserveChunk:
    """The next tokens of a stream: at least one, and none beyond the end of its segment.

    ``learn``: whether they may be learned from; ``top`` alternatives are wanted of each. ``decided``: what
    the guards decided when the same part was done before; they do as then, whatever they would decide now.
    """

    state: AdaptedState
    ids: tuple[int, ...]
    learn: bool
    top: int
    evaluator: Learner
    decided: Decisions | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """What the rates of the rows that learn are multiplied with, beside the stream's own scale."""
        return self.state.expert_config.rates

    @cached_property
    def ends(self) -> bool:
        """Whether the segment ends here."""
        return (self.state.position + len(self.ids)) % self.evaluator.config.segment == 0

    @cached_property
    def flags(self) -> tuple[bool, ...]:
        """Whether each token of the segment so far may be learned from."""
        return self.state.pending_learn + (self.learn,) * len(self.ids)

    @cached_property
    def learns(self) -> bool:
        """Whether a step is taken after these tokens."""
        idle = self.evaluator.rule.idle or self.state.rate_scale == 0
        return self.ends and any(self.flags) and not idle


@dataclass(frozen=True, eq=False)
class ScoreChunk:
    """Tokens to be scored after ``cursor``: at least one, at most as many as a segment has.

    Nothing is learned, and the stream stays as it is. ``top`` alternatives are wanted of each.
    """

    reader: FrozenExperts
    cursor: Cursor
    ids: tuple[int, ...]
    top: int = 0


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """The cursor's token to be read, and the one after it to be predicted."""

    reader: FrozenExperts
    cursor: Cursor


BatchItem: TypeAlias = ObserveChunk | ScoreChunk | DecodeStep


def rows_of(work: BatchItem) -> Rows:
    """What reads a work's rows."""
    return work.evaluator.rows if isinstance(work, ObserveChunk) else work.reader.rows


def refusal(work: BatchItem) -> ValueError | None:
    """Why a work cannot be done, where its form tells: it reads nothing, no token, or too much."""
    if isinstance(work, DecodeStep):
        return None
    if not work.ids:
        return ValueError("a work has at least one token")
    try:
        check_ids(work.ids, rows_of(work).weights.model.config.vocab_size)
    except InvalidToken as error:
        return error
    if isinstance(work, ObserveChunk):
        segment = work.evaluator.config.segment
        if work.state.position % segment + len(work.ids) > segment:
            return ValueError("a part ends where its segment does")
        return _unfit(work)
    return None


def _unfit(part: ObserveChunk) -> ValueError | None:
    """Why decisions are none that could have been taken over a part."""
    rows, decided = len(part.rates), part.decided or Decisions()
    if any(len(own) not in (0, rows) for own in (decided.restarted, decided.skipped, decided.scales)):
        return ValueError(f"decisions are over the {rows} rows that learn")
    if not all(0 <= scale <= 1 for scale in decided.scales):
        return ValueError("fast weights are cut back by a factor of 0 to 1")
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedChunk:
    """What one part of a stream gave.

    scores           of the mixture, as the weights were before they saw these tokens
    static_logprobs  of the slow weights, float32 on the CPU; None where the static row is not carried
    updates          1 where a segment ended here and was learned from
    guards           what was kept from happening: "step_skipped", "projected", "restarted", once a row
    gradient_norms   of the rows whose segment ended here and was learned from, where they are finite
    norm_ratio       of the fast weights to the slow ones after the step, the greatest of all rows
    decisions        of the guards, to be followed when the part is done again
    """

    state: AdaptedState
    scores: TokenScores
    static_logprobs: Tensor | None
    updates: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    norm_ratio: float | None = None
    decisions: Decisions = Decisions()


class ScoredChunk(NamedTuple):
    """What a slice gave: the scores of its tokens, and the place after them.

    ``static_logprobs`` as in :class:`ObservedChunk`; None where the reader does not want them.
    """

    scores: TokenScores
    cursor: Cursor
    static_logprobs: Tensor | None = None

    @staticmethod
    def concatenate(parts: "Sequence[ScoredChunk]") -> "ScoredChunk":
        """Slices of one text, one after the other. Raises ValueError when there is none."""
        scores = TokenScores.concatenate([part.scores for part in parts])
        static = [part.static_logprobs for part in parts if part.static_logprobs is not None]
        return ScoredChunk(scores, parts[-1].cursor, torch.cat(static) if static else None)


@dataclass(frozen=True, eq=False)
class NextToken:
    """The next token's log-probabilities ``[V]``, and where the text goes on once it is chosen."""

    log_probs_V: Tensor
    experts_1KV: Tensor
    state: State
    before: Cursor

    def after(self, token: int) -> Cursor:
        """The place after ``token``; the mixture's weights follow it as they follow text."""
        weights = self.before.mixture
        if weights is not None:
            weights = mixture.read(weights, self.experts_1KV[None, :, :, token]).state
        return Cursor(self.state, token, weights)


BatchResult: TypeAlias = ObservedChunk | ScoredChunk | NextToken | Exception


def side_by_side(states: list[State]) -> State:
    """The rows of all states, copied: a view would keep the states of a whole pass alive."""
    if len(states) == 1:
        return State(states[0].h.clone(), states[0].c.clone())
    return State(*(torch.cat(parts, 1) for parts in zip(*states, strict=True)))
