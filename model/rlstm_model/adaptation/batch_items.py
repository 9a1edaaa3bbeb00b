"""What a batch step is made of: items of many streams, the rows that read each, and what each gives.

Shape suffixes: R rows of an item, K experts, V vocabulary, P fast weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import AdaptedState, Cursor
from rlstm_model.adaptation.padded_rows import LearningRows, PaddedRows, RowInput, TrainingInput
from rlstm_model.scoring import TokenScores
from rlstm_model.state import State
from rlstm_model.vocab import InvalidToken, check_ids

_COST_OF_LEARNING = 3


class ItemInputs(NamedTuple):
    """The rows of an item.

    frozen    those that read without fast weights
    own       those that read with fast weights of their own
    training  those that learn
    """

    frozen: RowInput | None
    own: RowInput | None = None
    training: TrainingInput | None = None

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many there are of each."""
        frozen, own = (0 if each is None else each.rows for each in (self.frozen, self.own))
        return frozen, own, 0 if self.training is None else self.training.read.rows

    @property
    def cost(self) -> int:
        """The tokens that all rows read; one that is learned from counts three times."""
        frozen, own, learning = self.rows
        return (frozen + own + _COST_OF_LEARNING * learning) * self.length

    @property
    def length(self) -> int:
        """The most tokens that a row reads."""
        read = (self.frozen, self.own, None if self.training is None else self.training.read)
        return max(len(each.ids) for each in read if each is not None)


@dataclass(frozen=True, eq=False)
class Reader:
    """A stream's experts at one moment, or the weights as loaded.

    rows       what reads them
    delta_KP   fast weights of those that learn; None is zero for all
    cursor     where the stream was: the rows that are mixed, and with ``static`` the frozen baseline first
    static     whether the baseline's log-probabilities are wanted too
    """

    rows: PaddedRows
    delta_KP: Tensor | None
    cursor: Cursor
    static: bool = False

    def inputs(self, ids: Sequence[int], state: State) -> ItemInputs:
        """Rows that read ``ids`` and learn nothing: of several, the first is the frozen baseline."""
        if self.delta_KP is None:
            return ItemInputs(RowInput(ids, state))
        frozen = state.batch - len(self.delta_KP)
        own = RowInput(ids, state.rows(slice(frozen, None)), self.delta_KP)
        return ItemInputs(RowInput(ids, state.rows(slice(frozen))) if frozen else None, own)


@dataclass(frozen=True, eq=False)
class ObserveChunk:
    """The next tokens of a stream, to be scored and then learned from.

    At least one, and none beyond the end of its segment. ``learn``: whether they may be learned from;
    ``top`` alternatives are wanted of each; ``rows`` reads them and learns.
    """

    state: AdaptedState
    ids: tuple[int, ...]
    learn: bool
    top: int
    rows: LearningRows

    @property
    def rates(self) -> tuple[float, ...]:
        """What the rates of the rows that learn are multiplied with, beside the stream's own scale."""
        return self.state.expert_config.rates

    @cached_property
    def ends(self) -> bool:
        """Whether the segment ends here."""
        return (self.state.position + len(self.ids)) % self.rows.rule.config.segment == 0

    @cached_property
    def flags(self) -> tuple[bool, ...]:
        """Whether each token of the segment so far may be learned from."""
        return self.state.pending_learn + (self.learn,) * len(self.ids)

    @cached_property
    def learns(self) -> bool:
        """Whether a step is taken after these tokens."""
        idle = self.rows.rule.idle or self.state.rate_scale == 0
        return self.ends and any(self.flags) and not idle

    def refusal(self) -> ValueError | None:
        """Why it cannot be done, where its form tells."""
        segment = self.rows.rule.config.segment
        if self.state.position % segment + len(self.ids) > segment:
            return ValueError("a chunk ends where its segment does")
        return _refusal(self.ids, self.rows)

    @cached_property
    def inputs(self) -> ItemInputs:
        """The rows that read the tokens and, at the end of a segment, learn from all of it.

        The loss is the sum over the tokens that may be learned from, divided by S where the reduction is the
        mean: a segment of which a part does not learn takes a smaller step, not a stronger one.
        """
        state, experts, config = self.state, self.state.expert_config, self.rows.rule.config
        ids = (state.now.last, *self.ids[:-1])
        frozen = RowInput(ids, state.now.state.rows(slice(1))) if experts.static else None
        if not self.learns:
            if state.delta_KP is None:
                return ItemInputs(RowInput(ids, state.now.state))
            return ItemInputs(frozen, RowInput(ids, state.now.state.rows(experts.learning), state.delta_KP))
        whole = (*state.pending, *self.ids)
        scale = 1 / config.segment if config.reduction == "mean" else 1.0
        rows = state.start.state.rows(experts.learning)
        read = RowInput((state.start.last, *whole[:-1]), rows, state.delta_KP)
        return ItemInputs(frozen, None, TrainingInput(read, whole, [scale * flag for flag in self.flags]))


@dataclass(frozen=True, eq=False)
class ScoreChunk:
    """Tokens to be scored after ``cursor``: at least one, at most as many as a segment has.

    Nothing is learned, and the stream stays as it is. ``top`` alternatives are wanted of each.
    """

    reader: Reader
    cursor: Cursor
    ids: tuple[int, ...]
    top: int = 0

    @property
    def rows(self) -> PaddedRows:
        """What reads them."""
        return self.reader.rows

    def refusal(self) -> ValueError | None:
        """Why it cannot be done, where its form tells."""
        return _refusal(self.ids, self.rows)

    @cached_property
    def inputs(self) -> ItemInputs:
        """The rows that read the tokens."""
        return self.reader.inputs((self.cursor.last, *self.ids[:-1]), self.cursor.state)


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """The cursor's token to be read, and the one after it to be predicted."""

    reader: Reader
    cursor: Cursor

    @property
    def rows(self) -> PaddedRows:
        """What reads it."""
        return self.reader.rows

    def refusal(self) -> ValueError | None:
        """Nothing in its form can be wrong."""
        return None

    @cached_property
    def inputs(self) -> ItemInputs:
        """The rows that read the token."""
        return self.reader.inputs((self.cursor.last,), self.cursor.state)


BatchItem: TypeAlias = ObserveChunk | ScoreChunk | DecodeStep


def _refusal(ids: Sequence[int], rows: PaddedRows) -> ValueError | None:
    if not ids:
        return ValueError("a batch item has at least one token")
    try:
        check_ids(ids, rows.vocab_size)
    except InvalidToken as error:
        return error
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedChunk:
    """What a chunk of a stream gave.

    scores           of the mixture, as the weights were before they saw these tokens
    static_logprobs  of the frozen baseline, float32 on the CPU; None where none reads along
    updates          1 where a segment ended here and was learned from
    guards           what was kept from happening: "step_skipped", "projected", "restarted", once a row
    gradient_norms   of the rows whose segment ended here and was learned from, where they are finite
    norm_ratio       of the fast weights to the slow ones after the step, the greatest of all rows
    """

    state: AdaptedState
    scores: TokenScores
    static_logprobs: Tensor | None
    updates: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    norm_ratio: float | None = None


class ScoredChunk(NamedTuple):
    """The scores of a chunk's tokens, and the place after them.

    ``static_logprobs`` as in :class:`ObservedChunk`; None where the reader does not want them.
    """

    scores: TokenScores
    cursor: Cursor
    static_logprobs: Tensor | None = None

    @staticmethod
    def concatenate(parts: "Sequence[ScoredChunk]") -> "ScoredChunk":
        """Chunks of one text, one after the other. Raises ValueError when there is none."""
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
