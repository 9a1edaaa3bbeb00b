"""A batch: the next pieces of many streams' texts, each scored and learned from, all rows in one window.

A stream's numbers are those that it gets alone, to the last bit (:mod:`rlstm_model.adaptation.backend`), so a
batch may be made of anything. Shape suffixes: T tokens, K experts, V vocabulary, P fast weights, R rows of a
stream, U hidden units.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlstm_model import native
from rlstm_model.adaptation.backend import Backend
from rlstm_model.adaptation.items import (
    BatchItem,
    BatchResult,
    DecodeStep,
    Learner,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
    states_of,
)
from rlstm_model.adaptation.mixture import MixtureState, follow
from rlstm_model.adaptation.state import AdaptedState, Cursor, NonFiniteState
from rlstm_model.native import Row, Window
from rlstm_model.native.memory import Memory, Mode, Recall, Recalled, mix_all
from rlstm_model.scores import Floats, TokenScores, alternatives, at_least_the_floor, of_any
from rlstm_model.vocab import InvalidToken, check_ids

MAX_BAD_STEPS = 3

# Log-probabilities that the rows of one window have at most; a single item may have more.
_ELEMENTS_AT_ONCE = 1 << 24


# ---- a batch ----------------------------------------------------------------------------------------------


def run_batch(items: Sequence[BatchItem]) -> list[BatchResult]:
    """Do each item: what each gives, in its place.

    An item that cannot be done has its error there and disturbs no other: NonFiniteState where a stream's
    state cannot be used, ArithmeticError where a reader's experts (or the frozen baseline, where it is
    wanted) computed no distribution, InvalidToken for an id outside the vocabulary, ValueError for an item
    without tokens or beyond the end of its segment.
    """
    results: dict[int, BatchResult] = {}
    rows: dict[int, list[Row]] = {}
    for i, item in enumerate(items):
        if (error := _refusal(item)) is not None:
            results[i] = error
        else:
            rows[i] = _rows_of_chunk(item) if isinstance(item, ObserveChunk) else _rows(item)
    for places in _windows(items, rows):
        done = _run([items[i] for i in places], [rows[i] for i in places])
        results |= zip(places, done, strict=True)
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
        if item.state.expert_config.rates and item.state.position % segment + len(item.ids) > segment:
            return ValueError("a chunk ends where its segment does")
    return None


def _windows(items: Sequence[BatchItem], rows: Mapping[int, Sequence[Row]]) -> Iterator[list[int]]:
    """Which items are read together: those of one backend whose learning segments are of one length."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, own in rows.items():
        learned = len(own[-1].targets) if own else 0
        alike.setdefault((id(_backend(items[i])), learned), []).append(i)
    for places in alike.values():
        window: list[int] = []
        elements, vocabulary = 0, _backend(items[places[0]]).vocab_size
        for i in places:
            more = vocabulary * sum([len(row.ids) for row in rows[i]])
            if window and elements + more > _ELEMENTS_AT_ONCE:
                yield window
                window, elements = [], 0
            window.append(i)
            elements += more
        yield window


def _run(items: Sequence[BatchItem], rows: Sequence[Sequence[Row]]) -> Iterator[BatchResult]:
    """Items of one backend."""
    wanted = [row for own in rows for row in own]
    reads = iter(_backend(items[0]).read(wanted) if wanted else ())
    done = [[next(reads) for _ in own] for own in rows]
    recalls: dict[int, Recall] = {}
    for i, (item, own) in enumerate(zip(items, done, strict=True)):
        if isinstance(item, ObserveChunk) and item.state.memory is not None:
            experts = [read.log_probs_TV[-len(item.ids) :] for read in own or item.reads]
            mixed = experts[item.state.expert_config.mixed]
            mode = Mode.LEARN if item.learn else Mode.CONTEXT
            recalls[i] = Recall(item.state.memory, mixed, item.ids, mode)
    recalled = dict(zip(recalls, mix_all([*recalls.values()], native.pool()), strict=True)) if recalls else {}
    for i, (item, own) in enumerate(zip(items, done, strict=True)):
        if isinstance(item, ObserveChunk):
            yield _observed(item, own or item.reads, recalled.get(i))
        else:
            yield _scored(item, own) if isinstance(item, ScoreChunk) else _predicted(item, own)


def _rows(item: ScoreChunk | DecodeStep) -> list[Row]:
    """What reads an item: the frozen baseline first, where there is one, then the experts that learn."""
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
    after_KP: NDArray[Any] = np.empty(
        (len(experts.rates), chunk.learner.backend.fast_weights), chunk.learner.backend.dtype
    )
    learning = zip(state.start.states_R2U, deltas, experts.rates, after_KP, strict=True)
    for states_2U, delta_P, rate, after_P in learning:
        rate = min(config.rate * min(state.rate_scale * rate, sys.float_info.max), 3e38)
        inputs = (state.start.last, *whole[:-1])
        rows.append(Row(inputs, states_2U, delta_P, whole, loss_weights, rate, into_P=after_P))
    return rows


def _columns(
    item: ObserveChunk | ScoreChunk,
    mixed: native.Mixed,
    log_probs_TV: Floats | None,
    loaded_TV: Floats | None,
    by_weights: Floats | None = None,
    by_memory: Floats | None = None,
) -> TokenScores:
    """What is answered of tokens that were scored against ``log_probs_TV``, None where it is not needed."""
    count = len(mixed.logprobs_T)
    ids = logprobs = by_spaces = loaded_by_spaces = None
    if item.top and mixed.log_probs_TV is not None:
        ids, logprobs = alternatives(mixed.log_probs_TV, item.top)
    if item.spaces is not None and log_probs_TV is not None:
        by_spaces = of_any(log_probs_TV, item.spaces)
        loaded_by_spaces = None if loaded_TV is None else of_any(loaded_TV, item.spaces)
    ranks, entropies = mixed.ranks_T, mixed.entropies_T
    return TokenScores(
        logprobs=at_least_the_floor(mixed.logprobs_T),
        ranks=np.zeros(count, np.int64) if ranks is None else ranks.astype(np.int64),
        entropies=np.full(count, np.nan, np.float32) if entropies is None else entropies,
        top_ids=ids,
        top_logprobs=logprobs,
        weights_logprobs=by_weights,
        memory_logprobs=by_memory,
        space_logprobs=by_spaces,
        static_space_logprobs=loaded_by_spaces,
    )


def _distributions(
    mixture: MixtureState | None, experts: Sequence[Floats], mixed: native.Mixed
) -> Floats | None:
    """What tokens are scored against: to the last bit what predicts each of them (:func:`_predicted`)."""
    return experts[0] if mixture is None else mixed.log_probs_TV


def _of_targets(log_probs_TV: Floats, ids: Sequence[int] | NDArray[np.int32]) -> Floats:
    return np.asarray(log_probs_TV[np.arange(len(ids)), np.asarray(ids)])


def _scored(item: ScoreChunk, reads: Sequence[Window]) -> ScoredChunk | ArithmeticError:
    experts = item.reader.mixed(reads, item.cursor, item.ids)
    scores = not item.reader.logprobs_only
    whole = item.top > 0 or item.distributions or item.spaces is not None
    mixed, mixture = follow(item.cursor.mixture, experts, item.ids, whole=whole, scores=scores)
    loaded_TV = reads[0].log_probs_TV if item.reader.static else None
    static = None if loaded_TV is None else _of_targets(loaded_TV, item.ids)
    if not mixed.whole or (static is not None and bool(np.isnan(static).any())):
        return ArithmeticError("the model's output is not finite")
    after = Cursor(
        states_of(reads),
        item.ids[-1],
        mixture,
        item.reader.context_after(item.cursor, item.ids),
    )
    baseline = None if static is None else at_least_the_floor(static)
    log_probs_TV = _distributions(item.cursor.mixture, experts, mixed) if whole else None
    columns = _columns(item, mixed, log_probs_TV, loaded_TV)
    return ScoredChunk(columns, after, baseline, log_probs_TV if item.distributions else None)


def _predicted(item: DecodeStep, reads: Sequence[Window]) -> NextToken:
    experts = item.reader.mixed(reads, item.cursor, (0,))  # before any: which it is plays no part
    log_probs_V = experts[0][0]
    if item.cursor.mixture is not None:
        # The target is any: only the distribution is wanted, and the weights are as they were.
        mixed, _ = follow(item.cursor.mixture, experts, (0,), whole=True)
        if mixed.read and mixed.log_probs_TV is not None:
            log_probs_V = mixed.log_probs_TV[0]
        else:
            log_probs_V = np.full_like(log_probs_V, np.nan)
    return NextToken(log_probs_V, experts, reads, item.cursor, item.reader)


# ---- learning ---------------------------------------------------------------------------------------------


def _observed(
    chunk: ObserveChunk, reads: Sequence[Window], recalled: Recalled | None
) -> ObservedChunk | NonFiniteState:
    """The scores of a chunk, and the state after it and after the step that it ended with."""
    new = len(chunk.ids)
    read_TV = [read.log_probs_TV[-new:] for read in reads]
    targets_T = np.array(chunk.ids, np.int32)
    own_RT = [_of_targets(log_probs_TV, targets_T) for log_probs_TV in read_TV]
    broken = [bool(np.isnan(own_T).any()) for own_T in own_RT]
    if any(broken):
        return _observe_again(chunk, broken)
    experts = chunk.state.expert_config
    scores = not chunk.learner.logprobs_only
    own, memory = read_TV[experts.mixed], None
    by_weights = by_memory = None
    if recalled is not None:
        own, memory = [*own, recalled.log_probs_TV], recalled.memory
        by_weights = at_least_the_floor(recalled.weights_T)
        by_memory = at_least_the_floor(_of_targets(recalled.log_probs_TV, targets_T))
    whole = chunk.top > 0 or chunk.distributions or chunk.spaces is not None
    mixed, mixture = follow(chunk.state.mixture, own, targets_T, whole=whole, scores=scores)
    log_probs_TV = _distributions(chunk.state.mixture, own, mixed) if whole else None
    loaded_TV = read_TV[0] if experts.static else None
    steps = [read.step for read in reads if read.step is not None]
    taken = [step.taken for step in steps]
    try:
        state, lost = _state_after(chunk, Cursor(states_of(reads), chunk.ids[-1]), mixture, memory, steps)
    except NonFiniteState as error:
        return error
    return ObservedChunk(
        state=state,
        scores=_columns(chunk, mixed, log_probs_TV, loaded_TV, by_weights, by_memory),
        static_logprobs=at_least_the_floor(own_RT[0]) if experts.static else None,
        log_probs_TV=log_probs_TV if chunk.distributions else None,
        updates=int(any(taken)),
        guards=(
            *("step_skipped" for ok in taken if not ok),
            *("projected" for step in steps if step.taken and step.scale != 1),
            *("restarted" for row in lost if row),
        ),
        gradient_norms=tuple(step.gradient_norm for step in steps if math.isfinite(step.gradient_norm)),
    )


def _state_after(
    chunk: ObserveChunk,
    now: Cursor,
    mixture: MixtureState | None,
    memory: Memory | None,
    steps: Sequence[native.Step],
) -> tuple[AdaptedState, list[bool]]:
    """The state after a chunk and the step of each row that learned; which of these began anew."""
    before, ends = chunk.state, chunk.ends
    taken = [step.taken for step in steps]
    bad = before.bad_steps
    if steps:
        bad = tuple(0 if ok else count + 1 for ok, count in zip(taken, bad, strict=True))
    lost = [count == MAX_BAD_STEPS for count in bad]
    state = replace(
        before,
        delta_KP=steps[0].delta_P.base if any(taken) else before.delta_KP,  # what all rows put theirs into
        now=now,
        start=now.of(before.expert_config.learning) if ends else before.start,
        mixture=mixture,
        memory=memory,
        pending=() if ends else before.pending + chunk.ids,
        pending_learn=() if ends else chunk.flags,
        position=before.position + len(chunk.ids),
        updates=before.updates + any(taken),
        bad_steps=bad,
    )
    return (restart(chunk.learner, state, lost) if any(lost) else state), lost


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
    # of all that are mixed: the frozen baseline first, the memory last
    dropped = [False, *chosen.tolist(), *([False] * state.expert_config.remembers)]
    return replace(
        state,
        delta_KP=delta_KP if delta_KP is not None and delta_KP.any() else None,
        now=_reread(learner, state, chosen) if state.pending and chosen.any() else state.now,
        mixture=None if state.mixture is None else state.mixture.drop(dropped),
        bad_steps=tuple(0 if row else bad for row, bad in zip(rows, state.bad_steps, strict=True)),
    )


def _reread(learner: Learner, state: AdaptedState, chosen: NDArray[np.bool_]) -> Cursor:
    """Where all rows are, after some have read the pending tokens with the slow weights."""
    ids = (state.start.last, *state.pending[:-1])
    reads = learner.backend.read([Row(ids, states_2U) for states_2U in state.start.states_R2U[chosen]])
    if any(np.isnan(_of_targets(read.log_probs_TV, state.pending)).any() for read in reads):
        raise NonFiniteState("the state at the segment's start is not finite")
    states_R2U = state.now.states_R2U.copy()
    first = state.expert_config.learning.start
    for row, read in zip(first + np.flatnonzero(chosen), reads, strict=True):
        states_R2U[row] = read.states_2U
    return Cursor(states_R2U, state.now.last)
