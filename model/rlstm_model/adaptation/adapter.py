"""The adapter: score a segment with the weights as they are, then learn from it.

This is the one home of that order. Evaluation on a test set and a live session call the same method, so a
published number is the served number. Steps happen on the absolute token grid of the stream, at positions
that are multiples of S, however the stream is cut: the tokens of an unfinished segment are kept together
with the state at its start, and learning always reads the whole segment from there.
Shape suffixes: V vocabulary, P fast weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlstm_model.adaptation.adapted_state import (
    AdaptedState,
    Cursor,
    NonFiniteState,
    StateMismatch,
    StateShape,
    rate_scale_of,
)
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.fast_weights import FastWeights, Learned
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.adaptation.rules import LearningRule
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores, score_logits
from rlstm_model.state import State
from rlstm_model.vocab import InvalidToken

__all__ = ["AdaptedState", "Adapter", "Cursor", "NonFiniteState", "Observed", "Reader", "StateMismatch"]

MAX_BAD_STEPS = 3
CHUNK = 64
"""Tokens that a reader reads at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """What one slice of a stream, at most a segment, gave.

    scores           of the adapted weights, as they were before they saw these tokens
    static_logprobs  of the slow weights, float32 on the CPU; None where the reference is not carried
    updates          steps taken
    guards           what was kept from happening: "step_skipped", "projected", "restarted"
    gradient_norm    of the segment that ended here, if it was learned from; None where it is not finite
    norm_ratio       of the fast weights to the slow ones after the step, if there was one
    """

    state: AdaptedState
    scores: TokenScores
    static_logprobs: Tensor | None
    updates: int = 0
    guards: tuple[str, ...] = ()
    gradient_norm: float | None = None
    norm_ratio: float | None = None


class Reader:
    """A stream's weights at one moment, for inference: nothing it does changes the stream."""

    def __init__(self, fast_weights: FastWeights, state: AdaptedState, temperature: float) -> None:
        self._fast_weights = fast_weights
        self._temperature = temperature
        self._delta_NP = _row_of(state.delta_P)
        self.cursor = state.now

    def score(self, cursor: Cursor, ids: Sequence[int], top: int = 0) -> tuple[TokenScores, Cursor]:
        """Scores of ``ids`` (at least one) after ``cursor``, and the cursor after them.

        Raises InvalidToken, and ArithmeticError when the model's output is not finite.
        """
        parts = []
        for start in range(0, len(ids), CHUNK):
            targets = [int(token) for token in ids[start : start + CHUNK]]
            _check_ids(targets, self._fast_weights.model.config.vocab_size)
            logits_SV, cursor = _read(self._fast_weights, self._delta_NP, cursor, targets, self._temperature)
            parts.append(score_logits(logits_SV, torch.tensor(targets, device=logits_SV.device), top))
        return TokenScores.concatenate(parts), cursor

    def next_log_probs(self, cursor: Cursor) -> tuple[Tensor, State]:
        """Read the cursor's token: the next one's log-probabilities ``[V]``, and the state after it.

        Continue with ``Cursor(state, chosen)``. Whether the distribution is one is not looked at here:
        sampling refuses what is not finite.
        """
        ids_1 = torch.tensor([cursor.last], device=cursor.state.h.device)
        logits_1V, state = self._fast_weights.step(
            self._delta_NP, ids_1, cursor.state, temperature=self._temperature
        )
        return torch.log_softmax(logits_1V[0], -1), state


class Adapter:
    """Dynamic evaluation of one model under one calibration, for any number of streams.

    It belongs to one thread. The model's weights are never changed.
    """

    def __init__(
        self,
        model: LanguageModel,
        calibration: Calibration,
        *,
        bos_id: int,
        temperature: float = 1.0,
        logprobs_only: bool = False,
    ) -> None:
        """``temperature`` multiplies the logits, in scores and in the loss that is learned from.

        ``logprobs_only`` gives no ranks and entropies, which take longer than all else over a large
        vocabulary. Raises ValueError when the calibration is of another model, or its statistics allow no
        rule.
        """
        self.config = calibration.config
        self._model = model
        self._bos_id = bos_id
        self._temperature = temperature
        self._logprobs_only = logprobs_only
        self._fast_weights: FastWeights = FullFastWeights(model)
        size, rms_P = self._fast_weights.size, calibration.rms_P
        if rms_P.shape != (size,):
            raise ValueError(f"the calibration is of {rms_P.numel()} weights, the model has {size}")
        rms_P = rms_P.to(model.embedding.input)
        self._rule = LearningRule(self.config, rms_P, self._fast_weights.slow_norm)

    def start(self, *, rate_scale: float = 1.0, static: bool = True) -> AdaptedState:
        """The state before any text. ``static`` carries the slow weights' scores along as a reference.

        Raises ValueError unless ``rate_scale`` is a finite number of at least 0.
        """
        now = self._before_text()
        return AdaptedState(
            delta_P=None,
            now=now,
            start=now,
            static=self._before_text() if static else None,
            rate_scale=rate_scale_of(rate_scale),
        )

    def observe(
        self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0
    ) -> Iterator[Observed]:
        """Score ``ids``, then learn from them: in slices, none of which crosses the end of a segment.

        Each slice carries the state after it; stop whenever you like and keep the last. ``learn=False``
        reads and scores but takes no step from these tokens. Raises InvalidToken, before anything is read,
        for an id outside the vocabulary, NonFiniteState when the stored state cannot be used.
        """
        ids = [int(token) for token in ids]
        _check_ids(ids, self._model.config.vocab_size)
        return self._slices(state, ids, learn, top)

    def reader(self, state: AdaptedState) -> Reader:
        """The stream's present weights, for inference."""
        return Reader(self._fast_weights, state, self._temperature)

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget what was learned, or the text read so far, or both. The position goes on.

        Nothing read before the reset is learned from after it. Without its recurrent state the unfinished
        segment cannot be read again: its tokens are dropped. Without its fast weights it is read again with
        the slow ones.
        """
        if recurrent:
            now = self._before_text()
            static = None if state.static is None else self._before_text()
            state = replace(state, now=now, start=now, static=static, pending=(), pending_learn=())
        if fast_weights:
            state = replace(self._restart(state), pending_learn=(False,) * len(state.pending))
        return state

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> AdaptedState:
        """A state from what :meth:`AdaptedState.tensors` and ``header`` gave.

        Raises StateMismatch when shapes or fields are not this model's, NonFiniteState for NaN or infinity.
        """
        shape = StateShape(
            recurrent=self._model.initial_state(1),
            weights=self._fast_weights.size,
            vocab_size=self._model.config.vocab_size,
            segment=self.config.segment,
        )
        return shape.restore(tensors, header)

    def _before_text(self) -> Cursor:
        return Cursor(self._model.initial_state(1), self._bos_id)

    def _slices(self, state: AdaptedState, ids: Sequence[int], learn: bool, top: int) -> Iterator[Observed]:
        done = 0
        while done < len(ids):
            part = tuple(ids[done : done + self.config.segment - state.position % self.config.segment])
            observed = self._observe_slice(state, part, learn, top)
            state, done = observed.state, done + len(part)
            yield observed

    def _observe_slice(self, state: AdaptedState, part: tuple[int, ...], learn: bool, top: int) -> Observed:
        static_logprobs = None
        if state.static is not None:
            try:
                reference, static = self._score(None, state.static, part, 0)
            except ArithmeticError as error:
                raise NonFiniteState("the slow weights' state is not finite") from error
            static_logprobs, state = reference.logprobs, replace(state, static=static)
        flags = (*state.pending_learn, *(learn for _ in part))
        ends = (state.position + len(part)) % self.config.segment == 0
        learns = ends and any(flags) and not self._rule.idle and state.rate_scale > 0
        scored, done = self._score_part(state, part, flags, top, with_gradient=learns)
        observed = replace(scored, static_logprobs=static_logprobs)
        return self._end_segment(observed, done, learns) if ends else observed

    def _score_part(
        self,
        state: AdaptedState,
        part: tuple[int, ...],
        flags: tuple[bool, ...],
        top: int,
        *,
        with_gradient: bool,
    ) -> tuple[Observed, Learned | None]:
        """Scores of ``part``; where the segment ends and learns, its gradient as well.

        A segment that came in one piece is scored and differentiated in one pass. Fast weights whose
        output is not finite are dropped, and the segment is read again from its start.
        """
        try:
            if not with_gradient:
                scores, now = self._score(state.delta_P, state.now, part, top)
                return self._read(state, part, flags, scores, now), None
            done = self._learn(state, (*state.pending, *part), flags)
            scores = self._scores(done.logits_TNV[len(state.pending) :, 0], part, top)
            return self._read(state, part, flags, scores, Cursor(done.state, part[-1])), done
        except ArithmeticError as error:
            if state.delta_P is None:
                raise NonFiniteState("the recurrent state or a slow weight is not finite") from error
            again = self._restart(state)
            observed, done_again = self._score_part(again, part, flags, top, with_gradient=with_gradient)
            return replace(observed, guards=("restarted", *observed.guards)), done_again

    def _learn(self, state: AdaptedState, whole: tuple[int, ...], flags: tuple[bool, ...]) -> Learned:
        """Read a segment from its start, and differentiate the loss of what may be learned from.

        It is divided by S where the reduction is the mean: a segment of which a part does not learn takes a
        smaller step, not a stronger one.
        """
        device = state.start.state.h.device
        read_T1 = torch.tensor((state.start.last, *whole), device=device)[:, None]
        weights_T1 = torch.tensor(flags, device=device).to(state.start.state.h)[:, None]
        if self.config.reduction == "mean":
            weights_T1 /= self.config.segment
        return self._fast_weights.learn(
            _row_of(state.delta_P),
            read_T1[:-1],
            read_T1[1:],
            weights_T1,
            state.start.state,
            temperature=self._temperature,
        )

    def _read(
        self,
        state: AdaptedState,
        part: tuple[int, ...],
        flags: tuple[bool, ...],
        scores: TokenScores,
        now: Cursor,
    ) -> Observed:
        after = replace(
            state,
            now=now,
            pending=(*state.pending, *part),
            pending_learn=flags,
            position=state.position + len(part),
        )
        return Observed(state=after, scores=scores, static_logprobs=None)

    def _end_segment(self, observed: Observed, done: Learned | None, learns: bool) -> Observed:
        state = replace(observed.state, start=observed.state.now, pending=(), pending_learn=())
        if not learns or done is None:
            return replace(observed, state=state)
        norm = torch.linalg.vector_norm(done.gradient_NP).item()
        gradient_norm = norm if math.isfinite(norm) else None
        delta_1P = self._fast_weights.zero(1) if state.delta_P is None else state.delta_P.unsqueeze(0)
        step = self._rule.step(delta_1P, done.gradient_NP, (state.rate_scale,))
        if not step.taken[0]:
            return self._skip_step(replace(observed, state=state, gradient_norm=gradient_norm))
        return replace(
            observed,
            state=replace(state, delta_P=step.delta_NP[0], updates=state.updates + 1, bad_steps=0),
            updates=1,
            guards=(*observed.guards, *(("projected",) if step.projected[0] else ())),
            gradient_norm=gradient_norm,
            norm_ratio=step.norm_ratios[0],
        )

    def _skip_step(self, observed: Observed) -> Observed:
        state, guards = observed.state, (*observed.guards, "step_skipped")
        if state.bad_steps + 1 < MAX_BAD_STEPS:
            return replace(observed, state=replace(state, bad_steps=state.bad_steps + 1), guards=guards)
        state = replace(state, delta_P=None, bad_steps=0)
        return replace(observed, state=state, guards=(*guards, "restarted"))

    def _restart(self, state: AdaptedState) -> AdaptedState:
        """Zero fast weights, and the cursor that they give at the same place in the unfinished segment."""
        now = state.start
        if state.pending:
            try:
                _, now = self._score(None, state.start, state.pending, 0)
            except ArithmeticError as error:
                raise NonFiniteState("the state at the segment's start is not finite") from error
        return replace(state, delta_P=None, now=now, bad_steps=0)

    def _score(
        self, delta_P: Tensor | None, cursor: Cursor, ids: Sequence[int], top: int
    ) -> tuple[TokenScores, Cursor]:
        logits_SV, after = _read(self._fast_weights, _row_of(delta_P), cursor, ids, self._temperature)
        return self._scores(logits_SV, ids, top), after

    def _scores(self, logits_SV: Tensor, ids: Sequence[int], top: int) -> TokenScores:
        targets_S = torch.tensor(ids, device=logits_SV.device)
        return score_logits(logits_SV, targets_S, top, logprobs_only=self._logprobs_only)


def _read(
    fast_weights: FastWeights,
    delta_NP: Tensor | None,
    cursor: Cursor,
    ids: Sequence[int],
    temperature: float,
) -> tuple[Tensor, Cursor]:
    """Logits ``[S, V]`` of the distributions that ``ids`` are scored under, and the cursor after them."""
    inputs_S1 = torch.tensor((cursor.last, *ids[:-1]), device=cursor.state.h.device)[:, None]
    logits_S1V, state = fast_weights.read(delta_NP, inputs_S1, cursor.state, temperature=temperature)
    return logits_S1V[:, 0], Cursor(state, int(ids[-1]))


def _row_of(delta_P: Tensor | None) -> Tensor | None:
    return None if delta_P is None else delta_P.unsqueeze(0)


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidToken(index, token)
