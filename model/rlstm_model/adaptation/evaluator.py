"""The evaluator: score a segment with the weights as they are, then learn from it.

This is the one home of that order. Evaluation on a test set and a live session call the same code, so a
published number is the served number. Steps happen on the absolute token grid of the stream, at positions
that are multiples of S, however the stream is cut: the tokens of an unfinished segment are kept together
with the states at its start, and learning always reads the whole segment from there. A stream is read by
several rows (:class:`~rlstm_model.adaptation.adapted_state.ExpertConfig`), and a round
(:mod:`rlstm_model.adaptation.batch_step`) advances many streams.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from rlstm_model.adaptation.adapted_state import (
    AdaptedState,
    Cursor,
    ExpertConfig,
    NonFiniteState,
    StateMismatch,
    StateSchema,
    rate_scale_of,
)
from rlstm_model.adaptation.batch_step import Decisions, ObserveChunk, ObservedChunk, run_batch
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.reader import Reader
from rlstm_model.adaptation.restart import reset
from rlstm_model.vocab import check_ids

__all__ = [
    "AdaptedState",
    "Cursor",
    "Decisions",
    "DynamicEvaluator",
    "ExpertConfig",
    "NonFiniteState",
    "ObserveChunk",
    "ObservedChunk",
    "Reader",
    "StateMismatch",
]


class DynamicEvaluator(Learner):
    """Dynamic evaluation of one model under one calibration, for any number of streams.

    The model's weights are never changed.
    """

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
            mixture=self.equal_weights(expert_config),
            bad_steps=(0,) * len(expert_config.rates),
            rate_scale=rate_scale_of(rate_scale),
        )

    def observe(
        self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0
    ) -> Iterator[ObservedChunk]:
        """Score ``ids``, then learn from them: in parts, none of which crosses the end of a segment.

        Each part carries the state after it; stop whenever you like and keep the last. ``learn=False``
        reads and scores but takes no step from these tokens. Raises InvalidToken, before anything is read,
        for an id outside the vocabulary, NonFiniteState when the stored state cannot be used.
        """
        return self._parts(state, check_ids(ids, self.model.config.vocab_size), learn, top)

    def _parts(self, state: AdaptedState, ids: list[int], learn: bool, top: int) -> Iterator[ObservedChunk]:
        done = 0
        while done < len(ids):
            part = self.chunk(state, ids[done : done + self.config.segment], learn=learn, top=top)
            (observed,) = run_batch([part])
            if not isinstance(observed, ObservedChunk):
                raise observed if isinstance(observed, Exception) else TypeError(type(observed))
            state, done = observed.state, done + len(part.ids)
            yield observed

    def chunk(
        self,
        state: AdaptedState,
        ids: Sequence[int],
        *,
        learn: bool = True,
        top: int = 0,
        decided: Decisions | None = None,
    ) -> ObserveChunk:
        """As many of ``ids``, tokens of the vocabulary, as the stream's unfinished segment has room for.

        Done in a batch with others: :func:`~rlstm_model.adaptation.batch_step.run_batch`. ``decided``: what
        the guards decided over the same part before, for them to do so again.
        """
        room = self.config.segment - state.position % self.config.segment
        return ObserveChunk(state, tuple(ids[:room]), learn, top, self, decided)

    def reader(self, state: AdaptedState, *, static: bool = False) -> Reader:
        """The stream's present experts, for inference.

        With ``static`` the log-probabilities of the slow weights stand beside theirs, if the stream has the
        static row: of several experts it is one, and beside a single one it reads along.
        """
        static = static and state.expert_config.static
        rows = slice(state.expert_config.rows) if static else state.expert_config.mixed
        now = Cursor(state.now.state.rows(rows), state.now.last, state.mixture)
        return Reader(self.rows, state.delta_KP, now, static)

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget what was learned, or the text read so far, or both; see :func:`restart.reset`."""
        return reset(self, state, fast_weights=fast_weights, recurrent=recurrent)

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
