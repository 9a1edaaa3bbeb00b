"""Dynamic evaluation: score a segment with the weights as they are, then learn from it.

This is the one home of that order. Evaluation on a test set and a live session call the same code, so a
published number is the served number. Steps happen on the absolute token grid of the stream, at positions
that are multiples of S, however the stream is cut: the tokens of an unfinished segment are kept together
with the states at its start, and learning always reads the whole segment from there. A stream is read by
several rows (:class:`~rlstm_model.adaptation.adapted_state.ExpertConfig`), and a batch step
(:mod:`rlstm_model.adaptation.batch_step`) advances many streams.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from rlstm_model.adaptation.adapted_state import (
    AdaptedState,
    Cursor,
    ExpertConfig,
    StateSchema,
    rate_scale_of,
)
from rlstm_model.adaptation.batch_items import (
    BatchItem,
    BatchResult,
    DecodeStep,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    Reader,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.batch_step import ELEMENTS_AT_ONCE, restart, run_batch
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.fast_weights import FrozenWeights
from rlstm_model.adaptation.graphs import graphed, graphed_reading
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.padded_rows import LearningRows, PaddedRows
from rlstm_model.adaptation.rules import LearningRule
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores, next_log_probs
from rlstm_model.vocab import check_ids

CHUNK = 64
"""Tokens that are scored at once; fewer where the vocabulary is large."""


class DynamicEvaluator:
    """Dynamic evaluation of one model under one calibration, for any number of streams.

    The model's weights are never changed.
    """

    def __init__(
        self,
        model: LanguageModel,
        calibration: Calibration,
        *,
        bos_id: int,
        temperature: float = 1.0,
        logprobs_only: bool = False,
        graphs: bool = True,
    ) -> None:
        """``temperature`` multiplies the logits, in scores and in the loss that is learned from.

        ``logprobs_only`` gives no ranks and entropies, which take longer than all else over a large
        vocabulary. ``graphs``: on a CUDA device rows read and learn by recorded graphs
        (:mod:`rlstm_model.adaptation.graphs`), which changes nothing but speed and rounding. Raises
        ValueError when the calibration is of another model, or its statistics allow no rule.
        """
        self.config = calibration.config
        self.model = model
        self.bos_id = bos_id
        own = calibration.fast_weights(model)
        self.fast_weights = graphed(own) if graphs else own
        rms_P = calibration.rms_P.to(model.embedding.input)
        rule = LearningRule(self.config, rms_P, self.fast_weights.slow_norm)
        self.rows = LearningRows(self.fast_weights, temperature, rule=rule, logprobs_only=logprobs_only)

    def start(self, *, rate_scale: float = 1.0, static: bool = True, experts: int = 1) -> AdaptedState:
        """The state before any text; see :class:`ExpertConfig`.

        Raises ValueError unless ``rate_scale`` is a finite number of at least 0 and there are such experts.
        """
        expert_config = ExpertConfig(experts=experts, static=static)
        now = self.before_text(expert_config)
        return AdaptedState(
            expert_config=expert_config,
            delta_KP=None,
            now=now,
            start=now,
            mixture=self._equal_weights(expert_config),
            bad_steps=(0,) * len(expert_config.rates),
            rate_scale=rate_scale_of(rate_scale),
        )

    def observe(
        self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0
    ) -> Iterator[ObservedChunk]:
        """Score ``ids``, then learn from them: in chunks, none of which crosses the end of a segment.

        Each carries the state after it; stop whenever you like and keep the last. ``learn=False`` reads and
        scores but takes no step from these tokens. Raises InvalidToken, before anything is read, for an id
        outside the vocabulary, NonFiniteState when the stored state cannot be used.
        """
        return self._observe(state, check_ids(ids, self.rows.vocab_size), learn, top)

    def _observe(self, state: AdaptedState, ids: list[int], learn: bool, top: int) -> Iterator[ObservedChunk]:
        done = 0
        while done < len(ids):
            chunk = self.chunk(state, ids[done : done + self.config.segment], learn=learn, top=top)
            observed = _result(chunk)
            assert isinstance(observed, ObservedChunk)
            state, done = observed.state, done + len(chunk.ids)
            yield observed

    def chunk(
        self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0
    ) -> ObserveChunk:
        """As many of ``ids``, tokens of the vocabulary, as the stream's unfinished segment has room for.

        It is done in a batch with others: :func:`~rlstm_model.adaptation.batch_step.run_batch`.
        """
        room = self.config.segment - state.position % self.config.segment
        return ObserveChunk(state, tuple(ids[:room]), learn, top, self.rows)

    def reader(self, state: AdaptedState, *, static: bool = False) -> Reader:
        """The stream's present experts, for inference.

        With ``static`` the log-probabilities of the frozen baseline stand beside theirs, if the stream has
        one: of several experts it is one, and beside a single one it reads along.
        """
        static = static and state.expert_config.static
        rows = slice(state.expert_config.rows) if static else state.expert_config.mixed
        now = Cursor(state.now.state.rows(rows), state.now.last, state.mixture)
        return Reader(self.rows, state.delta_KP, now, static)

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget what was learned, or the text read so far, or both. The position goes on.

        Nothing read before the reset is learned from after it. Without its recurrent state the unfinished
        segment cannot be read again: its tokens are dropped. Without its fast weights it is read again with
        the slow ones, and the experts count alike again.
        """
        if recurrent:
            now = self.before_text(state.expert_config)
            state = replace(state, now=now, start=now, pending=(), pending_learn=())
        if fast_weights:
            state = restart(self.rows, state, [True] * len(state.expert_config.rates))
            unlearned = (False,) * len(state.pending)
            weights = self._equal_weights(state.expert_config)
            state = replace(state, mixture=weights, pending_learn=unlearned)
        return state

    @property
    def state_schema(self) -> StateSchema:
        """What a stored state must look like to be this model's."""
        return StateSchema(
            recurrent=self.model.initial_state(1),
            weights=self.fast_weights.size,
            kept=self.fast_weights.zero(1).dtype,
            vocab_size=self.model.config.vocab_size,
            segment=self.config.segment,
        )

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> AdaptedState:
        """A state from what :meth:`AdaptedState.tensors` and ``header`` gave.

        Raises StateMismatch when shapes or fields are not this model's, NonFiniteState for NaN or infinity.
        """
        return self.state_schema.restore(tensors, header)

    def before_text(self, expert_config: ExpertConfig) -> Cursor:
        """Where all rows are before any text."""
        return Cursor(self.model.initial_state(expert_config.rows), self.bos_id)

    def _equal_weights(self, expert_config: ExpertConfig) -> MixtureState | None:
        """The mixture before any text; None for a single expert."""
        device, experts = self.model.embedding.input.device, expert_config.experts
        return None if experts == 1 else MixtureState.start(1, experts, device)


def frozen_reader(model: LanguageModel, bos_id: int, temperature: float = 1.0) -> Reader:
    """Reads with the weights as loaded, from before any text; ``temperature`` multiplies the logits.

    On a CUDA device by recorded graphs, which the reader keeps: it is for many texts.
    """
    weights = graphed_reading(FrozenWeights(model))
    return Reader(PaddedRows(weights, temperature), None, Cursor(model.initial_state(1), bos_id))


def score_after(
    reader: Reader, cursor: Cursor, ids: Sequence[int], top: int = 0
) -> tuple[TokenScores, Cursor]:
    """Scores of ``ids``, at least one, after ``cursor``, and the cursor after them.

    Raises InvalidToken, and ArithmeticError when no expert computed a distribution of some token.
    """
    vocabulary = reader.rows.vocab_size
    ids = check_ids(ids, vocabulary)
    at_once = max(1, min(CHUNK, ELEMENTS_AT_ONCE // (vocabulary * cursor.state.batch)))
    parts = []
    for start in range(0, len(ids), at_once):
        scored = _result(ScoreChunk(reader, cursor, tuple(ids[start : start + at_once]), top))
        assert isinstance(scored, ScoredChunk)
        parts.append(scored.scores)
        cursor = scored.cursor
    return TokenScores.concatenate(parts), cursor


def next_token(reader: Reader, cursor: Cursor) -> NextToken:
    """Read the cursor's token and predict the one after it.

    Whether the distribution is one is not looked at here: sampling refuses what is not finite.
    """
    following = _result(DecodeStep(reader, cursor))
    assert isinstance(following, NextToken)
    return following


def frozen_next(model: LanguageModel, cursor: Cursor) -> NextToken:
    """The next token of a text that the model reads as loaded, alone: one row without padding."""
    log_probs_V, state = next_log_probs(model, cursor.last, cursor.state)
    return NextToken(log_probs_V, log_probs_V[None, None], state, cursor)


def _result(item: BatchItem) -> BatchResult:
    """What an item alone gives. Raises its error."""
    (result,) = run_batch([item])
    if isinstance(result, Exception):
        raise result
    return result
