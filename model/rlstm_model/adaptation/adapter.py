"""The adapter: score a segment with the weights as they are, then learn from it.

This is the one home of that order. Evaluation on a test set and a live session call the same method, so a
published number is the served number. Steps happen on the absolute token grid of the stream, at positions
that are multiples of S, however the stream is cut: the tokens of an unfinished segment are kept together
with the states at its start, and learning always reads the whole segment from there. A stream is read by
several rows (:class:`~rlstm_model.adaptation.adapted_state.Lineup`), and a round advances many streams.
Shape suffixes: T tokens, R rows, K experts, V vocabulary, P fast weights.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.adapted_state import (
    AdaptedState,
    Cursor,
    Lineup,
    NonFiniteState,
    StateMismatch,
    StateShape,
    rate_scale_of,
)
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.experts import Distributions
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.reader import Reader
from rlstm_model.adaptation.rows import Lesson, Read, Reading, Rows, Taught
from rlstm_model.adaptation.rules import LearningRule
from rlstm_model.language_model import LanguageModel
from rlstm_model.scoring import TokenScores
from rlstm_model.state import State
from rlstm_model.vocab import check_ids

__all__ = [
    "AdaptedState",
    "Adapter",
    "Cursor",
    "Lineup",
    "NonFiniteState",
    "Observed",
    "Part",
    "Reader",
    "StateMismatch",
]

MAX_BAD_STEPS = 3


class Part(NamedTuple):
    """The next tokens of a stream: at least one, and none beyond the end of its segment."""

    state: AdaptedState
    ids: tuple[int, ...]
    learn: bool = True
    top: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """What one part of a stream gave.

    scores           of the mixture, as the weights were before they saw these tokens
    static_logprobs  of the slow weights, float32 on the CPU; None where the static row is not carried
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
        self._bos_id = bos_id
        self._temperature = temperature
        self._logprobs_only = logprobs_only
        self._fast_weights = calibration.fast_weights(model)
        rms_P = calibration.rms_P.to(model.embedding.input)
        self._rule = LearningRule(self.config, rms_P, self._fast_weights.slow_norm)
        self._rows = Rows(self._fast_weights, temperature)

    def start(self, *, rate_scale: float = 1.0, static: bool = True, experts: int = 1) -> AdaptedState:
        """The state before any text; see :class:`Lineup`.

        Raises ValueError unless ``rate_scale`` is a finite number of at least 0 and the lineup is one.
        """
        lineup = Lineup(experts=experts, static=static)
        now = self._before_text(lineup)
        return AdaptedState(
            lineup=lineup,
            delta_KP=None,
            now=now,
            start=now,
            mixture=self._equal(lineup),
            bad_steps=(0,) * len(lineup.rates),
            rate_scale=rate_scale_of(rate_scale),
        )

    def observe(
        self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0
    ) -> Iterator[Observed]:
        """Score ``ids``, then learn from them: in parts, none of which crosses the end of a segment.

        Each part carries the state after it; stop whenever you like and keep the last. ``learn=False``
        reads and scores but takes no step from these tokens. Raises InvalidToken, before anything is read,
        for an id outside the vocabulary, NonFiniteState when the stored state cannot be used.
        """
        return self._parts(state, check_ids(ids, self._model.config.vocab_size), learn, top)

    def _parts(self, state: AdaptedState, ids: list[int], learn: bool, top: int) -> Iterator[Observed]:
        done = 0
        while done < len(ids):
            part = self.part(state, ids[done : done + self.config.segment], learn=learn, top=top)
            (observed,) = self.round([part])
            if isinstance(observed, NonFiniteState):
                raise observed
            state, done = observed.state, done + len(part.ids)
            yield observed

    def part(self, state: AdaptedState, ids: Sequence[int], *, learn: bool = True, top: int = 0) -> Part:
        """As many of ``ids``, tokens of the vocabulary, as the stream's unfinished segment has room for."""
        room = self.config.segment - state.position % self.config.segment
        return Part(state, tuple(ids[:room]), learn, top)

    def round(self, parts: Sequence[Part]) -> list[Observed | NonFiniteState]:
        """Advance many streams by one part each: what observing each alone gives, to the last bit.

        A stream whose state cannot be used has the error in its place, and disturbs no other.
        """
        observed: dict[int, Observed | NonFiniteState] = {}
        learns = [self._learns(part) for part in parts]
        reads = self._read(parts, learns)
        for i, part in enumerate(parts):
            if not learns[i]:
                observed[i] = self._observe(part, reads[i])
        taught_parts = [i for i in range(len(parts)) if learns[i]]
        for place, taught in self._rows.learn([self._lesson(parts[i]) for i in taught_parts]):
            i = taught_parts[place]
            observed[i] = self._learn(parts[i], reads[i], taught)
        return [observed[i] for i in range(len(parts))]

    def reader(self, state: AdaptedState) -> Reader:
        """The stream's present experts, for inference."""
        return Reader(self._fast_weights, state, self._temperature)

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget what was learned, or the text read so far, or both. The position goes on.

        Nothing read before the reset is learned from after it. Without its recurrent state the unfinished
        segment cannot be read again: its tokens are dropped. Without its fast weights it is read again with
        the slow ones, and the experts count alike again.
        """
        if recurrent:
            now = self._before_text(state.lineup)
            state = replace(state, now=now, start=now, pending=(), pending_learn=())
        if fast_weights:
            state = self._restart(state, [True] * len(state.lineup.rates))
            unlearned = (False,) * len(state.pending)
            state = replace(state, mixture=self._equal(state.lineup), pending_learn=unlearned)
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

    @property
    def _model(self) -> LanguageModel:
        return self._fast_weights.model

    def _before_text(self, lineup: Lineup) -> Cursor:
        return Cursor(self._model.initial_state(lineup.rows), self._bos_id)

    def _equal(self, lineup: Lineup) -> MixtureState | None:
        device = self._model.embedding.input.device
        return None if lineup.experts == 1 else MixtureState.start(1, lineup.experts, device)

    def _ends(self, part: Part) -> bool:
        return (part.state.position + len(part.ids)) % self.config.segment == 0

    def _learns(self, part: Part) -> bool:
        idle = self._rule.idle or part.state.rate_scale == 0
        return self._ends(part) and (part.learn or any(part.state.pending_learn)) and not idle

    # ---- reading ------------------------------------------------------------------------------------------

    def _read(self, parts: Sequence[Part], learns: Sequence[bool]) -> list[Read | None]:
        """Each part's new tokens, read by the rows that do not learn from them: by all, or the static one."""
        readings: list[Reading] = []
        owners: list[int] = []
        for i, (part, learning) in enumerate(zip(parts, learns, strict=True)):
            own = self._readings(part, learning)
            readings += own
            owners += [i] * len(own)
        results: list[list[Read]] = [[] for _ in parts]
        for owner, read in zip(owners, self._rows.read(readings), strict=True):
            results[owner].append(read)
        return [_side_by_side(own) if own else None for own in results]

    def _readings(self, part: Part, learning: bool) -> list[Reading]:
        state, lineup = part.state, part.state.lineup
        ids = (state.now.last, *part.ids[:-1])
        if state.delta_KP is None and not learning:
            return [Reading(ids, state.now.state)]
        own = []
        if lineup.static:
            own.append(Reading(ids, state.now.state.rows(slice(1))))
        if not learning:
            own.append(Reading(ids, state.now.state.rows(lineup.learning), state.delta_KP))
        return own

    def _observe(self, part: Part, read: Read | None) -> Observed | NonFiniteState:
        """The scores of a part, and the state after it. Rows that computed no number restart first."""
        if read is None:
            raise ValueError("a stream has at least one row")
        targets_T = torch.tensor(part.ids, device=read.logits_TRV.device)
        predicted = Distributions.of(read.logits_TRV, targets_T)
        if any(predicted.broken):
            return self._again(part, predicted.broken)
        state = part.state
        scored = predicted.score(state.lineup, state.mixture, part.top, logprobs_only=self._logprobs_only)
        now = Cursor(read.state, part.ids[-1])
        ends = self._ends(part)
        after = replace(
            state,
            now=now,
            start=now if ends else state.start,
            mixture=scored.mixture,
            pending=() if ends else (*state.pending, *part.ids),
            pending_learn=() if ends else _flags(part),
            position=state.position + len(part.ids),
        )
        return Observed(state=after, scores=scored.scores, static_logprobs=scored.static_logprobs)

    def _again(self, part: Part, broken: Sequence[bool]) -> Observed | NonFiniteState:
        """The part once more, with zero fast weights where a row computed no number."""
        lineup = part.state.lineup
        if lineup.static and broken[0]:
            return NonFiniteState("the slow weights' state is not finite")
        try:
            state = self._restart(part.state, broken[lineup.learning], must_help=True)
        except NonFiniteState as error:
            return error
        (observed,) = self.round([part._replace(state=state)])
        if isinstance(observed, NonFiniteState):
            return observed
        return replace(observed, guards=("restarted",) * sum(broken) + observed.guards)

    def _restart(self, state: AdaptedState, rows: Sequence[bool], *, must_help: bool = False) -> AdaptedState:
        """Zero fast weights for some rows, and where these are then in the unfinished segment."""
        chosen = torch.tensor([bool(row) for row in rows])
        delta_KP = state.delta_KP
        if must_help and (delta_KP is None or not bool(delta_KP[chosen].any(1).all())):
            raise NonFiniteState("the recurrent state or a slow weight is not finite")
        if delta_KP is not None:
            delta_KP = delta_KP.clone()
            delta_KP[chosen] = 0
        bad_steps = tuple(0 if row else bad for row, bad in zip(rows, state.bad_steps, strict=True))
        return replace(
            state,
            delta_KP=delta_KP if delta_KP is not None and bool(delta_KP.any()) else None,
            now=self._reread(state, chosen) if state.pending else state.now,
            bad_steps=bad_steps,
        )

    def _reread(self, state: AdaptedState, chosen: Tensor) -> Cursor:
        """Where all rows are, after some have read the pending tokens with the slow weights."""
        rows = torch.arange(state.lineup.rows)[state.lineup.learning][chosen]
        ids = (state.start.last, *state.pending[:-1])
        (read,) = self._rows.read([Reading(ids, state.start.state.rows(rows))])
        targets_T = torch.tensor(state.pending, device=read.logits_TRV.device)
        if any(Distributions.of(read.logits_TRV, targets_T).broken):
            raise NonFiniteState("the state at the segment's start is not finite")
        h, c = state.now.state.h.clone(), state.now.state.c.clone()
        h[:, rows], c[:, rows] = read.state
        return Cursor(State(h, c), state.now.last)

    # ---- learning -----------------------------------------------------------------------------------------

    def _lesson(self, part: Part) -> Lesson:
        """The whole segment from its start.

        The loss is the sum over the tokens that may be learned from, divided by S where the reduction is the
        mean: a segment of which a part does not learn takes a smaller step, not a stronger one.
        """
        state = part.state
        whole = (*state.pending, *part.ids)
        scale = 1 / self.config.segment if self.config.reduction == "mean" else 1.0
        rows = state.start.state.rows(state.lineup.learning)
        reading = Reading((state.start.last, *whole[:-1]), rows, state.delta_KP)
        return Lesson(reading, whole, [scale * flag for flag in _flags(part)])

    def _learn(self, part: Part, static: Read | None, taught: Taught) -> Observed | NonFiniteState:
        """The scores of a part that ends its segment, and then the step of each row."""
        own = Read(taught.logits_TRV[len(part.state.pending) :], taught.state)
        observed = self._observe(part, _side_by_side([own] if static is None else [static, own]))
        if isinstance(observed, NonFiniteState) or "restarted" in observed.guards:
            return observed
        return self._step(observed, taught.gradient_RP)

    def _step(self, observed: Observed, gradient_KP: Tensor) -> Observed:
        state = observed.state
        rates = [min(state.rate_scale * rate, sys.float_info.max) for rate in state.lineup.rates]
        delta_KP = self._fast_weights.zero(len(rates)) if state.delta_KP is None else state.delta_KP
        steps = self._rule.step(delta_KP, gradient_KP, rates)
        bad_steps = [0 if taken else bad + 1 for taken, bad in zip(steps.taken, state.bad_steps, strict=True)]
        lost = [bad == MAX_BAD_STEPS for bad in bad_steps]
        guards = [
            *("step_skipped" for taken in steps.taken if not taken),
            *("projected" for projected in steps.projected if projected),
            *("restarted" for row in lost if row),
        ]
        after_KP = steps.delta_NP if any(steps.taken) else state.delta_KP
        state = replace(state, delta_KP=after_KP, bad_steps=tuple(bad_steps))
        if any(steps.taken):
            state = replace(state, updates=state.updates + 1)
        ratios = [ratio for ratio, taken in zip(steps.norm_ratios, steps.taken, strict=True) if taken]
        norms = torch.linalg.vector_norm(gradient_KP, dim=1).tolist()
        return replace(
            observed,
            state=self._restart(state, lost) if any(lost) else state,
            updates=int(any(steps.taken)),
            guards=(*observed.guards, *guards),
            gradient_norms=tuple(norm for norm in norms if math.isfinite(norm)),
            norm_ratio=max(ratios, default=None),
        )


def _flags(part: Part) -> tuple[bool, ...]:
    """Whether each token of the segment so far may be learned from."""
    return (*part.state.pending_learn, *(part.learn for _ in part.ids))


def _side_by_side(reads: Sequence[Read]) -> Read:
    """The rows of all readings of the same tokens."""
    if len(reads) == 1:
        return reads[0]
    h, c = (torch.cat([read.state[part] for read in reads], 1) for part in range(2))
    return Read(torch.cat([read.logits_TRV for read in reads], 1), State(h, c))
