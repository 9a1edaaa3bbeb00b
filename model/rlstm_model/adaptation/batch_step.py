"""A round: many streams advanced by a piece of work each, all that reads alike in one pass.

What a work gives is, to the last bit, what it gives alone: rows are padded to whole tiles, and what is
computed of a row is computed of nothing else. So a round may be cut into any batches: its memory has a bound
for each thread, and its batches are done side by side where there is a thread_pool.
Shape suffixes: N sessions, K experts, V vocabulary.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.adapted_state import AdaptedState, Cursor, NonFiniteState
from rlstm_model.adaptation.batch_items import (
    BatchItem,
    BatchResult,
    Decisions,
    DecodeStep,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
    refusal,
    rows_of,
    side_by_side,
)
from rlstm_model.adaptation.experts import Scored, Text
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.passes import Done, Passes, PassKind
from rlstm_model.adaptation.restart import restart
from rlstm_model.adaptation.rows import Rows
from rlstm_model.adaptation.tasks import Task, batches, task_of
from rlstm_model.adaptation.thread_pool import ThreadPool

__all__ = [
    "BatchItem",
    "BatchResult",
    "Decisions",
    "DecodeStep",
    "NextToken",
    "ObserveChunk",
    "ObservedChunk",
    "PassKind",
    "ScoreChunk",
    "ScoredChunk",
    "advance_cursors",
    "run_batch",
]


class _Broken(NamedTuple):
    """A part of which some rows computed no distribution: these restart, and it is done once more."""

    rows: Sequence[bool]


class _Batch(NamedTuple):
    """Works that are read by the same rows and share their passes: all turns, or none of them."""

    rows: Rows
    turns: bool
    places: Sequence[int]
    works: Sequence[BatchItem]
    tasks: Sequence[Task]


@torch.no_grad()
def run_batch(
    works: Sequence[BatchItem],
    thread_pool: ThreadPool | None = None,
    padding: Counter[PassKind] | None = None,
) -> list[BatchResult]:
    """Do each work, all of them by the ``thread_pool`` where there is one: what each gives, in its place.

    To ``padding`` is added what was computed for nobody, in tokens, by the kind of pass.
    A work that cannot be done has its error there and disturbs no other: NonFiniteState where a stream's
    state cannot be used, ArithmeticError where a reader's experts (or the static row, where it is wanted)
    computed no distribution, InvalidToken for an id outside the vocabulary, ValueError for a work without
    tokens or beyond the end of its segment.
    """
    results: dict[int, BatchResult] = {}
    for i, work in enumerate(works):
        error = refusal(work)
        if error is not None:
            results[i] = error
    broken = {i: rows for i, work in enumerate(works) if i not in results and (rows := _known_broken(work))}
    whole = list(
        _batches(works, results.keys() | broken.keys(), 1 if thread_pool is None else thread_pool.threads)
    )
    done = map(_do, whole) if thread_pool is None else thread_pool.map(_do, whole)
    for batch, (outcomes, wasted) in zip(whole, done, strict=True):
        if padding is not None:
            padding.update(wasted)
        for i, outcome in zip(batch.places, outcomes, strict=True):
            if isinstance(outcome, _Broken):
                broken[i] = outcome.rows
            else:
                results[i] = outcome
    if broken:
        parts = {i: work for i in broken if isinstance(work := works[i], ObserveChunk)}
        results |= _again(parts, broken, padding)
    return [results[i] for i in range(len(works))]


def _known_broken(work: BatchItem) -> Sequence[bool]:
    """Which rows computed no distribution when a part was done before; empty for none."""
    if not isinstance(work, ObserveChunk) or work.decided is None or not work.decided.restarted:
        return ()
    static = [False] * (work.state.expert_config.rows - len(work.decided.restarted))
    return (*static, *work.decided.restarted)


def advance_cursors(chosen: Sequence[tuple[NextToken, int]]) -> list[Cursor]:
    """The places after the tokens that were chosen: what :meth:`NextToken.after` gives, for many at once."""
    cursors = [Cursor(following.state, token) for following, token in chosen]
    sessions: dict[int, dict[int, MixtureState]] = {}
    for i, (following, _) in enumerate(chosen):
        if following.before.mixture is not None:
            sessions.setdefault(following.before.mixture.experts, {})[i] = following.before.mixture
    for before in sessions.values():
        logprobs_NK = torch.stack([chosen[i][0].experts_1KV[0, :, chosen[i][1]] for i in before])
        done = mixture.read(MixtureState.concatenate([*before.values()]), logprobs_NK[None])
        for i, after in zip(before, done.state.sessions(), strict=True):
            cursors[i] = cursors[i]._replace(mixture=after)
    return cursors


def _batches(works: Sequence[BatchItem], refused: Collection[int], threads: int) -> Iterator[_Batch]:
    """The works that are not refused, as batches enough for all threads."""
    alike: dict[tuple[Rows, bool], list[int]] = {}
    for i, work in enumerate(works):
        if i not in refused:
            alike.setdefault((rows_of(work), isinstance(work, DecodeStep)), []).append(i)
    for (rows, turns), places in alike.items():
        tasks = [task_of(works[i]) for i in places]
        for batch in batches(rows, tasks, threads):
            own = [places[k] for k in batch]
            yield _Batch(rows, turns, own, [works[i] for i in own], [tasks[k] for k in batch])


@torch.no_grad()
def _do(batch: _Batch) -> tuple[Sequence[BatchResult | _Broken], Counter[PassKind]]:
    """One batch, and its padding; its distributions are gone before those of the thread's next one are."""
    passes = Passes(batch.rows, batch.works, batch.tasks, turns=batch.turns)
    outcomes = _turns(batch.works, passes) if batch.turns else _texts(batch.works, passes)
    return outcomes, passes.padding


# ---- reading one token ------------------------------------------------------------------------------------


def _turns(works: Sequence[BatchItem], passes: Passes) -> list[BatchResult]:
    results: dict[int, BatchResult] = {}
    cursors = [work.cursor for work in works if isinstance(work, DecodeStep)]
    for experts in {cursor.experts for cursor in cursors}:
        chosen = [i for i, cursor in enumerate(cursors) if cursor.experts == experts]
        experts_NKV = passes.predictions.rows([passes.done[i].places[-experts:] for i in chosen])
        mixtures = [mixed for i in chosen if (mixed := cursors[i].mixture) is not None]
        log_probs_NV = experts_NKV[:, 0]
        if mixtures:
            log_probs_NV = mixture.mix(MixtureState.concatenate(mixtures).weights_NK, experts_NKV)
        for i, log_probs_V, experts_1KV in zip(
            chosen, log_probs_NV, torch.split(experts_NKV, 1), strict=True
        ):
            results[i] = NextToken(log_probs_V, experts_1KV, side_by_side(passes.done[i].states), cursors[i])
    return [results[i] for i in range(len(works))]


# ---- reading texts ----------------------------------------------------------------------------------------


def _texts(works: Sequence[BatchItem], passes: Passes) -> list[BatchResult | _Broken]:
    texts = [_text(work, done) for work, done in zip(works, passes.done, strict=True)]
    results: list[BatchResult | _Broken] = []
    for work, done, scored in zip(works, passes.done, passes.predictions.score(texts), strict=True):
        if isinstance(work, ObserveChunk):
            results.append(_observed(work, done, scored))
        elif isinstance(work, ScoreChunk):
            results.append(_sliced(work, done, scored))
    return results


def _text(work: BatchItem, done: Done) -> Text:
    if isinstance(work, ObserveChunk):
        expert_config, lean = work.state.expert_config, work.evaluator.logprobs_only
        return Text(
            work.ids,
            done.places,
            expert_config.experts,
            expert_config.static,
            work.state.mixture,
            work.top,
            lean,
        )
    ids, top = (work.ids, work.top) if isinstance(work, ScoreChunk) else ((), 0)
    return Text(ids, done.places, work.cursor.experts, work.reader.static, work.cursor.mixture, top)


def _sliced(work: ScoreChunk, done: Done, scored: Scored) -> BatchResult:
    if scored.scores is None or (work.reader.static and scored.broken[0]):
        return ArithmeticError("the model's output is not finite")
    after = Cursor(side_by_side(done.states), work.ids[-1], scored.mixture)
    return ScoredChunk(scored.scores, after, scored.static_logprobs)


def _observed(part: ObserveChunk, done: Done, scored: Scored) -> BatchResult | _Broken:
    """The scores of a part, and the state after it and after the step that it ended with."""
    if any(scored.broken) or scored.scores is None:
        return _Broken(scored.broken)
    stepped = done.stepped
    state = _after(part, done, scored.mixture)
    if stepped is None:
        return ObservedChunk(state=state, scores=scored.scores, static_logprobs=scored.static_logprobs)
    if any(stepped.lost):
        state = restart(part.evaluator, state, stepped.lost)
    return ObservedChunk(
        state=state,
        scores=scored.scores,
        static_logprobs=scored.static_logprobs,
        updates=stepped.updates,
        guards=stepped.guards,
        gradient_norms=stepped.gradient_norms,
        norm_ratio=stepped.norm_ratio,
        decisions=stepped.decisions,
    )


def _after(part: ObserveChunk, done: Done, weights: MixtureState | None) -> AdaptedState:
    before, stepped, ends = part.state, done.stepped, part.ends
    now = Cursor(side_by_side(done.states), part.ids[-1])
    return AdaptedState(
        expert_config=before.expert_config,
        delta_KP=before.delta_KP if stepped is None else stepped.delta_KP,
        now=now,
        start=now if ends else before.start,
        mixture=weights,
        pending=() if ends else before.pending + part.ids,
        pending_learn=() if ends else part.flags,
        position=before.position + len(part.ids),
        updates=before.updates + (0 if stepped is None else stepped.updates),
        bad_steps=before.bad_steps if stepped is None else stepped.bad_steps,
        rate_scale=before.rate_scale,
    )


def _again(
    parts: Mapping[int, ObserveChunk], broken: Mapping[int, Sequence[bool]], padding: Counter[PassKind] | None
) -> dict[int, BatchResult]:
    """Parts once more, with zero fast weights where a row computed no distribution."""
    results: dict[int, BatchResult] = {}
    mended: dict[int, ObserveChunk] = {}
    for i, part in parts.items():
        try:
            mended[i] = _mended(part, broken[i])
        except NonFiniteState as error:
            results[i] = error
    for i, result in zip(mended, run_batch([*mended.values()], padding=padding), strict=True):
        if isinstance(result, ObservedChunk):
            rows = tuple(broken[i][parts[i].state.expert_config.learning])
            result = replace(
                result,
                guards=("restarted",) * sum(rows) + result.guards,
                decisions=replace(result.decisions, restarted=rows),
            )
        results[i] = result
    return results


def _mended(part: ObserveChunk, broken: Sequence[bool]) -> ObserveChunk:
    """A part whose broken rows have restarted. Where it was done before, no others may be broken now."""
    expert_config, decided = part.state.expert_config, part.decided
    if expert_config.static and broken[0]:
        raise NonFiniteState("the slow weights' state is not finite")
    if decided is None:
        state = restart(part.evaluator, part.state, broken[expert_config.learning], must_help=True)
        return replace(part, state=state)
    if not decided.restarted:
        raise NonFiniteState("a row computed no distribution where it did before")
    state = restart(part.evaluator, part.state, broken[expert_config.learning])
    return replace(part, state=state, decided=replace(decided, restarted=()))
