"""A batch: the next pieces of many streams' texts, each scored and learned from, all rows in one window.

A stream's numbers are those that it gets alone, to the last bit (:mod:`rlstm_model.adaptation.backend`), so a
batch may be made of anything. Shape suffixes: T tokens, K experts, V vocabulary, P fast weights, R rows of a
stream, U hidden units.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlstm_model import native
from rlstm_model.adaptation.backend import Backend, Read, Row
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.state import AdaptedState, Cursor, ExpertConfig, NonFiniteState
from rlstm_model.native.memory import REACH, Memory, Mode
from rlstm_model.scores import Floats, TokenScores, alternatives, at_least_the_floor
from rlstm_model.vocab import InvalidToken, check_ids

MAX_BAD_STEPS = 3

# Log-probabilities that the rows of one window have at most; a single item may have more.
_ELEMENTS_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class Learner:
    """A model under a calibration, without any stream of its own.

    slow_norm      of the model's weights as loaded, by which the norm of fast weights is measured
    logprobs_only  gives no ranks and entropies, which take longer than all else over a large vocabulary
    """

    backend: Backend
    calibration: Calibration
    slow_norm: float
    bos_id: int
    logprobs_only: bool = False

    @property
    def segment(self) -> int:
        """S."""
        return self.calibration.config.segment


@dataclass(frozen=True, eq=False)
class ObserveChunk:
    """The next tokens of a stream: at least one, and none beyond the end of its segment.

    ``learn``: whether they may be learned from; ``top`` alternatives are wanted of each, or the whole
    ``distributions``; ``reads``: what the rows gave that have read the token before a single one already.
    """

    state: AdaptedState
    ids: tuple[int, ...]
    learn: bool
    top: int
    learner: Learner
    distributions: bool = False
    reads: Sequence[Read] = ()

    @cached_property
    def ends(self) -> bool:
        """Whether the segment ends here."""
        return (self.state.position + len(self.ids)) % self.learner.segment == 0

    @cached_property
    def flags(self) -> tuple[bool, ...]:
        """Whether each token of the segment so far may be learned from."""
        return self.state.pending_learn + (self.learn,) * len(self.ids)

    @cached_property
    def learns(self) -> bool:
        """Whether a step is taken after these tokens."""
        idle = self.learner.calibration.idle or self.state.rate_scale == 0
        return self.ends and any(self.flags) and not idle and bool(self.state.expert_config.rates)


@dataclass(frozen=True, eq=False)
class FrozenExperts:
    """A stream's experts at one moment.

    delta_KP   fast weights of those that learn; None is zero for all
    cursor     where the stream was: the rows that are mixed, and with ``static`` the frozen baseline first
    static     whether that row's log-probabilities are wanted too
    logprobs_only  as in :class:`Learner`
    """

    backend: Backend
    delta_KP: NDArray[Any] | None
    cursor: Cursor
    static: bool = False
    logprobs_only: bool = False
    memory: Memory | None = None

    def mixed(self, reads: "Sequence[Read]", cursor: Cursor, ids: Sequence[int]) -> list[Floats]:
        """The log-probabilities that are mixed of the tokens: of the last rows, and of the memory."""
        experts = [
            read.log_probs_TV for read in reads[len(reads) - cursor.experts + (self.memory is not None) :]
        ]
        if self.memory is not None:
            experts.append(self.memory.mix(experts, ids, Mode.LOOK, cursor.context).log_probs_TV)
        return experts

    def context_after(self, cursor: Cursor, ids: Sequence[int]) -> tuple[int, ...]:
        """What a memory will see before the next token, beside its own."""
        return () if self.memory is None else (*cursor.context, *ids)[-REACH:]


@dataclass(frozen=True, eq=False)
class ScoreChunk:
    """Tokens to be scored after ``cursor``, at least one; nothing is learned. The rest as above."""

    reader: FrozenExperts
    cursor: Cursor
    ids: tuple[int, ...]
    top: int = 0
    distributions: bool = False


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """The cursor's token to be read, and the one after it to be predicted."""

    reader: FrozenExperts
    cursor: Cursor


BatchItem: TypeAlias = ObserveChunk | ScoreChunk | DecodeStep


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedChunk:
    """What the next tokens of a stream gave.

    scores           of the mixture, as the weights were before they saw these tokens
    static_logprobs  of the frozen baseline, float32; None where it is not carried
    log_probs_TV     what each token was scored against; None where it was not wanted
    updates          1 where a segment ended here and was learned from
    guards           what was kept from happening: "step_skipped", "projected", "restarted", once a row
    gradient_norms   of the rows whose segment ended here and was learned from, where they are finite
    norm_ratio       of the fast weights to the slow ones after the step, the greatest of all rows
    """

    state: AdaptedState
    scores: TokenScores
    static_logprobs: Floats | None
    log_probs_TV: Floats | None = None
    updates: int = 0
    guards: tuple[str, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    norm_ratio: float | None = None


class ScoredChunk(NamedTuple):
    """The scores of tokens, and the place after them; the rest as in :class:`ObservedChunk`."""

    scores: TokenScores
    cursor: Cursor
    static_logprobs: Floats | None = None
    log_probs_TV: Floats | None = None

    @staticmethod
    def concatenate(parts: "Sequence[ScoredChunk]") -> "ScoredChunk":
        """Scores of one text's pieces, one after the other. Raises ValueError when there is none."""
        scores = TokenScores.concatenate([part.scores for part in parts])
        static = [part.static_logprobs for part in parts if part.static_logprobs is not None]
        return ScoredChunk(scores, parts[-1].cursor, np.concatenate(static) if static else None)


@dataclass(frozen=True, eq=False)
class NextToken:
    """The next token's log-probabilities ``[V]``, and where the text goes on once it is chosen.

    Whether the distribution is one is not looked at: sampling refuses what is not finite.
    """

    log_probs_V: Floats
    experts: Sequence[Floats]
    reads: Sequence[Read]
    before: Cursor
    reader: FrozenExperts

    def after(self, token: int) -> Cursor:
        """The place after ``token``; the mixture's weights follow it as they follow text."""
        mixture = self.before.mixture
        if mixture is not None:
            _, mixture = _follow(mixture, self.experts, (token,))
        context = self.reader.context_after(self.before, (token,))
        return Cursor(_states(self.reads), token, mixture, context)


BatchResult: TypeAlias = ObservedChunk | ScoredChunk | NextToken | Exception


# ---- a batch ----------------------------------------------------------------------------------------------


def run_batch(items: Sequence[BatchItem]) -> list[BatchResult]:
    """Do each item: what each gives, in its place.

    An item that cannot be done has its error there and disturbs no other: NonFiniteState where a stream's
    state cannot be used, ArithmeticError where a reader's experts (or the frozen baseline, where it is
    wanted) computed no distribution, InvalidToken for an id outside the vocabulary, ValueError for an item
    without tokens or beyond the end of its segment.
    """
    results: dict[int, BatchResult] = {}
    for i, item in enumerate(items):
        if (error := _refusal(item)) is not None:
            results[i] = error
    for places in _windows(items, results):
        results |= zip(places, _run([items[i] for i in places]), strict=True)
    return [results[i] for i in range(len(items))]


def _backend(item: BatchItem) -> Backend:
    return item.learner.backend if isinstance(item, ObserveChunk) else item.reader.backend


def _refusal(item: BatchItem) -> ValueError | None:
    """Why an item cannot be done, where its form tells: it reads nothing, no token, or too much."""
    if isinstance(item, DecodeStep):
        return None
    if not item.ids:
        return ValueError("an item has at least one token")
    try:
        check_ids(item.ids, _backend(item).vocab_size)
    except InvalidToken as error:
        return error
    if isinstance(item, ObserveChunk):
        segment = item.learner.segment
        if item.state.position % segment + len(item.ids) > segment:
            return ValueError("a chunk ends where its segment does")
    return None


def _windows(items: Sequence[BatchItem], refused: Mapping[int, BatchResult]) -> Iterator[list[int]]:
    """Which items are read together: those of one backend whose learning segments are of one length."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, item in enumerate(items):
        if i not in refused:
            learned = len(item.flags) if isinstance(item, ObserveChunk) and item.learns else 0
            alike.setdefault((id(_backend(item)), learned), []).append(i)
    for places in alike.values():
        window: list[int] = []
        elements = 0
        for i in places:
            more = _elements(items[i])
            if window and elements + more > _ELEMENTS_AT_ONCE:
                yield window
                window, elements = [], 0
            window.append(i)
            elements += more
        yield window


def _elements(item: BatchItem) -> int:
    if isinstance(item, ObserveChunk):
        rows, tokens = item.state.expert_config.rows, len(item.flags if item.learns else item.ids)
    else:
        rows, tokens = len(item.cursor.states_R2U), len(item.ids) if isinstance(item, ScoreChunk) else 1
    return rows * tokens * _backend(item).vocab_size


def _run(items: Sequence[BatchItem]) -> Iterator[BatchResult]:
    """Items of one backend."""
    rows = [_rows(item) for item in items]
    wanted = [row for own in rows for row in own]
    reads = iter(_backend(items[0]).read(wanted) if wanted else ())
    for item, own in zip(items, rows, strict=True):
        done = [next(reads) for _ in own]
        if isinstance(item, ObserveChunk):
            yield _observed(item, done or item.reads)
        elif isinstance(item, ScoreChunk):
            yield _scored(item, done)
        else:
            yield _predicted(item, done)


def _rows(item: BatchItem) -> list[Row]:
    """What reads an item: the frozen baseline first, where there is one, then the experts that learn."""
    if isinstance(item, ObserveChunk):
        return _rows_of_chunk(item)
    last, delta_KP = item.cursor.last, item.reader.delta_KP
    ids = (last, *item.ids[:-1]) if isinstance(item, ScoreChunk) else (last,)
    return _reading(ids, item.cursor.states_R2U, delta_KP)


def _reading(ids: Sequence[int], states_R2U: Floats, delta_KP: NDArray[Any] | None) -> list[Row]:
    """Rows that learn nothing; of those with fast weights, which are the last, each has its own."""
    plain = len(states_R2U) - (0 if delta_KP is None else len(delta_KP))
    deltas = [None] * plain + ([] if delta_KP is None else [*delta_KP])
    return [Row(ids, states_2U, delta_P) for states_2U, delta_P in zip(states_R2U, deltas, strict=True)]


def _rows_of_chunk(chunk: ObserveChunk) -> list[Row]:
    """A chunk's rows.

    The loss is the sum over the tokens that may be learned from, divided by S where the reduction is the
    mean: a segment of which a part does not learn takes a smaller step, not a stronger one.
    """
    state, config = chunk.state, chunk.learner.calibration.config
    ids = (state.now.last, *chunk.ids[:-1])
    if not chunk.learns:
        return [] if chunk.reads else _reading(ids, state.now.states_R2U, state.delta_KP)
    whole = (*state.pending, *chunk.ids)
    scale = 1 / config.segment if config.reduction == "mean" else 1.0
    loss_weights = [scale * flag for flag in chunk.flags]
    experts = state.expert_config
    rows = [Row(ids, state.now.states_R2U[0])] if experts.static else []
    deltas = [None] * len(experts.rates) if state.delta_KP is None else [*state.delta_KP]
    for states_2U, delta_P, rate in zip(
        state.start.states_R2U[experts.learning], deltas, experts.rates, strict=True
    ):
        rate = min(config.rate * min(state.rate_scale * rate, sys.float_info.max), 3e38)
        inputs = (state.start.last, *whole[:-1])
        rows.append(Row(inputs, states_2U, delta_P, whole, loss_weights, rate))
    return rows


def _follow(
    mixture: MixtureState | None,
    experts: Sequence[Floats],
    ids: Sequence[int],
    *,
    whole: bool = False,
    scores: bool = False,
) -> tuple[native.Mixed, MixtureState | None]:
    """A text's tokens in a mixture of experts, and the mixture after them."""
    weights, tokens = (1.0,) if mixture is None else mixture.weights, 0 if mixture is None else mixture.tokens
    mixed = native.mix(
        experts, np.array(ids, np.int32), np.array(weights), tokens, scores=scores, whole=whole
    )
    after = None if mixture is None else MixtureState(tuple(mixed.weights_K.tolist()), mixed.tokens)
    return mixed, after


def _columns(mixed: native.Mixed, top: int) -> TokenScores:
    count = len(mixed.logprobs_T)
    ids = logprobs = None
    if top and mixed.log_probs_TV is not None:
        ids, logprobs = alternatives(mixed.log_probs_TV, top)
    ranks, entropies = mixed.ranks_T, mixed.entropies_T
    return TokenScores(
        logprobs=at_least_the_floor(mixed.logprobs_T),
        ranks=np.zeros(count, np.int64) if ranks is None else ranks.astype(np.int64),
        entropies=np.full(count, np.nan, np.float32) if entropies is None else entropies,
        top_ids=ids,
        top_logprobs=logprobs,
    )


def _states(reads: Sequence[Read]) -> Floats:
    return np.stack([read.states_2U for read in reads])


def _distributions(
    mixture: MixtureState | None, experts: Sequence[Floats], mixed: native.Mixed
) -> Floats | None:
    """What tokens are scored against: to the last bit what predicts each of them (:func:`_predicted`)."""
    return experts[0] if mixture is None else mixed.log_probs_TV


def _of_targets(log_probs_TV: Floats, ids: Sequence[int]) -> Floats:
    return np.asarray(log_probs_TV[np.arange(len(ids)), np.array(ids)])


def _scored(item: ScoreChunk, reads: Sequence[Read]) -> ScoredChunk | ArithmeticError:
    experts = item.reader.mixed(reads, item.cursor, item.ids)
    scores = not item.reader.logprobs_only
    whole = item.top > 0 or item.distributions
    mixed, mixture = _follow(item.cursor.mixture, experts, item.ids, whole=whole, scores=scores)
    static = _of_targets(reads[0].log_probs_TV, item.ids) if item.reader.static else None
    if not mixed.whole or (static is not None and bool(np.isnan(static).any())):
        return ArithmeticError("the model's output is not finite")
    after = Cursor(
        _states(reads),
        item.ids[-1],
        mixture,
        item.reader.context_after(item.cursor, item.ids),
    )
    baseline = None if static is None else at_least_the_floor(static)
    log_probs_TV = _distributions(item.cursor.mixture, experts, mixed) if item.distributions else None
    return ScoredChunk(_columns(mixed, item.top), after, baseline, log_probs_TV)


def _predicted(item: DecodeStep, reads: Sequence[Read]) -> NextToken:
    experts = item.reader.mixed(reads, item.cursor, (0,))  # before any: which it is plays no part
    log_probs_V = experts[0][0]
    if item.cursor.mixture is not None:
        # The target is any: only the distribution is wanted, and the weights are as they were.
        mixed, _ = _follow(item.cursor.mixture, experts, (0,), whole=True)
        log_probs_V = np.full_like(log_probs_V, np.nan)
        if mixed.read and mixed.log_probs_TV is not None:
            log_probs_V = mixed.log_probs_TV[0]
    return NextToken(log_probs_V, experts, reads, item.cursor, item.reader)


# ---- learning ---------------------------------------------------------------------------------------------


def _observed(chunk: ObserveChunk, reads: Sequence[Read]) -> ObservedChunk | NonFiniteState:
    """The scores of a chunk, and the state after it and after the step that it ended with."""
    new = len(chunk.ids)
    read_TV = [read.log_probs_TV[-new:] for read in reads]
    own_TR = np.stack([_of_targets(log_probs_TV, chunk.ids) for log_probs_TV in read_TV], 1)
    broken = [bool(np.isnan(own_T).any()) for own_T in own_TR.T]
    if any(broken):
        return _observe_again(chunk, broken)
    experts = chunk.state.expert_config
    scores = not chunk.learner.logprobs_only
    own, memory = read_TV[experts.mixed], chunk.state.memory
    by_weights = by_memory = None
    if memory is not None:
        recalled = memory.mix(own, chunk.ids, Mode.LEARN if chunk.learn else Mode.CONTEXT)
        own, memory = [*own, recalled.log_probs_TV], recalled.memory
        by_weights = at_least_the_floor(recalled.weights_T)
        by_memory = at_least_the_floor(_of_targets(recalled.log_probs_TV, chunk.ids))
    whole = chunk.top > 0 or chunk.distributions
    mixed, mixture = _follow(chunk.state.mixture, own, chunk.ids, whole=whole, scores=scores)
    state = replace(_after(chunk, reads, mixture), memory=memory)
    observed = ObservedChunk(
        state=state,
        scores=replace(_columns(mixed, chunk.top), weights_logprobs=by_weights, memory_logprobs=by_memory),
        static_logprobs=at_least_the_floor(own_TR[:, 0]) if experts.static else None,
        log_probs_TV=_distributions(chunk.state.mixture, own, mixed) if chunk.distributions else None,
    )
    if not chunk.learns:
        return observed
    try:
        return _stepped(chunk, observed, [read.step for read in reads if read.step is not None])
    except NonFiniteState as error:
        return error


def _after(chunk: ObserveChunk, reads: Sequence[Read], mixture: MixtureState | None) -> AdaptedState:
    now = Cursor(_states(reads), chunk.ids[-1])
    before, ends = chunk.state, chunk.ends
    return replace(
        before,
        now=now,
        start=now if ends else before.start,
        mixture=mixture,
        pending=() if ends else before.pending + chunk.ids,
        pending_learn=() if ends else chunk.flags,
        position=before.position + len(chunk.ids),
    )


def _stepped(chunk: ObserveChunk, observed: ObservedChunk, steps: Sequence[native.Step]) -> ObservedChunk:
    """The same after the step of each row that learned, and its guards."""
    before = chunk.state
    taken = [step.taken for step in steps]
    bad = tuple(0 if ok else count + 1 for ok, count in zip(taken, before.bad_steps, strict=True))
    lost = [count == MAX_BAD_STEPS for count in bad]
    guards = [
        *("step_skipped" for ok in taken if not ok),
        *("projected" for step in steps if step.taken and step.scale != 1),
        *("restarted" for row in lost if row),
    ]
    slow_norm = chunk.learner.slow_norm
    greatest = chunk.learner.calibration.config.max_norm_ratio
    ratios = [min(step.norm / slow_norm, greatest) if slow_norm else 0.0 for step in steps if step.taken]
    state = replace(
        observed.state,
        delta_KP=np.stack([step.delta_P for step in steps]) if any(taken) else before.delta_KP,
        updates=before.updates + any(taken),
        bad_steps=bad,
    )
    return replace(
        observed,
        state=restart(chunk.learner, state, lost) if any(lost) else state,
        updates=int(any(taken)),
        guards=tuple(guards),
        gradient_norms=tuple(step.gradient_norm for step in steps if math.isfinite(step.gradient_norm)),
        norm_ratio=max(ratios, default=None),
    )


def _observe_again(chunk: ObserveChunk, broken: Sequence[bool]) -> ObservedChunk | NonFiniteState:
    """Once more, with zero fast weights where a row computed no distribution."""
    experts = chunk.state.expert_config
    if experts.static and broken[0]:
        return NonFiniteState("the slow weights' state is not finite")
    rows = list(broken[experts.learning])
    try:
        state = restart(chunk.learner, chunk.state, rows, must_help=True)
    except NonFiniteState as error:
        return error
    (result,) = run_batch([replace(chunk, state=state, reads=())])
    if not isinstance(result, ObservedChunk):
        return result if isinstance(result, NonFiniteState) else NonFiniteState(str(result))
    return replace(result, guards=("restarted",) * sum(rows) + result.guards)


def restart(
    learner: Learner, state: AdaptedState, rows: Sequence[bool], *, must_help: bool = False
) -> AdaptedState:
    """Zero fast weights for some of the rows that learn, and where these are then in the unfinished segment.

    Such an expert counts no more than the share gives back to one whose last token was impossible to it
    (:meth:`MixtureState.drop`). What it loses goes to the others, so that what is guaranteed against each of
    these still is. Raises NonFiniteState where the slow weights compute no number from the segment's start,
    and, with ``must_help``, where these rows have no fast weights that could be to blame.
    """
    chosen = np.array(rows, bool)
    delta_KP = state.delta_KP
    if must_help and (delta_KP is None or not delta_KP[chosen].any(1).all()):
        raise NonFiniteState("the recurrent state or a slow weight is not finite")
    if delta_KP is not None:
        delta_KP = delta_KP.copy()
        delta_KP[chosen] = 0
    return replace(
        state,
        delta_KP=delta_KP if delta_KP is not None and delta_KP.any() else None,
        now=_reread(learner, state, chosen) if state.pending and chosen.any() else state.now,
        mixture=None if state.mixture is None else state.mixture.drop(_dropped(state.expert_config, chosen)),
        bad_steps=tuple(0 if row else bad for row, bad in zip(rows, state.bad_steps, strict=True)),
    )


def _dropped(experts: ExpertConfig, chosen: NDArray[np.bool_]) -> list[bool]:
    """Of all that are mixed: the frozen baseline first, the memory last."""
    return [False, *chosen.tolist(), *([False] * experts.remembers)]


def _reread(learner: Learner, state: AdaptedState, chosen: NDArray[np.bool_]) -> Cursor:
    """Where all rows are, after some have read the pending tokens with the slow weights."""
    rows = np.arange(state.expert_config.rows)[state.expert_config.learning][chosen]
    ids = (state.start.last, *state.pending[:-1])
    reads = learner.backend.read([Row(ids, state.start.states_R2U[row]) for row in rows])
    if any(np.isnan(_of_targets(read.log_probs_TV, state.pending)).any() for read in reads):
        raise NonFiniteState("the state at the segment's start is not finite")
    states_R2U = state.now.states_R2U.copy()
    for row, read in zip(rows, reads, strict=True):
        states_R2U[row] = read.states_2U
    return Cursor(states_R2U, state.now.last)
