"""Dynamic evaluation: score a segment with the weights as they are, then learn from it.

The order has one home, :func:`rlstm_model.adaptation.batch.run_batch`: evaluation on a test set and a live
session call it, so a published number is the served number, but for the guard of a single expert, which is
the server's own (:mod:`rlstm_model.adaptation.loss_guard`). Steps happen on the absolute token grid of the
stream, at positions that are multiples of S, however the stream is cut: the tokens of an unfinished segment
are kept together with the states at its start, and learning always reads the whole segment from there. A
stream is read by several rows (:class:`~rlstm_model.adaptation.state.ExpertConfig`), and a batch
(:mod:`rlstm_model.adaptation.batch`) advances many streams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.backend import Backend, NativeBackend
from rlstm_model.adaptation.batch import restart, run_batch
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.items import (
    BatchResult,
    DecodeStep,
    FrozenExperts,
    Learner,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.state import (
    Adapt,
    AdaptedState,
    Cursor,
    ExpertConfig,
    StateSchema,
    rate_scale_of,
)
from rlstm_model.native.memory import Memory, MemoryConfig, kinds_of
from rlstm_model.parameters import Parameters
from rlstm_model.scores import TokenScores
from rlstm_model.vocab import check_ids

CHUNK = 256
"""Tokens that a reader reads at once; fewer where the vocabulary is large."""

_ELEMENTS_AT_ONCE = 1 << 21


class DynamicEvaluator(Learner):
    """Dynamic evaluation of one model under one calibration, for any number of streams.

    The model's weights are never changed.
    """

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        calibration: Calibration,
        *,
        bos_id: int,
        temperature: float = 1.0,
        logprobs_only: bool = False,
        threads: int | None = None,
    ) -> "DynamicEvaluator":
        """On a CPU. ``temperature`` multiplies the logits, in scores and in the loss that is learned from.

        Raises ValueError when the calibration's statistics allow no rule.
        """
        backend = NativeBackend(parameters, calibration, temperature=temperature, threads=threads)
        return cls(backend, calibration, parameters.norm, bos_id, logprobs_only)

    def start(
        self,
        *,
        rate_scale: float = 1.0,
        static: bool = True,
        experts: int = 1,
        adapt: Adapt = "weights",
    ) -> AdaptedState:
        """The state before any text; see :class:`ExpertConfig`.

        Raises ValueError unless ``rate_scale`` is a finite number of at least 0 and there are such experts.
        """
        expert_config = ExpertConfig(experts=experts, static=static, adapt=adapt)
        now = self._before_text(expert_config)
        return AdaptedState(
            expert_config=expert_config,
            delta_KP=None,
            now=now,
            start=now.of(expert_config.learning),
            mixture=_equal_weights(expert_config),
            memory=self._no_memory(expert_config),
            bad_steps=(0,) * len(expert_config.rates),
            rate_scale=rate_scale_of(rate_scale),
        )

    def observe(
        self,
        state: AdaptedState,
        ids: Sequence[int],
        *,
        learn: bool = True,
        top: int = 0,
        distributions: bool = False,
    ) -> Iterator[ObservedChunk]:
        """Score ``ids``, then learn from them: in chunks, none of which crosses the end of a segment.

        Each carries the state after it; stop whenever you like and keep the last. ``learn=False`` reads and
        scores but takes no step from these tokens; ``distributions`` gives those of each token too. Raises
        InvalidToken, before anything is read, for an id outside the vocabulary, NonFiniteState when the
        stored state cannot be used.
        """
        ids = check_ids(ids, self.backend.vocab_size)
        return self._observe(state, ids, learn=learn, top=top, distributions=distributions)

    def _observe(self, state: AdaptedState, ids: list[int], **wanted: Any) -> Iterator[ObservedChunk]:
        done = 0
        while done < len(ids):
            chunk = self.chunk(state, ids[done : done + self.room(state)], **wanted)
            (result,) = run_batch([chunk])
            observed = _done(result, ObservedChunk)
            state, done = observed.state, done + len(chunk.ids)
            yield observed

    def chunk(
        self,
        state: AdaptedState,
        ids: Sequence[int],
        *,
        learn: bool = True,
        top: int = 0,
        distributions: bool = False,
        spaces: NDArray[np.intp] | None = None,
    ) -> ObserveChunk:
        """As many of ``ids``, tokens of the vocabulary, as there is :meth:`room` for."""
        return ObserveChunk(state, tuple(ids[: self.room(state)]), learn, top, self, distributions, spaces)

    def room(self, state: AdaptedState) -> int:
        """Tokens of the next chunk at most: the rest of the unfinished segment, where weights adapt."""
        if not state.expert_config.rates:
            return _at_once(self.backend.vocab_size)
        return self.segment - state.position % self.segment

    def next(self, state: AdaptedState) -> NextToken:
        """What the next token is scored against, to the last bit. Raises NonFiniteState."""
        reader = self.reader(state, static=True)
        return reader.next(reader.cursor)

    def follow(self, state: AdaptedState, following: NextToken, token: int) -> AdaptedState:
        """What observing the token gives, without reading again what :meth:`next` has read.

        Raises as :meth:`observe`.
        """
        (observed,) = run_batch([replace(self.chunk(state, (token,)), reads=following.reads)])
        return _done(observed, ObservedChunk).state

    def reader(self, state: AdaptedState, *, static: bool = False) -> "Reader":
        """The stream's present experts, for inference.

        With ``static`` the log-probabilities of the slow weights stand beside theirs, if the stream has the
        frozen baseline: of several experts it is one, and beside a single one it reads along.
        """
        static = static and state.expert_config.static
        rows = slice(state.expert_config.rows) if static else state.expert_config.mixed
        now = Cursor(state.now.states_R2U[rows], state.now.last, state.mixture)
        return Reader(self.backend, state.delta_KP, now, static, memory=state.memory)

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget what was learned, or the text read so far, or both. The position goes on.

        Nothing read before the reset is learned from after it. Without its recurrent state the unfinished
        segment cannot be read again: its tokens are dropped. Without its fast weights it is read again with
        the slow ones, and the experts count alike again.
        """
        if recurrent:
            now = self._before_text(state.expert_config)
            memory = None if state.memory is None else state.memory.follow(self.bos_id)
            state = replace(
                state,
                now=now,
                start=now.of(state.expert_config.learning),
                pending=(),
                pending_learn=(),
                memory=memory,
            )
        if fast_weights:
            state = restart(self, state, [True] * len(state.expert_config.rates))
            unlearned = (False,) * len(state.pending)
            state = replace(
                state,
                mixture=_equal_weights(state.expert_config),
                memory=self._no_memory(state.expert_config),
                pending_learn=unlearned,
            )
        return state

    @cached_property
    def state_schema(self) -> StateSchema:
        """What a stored state must look like to be this model's."""
        backend = self.backend
        return StateSchema(
            units=backend.units,
            weights=backend.fast_weights,
            dtype=backend.dtype,
            vocab_size=backend.vocab_size,
            segment=self.segment,
        )

    def _no_memory(self, expert_config: ExpertConfig) -> Memory | None:
        if not expert_config.remembers:
            return None
        return Memory.start(MemoryConfig(kinds_of(self.backend.vocab_size)), expert_config.experts)

    def _before_text(self, expert_config: ExpertConfig) -> Cursor:
        return _beginning(self.backend, self.bos_id, expert_config.rows)


_Result = TypeVar("_Result", ObservedChunk, ScoredChunk, NextToken)


def _done(result: BatchResult, kind: type[_Result]) -> _Result:
    """What an item gave; what it could not be done for is raised."""
    if not isinstance(result, kind):
        raise result if isinstance(result, Exception) else TypeError(type(result))
    return result


def _at_once(vocab_size: int) -> int:
    return max(1, min(CHUNK, _ELEMENTS_AT_ONCE // vocab_size))


def _beginning(backend: Backend, bos_id: int, rows: int = 1) -> Cursor:
    return Cursor(np.zeros((rows, 2, backend.units), np.float32), bos_id)


def _equal_weights(expert_config: ExpertConfig) -> MixtureState | None:
    size = expert_config.mixture_size
    return None if size == 1 else MixtureState.start(size)


@dataclass(frozen=True, eq=False)
class Reader(FrozenExperts):
    """A stream's experts at one moment, or the weights as loaded."""

    @property
    def at_once(self) -> int:
        """Tokens that are read at once."""
        return _at_once(self.backend.vocab_size)

    def chunks(
        self, cursor: Cursor, ids: Sequence[int], top: int = 0, *, distributions: bool = False
    ) -> Iterator[ScoredChunk]:
        """Scores of ``ids`` after ``cursor``, piece by piece. Raises InvalidToken, ArithmeticError."""
        ids = check_ids(ids, self.backend.vocab_size)
        for start in range(0, len(ids), self.at_once):
            item = ScoreChunk(self, cursor, tuple(ids[start : start + self.at_once]), top, distributions)
            (result,) = run_batch([item])
            scored = _done(result, ScoredChunk)
            cursor = scored.cursor
            yield scored

    def score(self, cursor: Cursor, ids: Sequence[int], top: int = 0) -> tuple[TokenScores, Cursor]:
        """Scores of ``ids`` (at least one) after ``cursor``, and the cursor after them."""
        whole = ScoredChunk.concatenate([*self.chunks(cursor, ids, top)])
        return whole.scores, whole.cursor

    def next(self, cursor: Cursor) -> NextToken:
        """Read the cursor's token and predict the one after it."""
        (result,) = run_batch([DecodeStep(self, cursor)])
        return _done(result, NextToken)


def frozen_reader(
    parameters: Parameters, bos_id: int, *, temperature: float = 1.0, threads: int | None = None
) -> Reader:
    """Reads with the weights as loaded, from before any text; ``temperature`` multiplies the logits."""
    return reader_of(NativeBackend(parameters, temperature=temperature, threads=threads), bos_id)


def reader_of(backend: Backend, bos_id: int, *, logprobs_only: bool = False) -> Reader:
    """The same by a backend. ``logprobs_only`` leaves out ranks and entropies."""
    return Reader(backend, None, _beginning(backend, bos_id), logprobs_only=logprobs_only)
