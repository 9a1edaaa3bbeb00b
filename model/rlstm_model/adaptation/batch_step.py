"""A batch step: many streams advanced by an item each, all that reads alike in one pass.

What an item gives is, to the last bit, what it gives alone: rows are padded to whole tiles, and what is
computed of a row is computed of nothing else. So items may be cut into any batches: the memory of each has a
bound, and they are done side by side where there is a thread pool.
Shape suffixes: N sessions, K experts, V vocabulary.
"""

import math
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
    DecodeStep,
    ItemInputs,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.padded_rows import PaddedRows, RowInput
from rlstm_model.adaptation.passes import Passes, PassKind, ReadRows
from rlstm_model.adaptation.predictions import Place, Predictions, Scored, Text
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.state import State

ELEMENTS_AT_ONCE = 1 << 24
"""Logits of one pass: learning holds them twice, and scoring once more."""


class _Broken(NamedTuple):
    """A chunk of which some rows computed no distribution: these restart, and it is done once more."""

    rows: Sequence[bool]


class _Batch(NamedTuple):
    """Items that are read by the same rows and share their passes, and their places among all."""

    rows: PaddedRows
    places: Sequence[int]
    items: Sequence[BatchItem]


@torch.no_grad()
def run_batch(
    items: Sequence[BatchItem],
    thread_pool: ThreadPool | None = None,
    padding: Counter[PassKind] | None = None,
) -> list[BatchResult]:
    """Do each item, all of them by the ``thread_pool`` where there is one: what each gives, in its place.

    To ``padding`` is added what was computed for nobody, in tokens, by the kind of pass.
    An item that cannot be done has its error there and disturbs no other: NonFiniteState where a stream's
    state cannot be used, ArithmeticError where a reader's experts (or the frozen baseline, if wanted)
    computed no distribution, InvalidToken for an id outside the vocabulary, ValueError for an item without
    tokens or beyond the end of its segment.
    """
    refused = {i: error for i, item in enumerate(items) if (error := item.refusal()) is not None}
    results: dict[int, BatchResult] = {**refused}
    broken: dict[int, Sequence[bool]] = {}
    whole = list(_batches(items, refused, 1 if thread_pool is None else thread_pool.threads))
    done = map(_run, whole) if thread_pool is None else thread_pool.map(_run, whole)
    for batch, (outcomes, wasted) in zip(whole, done, strict=True):
        if padding is not None:
            padding.update(wasted)
        for i, outcome in zip(batch.places, outcomes, strict=True):
            if isinstance(outcome, _Broken):
                broken[i] = outcome.rows
            else:
                results[i] = outcome
    if broken:
        chunks = {i: item for i in broken if isinstance(item := items[i], ObserveChunk)}
        results |= _again(chunks, broken, padding)
    return [results[i] for i in range(len(items))]


# ---- which items are done together ------------------------------------------------------------------------


def _batches(items: Sequence[BatchItem], refused: Collection[int], threads: int) -> Iterator[_Batch]:
    """The items that are not refused, as batches enough for all threads."""
    alike: dict[tuple[PaddedRows, bool], list[int]] = {}
    for i, item in enumerate(items):
        if i not in refused:
            alike.setdefault((item.rows, isinstance(item, DecodeStep)), []).append(i)
    for (rows, _), places in alike.items():
        for batch in batches(rows, [items[i].inputs for i in places], threads):
            own = [places[k] for k in batch]
            yield _Batch(rows, own, [items[i] for i in own])


def batches(rows: PaddedRows, inputs: Sequence[ItemInputs], threads: int = 1) -> Iterator[list[int]]:
    """Items that are done together, as places: at least one, and no more than a pass should hold.

    Those of a length lie side by side, where they share their windows. For several ``threads`` there are as
    many batches, of about equal cost, or a multiple: but none except the last is less than a tile of rows,
    which would cost what a tile costs.
    """
    weights, at_once = rows.weights, rows.weights.at_once
    fair = math.inf  # what a batch should cost for all threads to be done together
    if threads > 1:
        most = max(sum(one.rows[kind] for one in inputs) for kind in range(3))
        fair = sum(one.cost for one in inputs) / (threads * -(-most // (at_once * threads)))
    batch: list[int] = []
    counts, longest, cost = (0, 0, 0), 0, 0
    for place in sorted(range(len(inputs)), key=lambda i: (inputs[i].training is None, -inputs[i].length)):
        one = inputs[place]
        more = (counts[0] + one.rows[0], counts[1] + one.rows[1], counts[2] + one.rows[2])
        length = max(longest, one.length)
        full = max(more) > at_once or sum(more) * length * rows.vocab_size > ELEMENTS_AT_ONCE
        if batch and (full or (cost >= fair and max(counts) >= weights.tile)):
            yield batch
            batch, more, length, cost = [], one.rows, one.length, 0
        batch.append(place)
        counts, longest, cost = more, length, cost + one.cost
    if batch:
        yield batch


@torch.no_grad()
def _run(batch: _Batch) -> tuple[Sequence[BatchResult | _Broken], Counter[PassKind]]:
    """One batch, and its padding; its distributions are gone before those of the thread's next one are."""
    passes = Passes(batch.rows, batch.items)
    decoded = isinstance(batch.items[0], DecodeStep)
    return (_decoded if decoded else _texts)(batch.items, passes), passes.padding


# ---- what the passes of a batch gave ----------------------------------------------------------------------


def _decoded(items: Sequence[BatchItem], passes: Passes) -> list[BatchResult | _Broken]:
    results: dict[int, BatchResult] = {}
    cursors = [item.cursor for item in items if isinstance(item, DecodeStep)]
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
            results[i] = NextToken(log_probs_V, experts_1KV, passes.done[i].state, cursors[i])
    return [results[i] for i in range(len(items))]


def _texts(items: Sequence[BatchItem], passes: Passes) -> list[BatchResult | _Broken]:
    texts = [_text(item, done) for item, done in zip(items, passes.done, strict=True)]
    results: list[BatchResult | _Broken] = []
    for item, done, scored in zip(items, passes.done, passes.predictions.score(texts), strict=True):
        if isinstance(item, ObserveChunk):
            results.append(_observed(item, done, scored))
        elif isinstance(item, ScoreChunk):
            results.append(_scored(item, done, scored))
    return results


def _text(item: BatchItem, done: ReadRows) -> Text:
    if isinstance(item, ObserveChunk):
        experts, lean = item.state.expert_config, item.rows.logprobs_only
        return Text(
            item.ids, done.places, experts.experts, experts.static, item.state.mixture, item.top, lean
        )
    ids, top = (item.ids, item.top) if isinstance(item, ScoreChunk) else ((), 0)
    return Text(ids, done.places, item.cursor.experts, item.reader.static, item.cursor.mixture, top)


def _scored(item: ScoreChunk, done: ReadRows, scored: Scored) -> BatchResult:
    if scored.scores is None or (item.reader.static and scored.broken[0]):
        return ArithmeticError("the model's output is not finite")
    after = Cursor(done.state, item.ids[-1], scored.mixture)
    return ScoredChunk(scored.scores, after, scored.static_logprobs)


def _observed(chunk: ObserveChunk, done: ReadRows, scored: Scored) -> BatchResult | _Broken:
    """The scores of a chunk, and the state after it and after the step that it ended with."""
    if any(scored.broken) or scored.scores is None:
        return _Broken(scored.broken)
    before, stepped, ends = chunk.state, done.stepped, chunk.ends
    now = Cursor(done.state, chunk.ids[-1])
    state = replace(
        before,
        now=now,
        start=now if ends else before.start,
        mixture=scored.mixture,
        pending=() if ends else before.pending + chunk.ids,
        pending_learn=() if ends else chunk.flags,
        position=before.position + len(chunk.ids),
    )
    if stepped is None:
        return ObservedChunk(state=state, scores=scored.scores, static_logprobs=scored.static_logprobs)
    updates = before.updates + stepped.updates
    state = replace(state, delta_KP=stepped.delta_KP, updates=updates, bad_steps=stepped.bad_steps)
    if any(stepped.lost):
        state = restart(chunk.rows, state, stepped.lost)
    return ObservedChunk(
        state=state,
        scores=scored.scores,
        static_logprobs=scored.static_logprobs,
        updates=stepped.updates,
        guards=stepped.guards,
        gradient_norms=stepped.gradient_norms,
        norm_ratio=stepped.norm_ratio,
    )


# ---- back to fast weights of zero, where an expert computes no number any more -----------------------------


def _again(
    chunks: Mapping[int, ObserveChunk],
    broken: Mapping[int, Sequence[bool]],
    padding: Counter[PassKind] | None,
) -> dict[int, BatchResult]:
    """Chunks once more, with zero fast weights where a row computed no distribution."""
    results: dict[int, BatchResult] = {}
    mended: dict[int, ObserveChunk] = {}
    for i, chunk in chunks.items():
        try:
            mended[i] = _mended(chunk, broken[i])
        except NonFiniteState as error:
            results[i] = error
    for i, result in zip(mended, run_batch([*mended.values()], padding=padding), strict=True):
        if isinstance(result, ObservedChunk):
            rows = sum(broken[i][chunks[i].state.expert_config.learning])
            result = replace(result, guards=("restarted",) * rows + result.guards)
        results[i] = result
    return results


def _mended(chunk: ObserveChunk, broken: Sequence[bool]) -> ObserveChunk:
    """A chunk whose broken rows have restarted."""
    experts = chunk.state.expert_config
    if experts.static and broken[0]:
        raise NonFiniteState("the slow weights' state is not finite")
    state = restart(chunk.rows, chunk.state, broken[experts.learning], must_help=True)
    return replace(chunk, state=state)


def restart(
    reads: PaddedRows, state: AdaptedState, rows: Sequence[bool], *, must_help: bool = False
) -> AdaptedState:
    """Zero fast weights for some of the rows that learn, and where these are then in the unfinished segment.

    Such an expert counts no more than the share gives back to one whose last token was impossible to it: its
    weight becomes 0 (docs/adaptation.md §4) and then that share, at once (:func:`mixture.drop`). A weight of
    exactly 0 would be no state that a mixture can have, and could not be stored where no token follows. What
    the expert loses goes to the others, so that what is guaranteed against each of these still is.

    Raises NonFiniteState where the slow weights compute no number from the segment's start, and, with
    ``must_help``, where these rows have no fast weights that could be to blame.
    """
    chosen = torch.tensor([bool(row) for row in rows])
    delta_KP = state.delta_KP
    if must_help and (delta_KP is None or not bool(delta_KP[chosen].any(1).all())):
        raise NonFiniteState("the recurrent state or a slow weight is not finite")
    if delta_KP is not None:
        delta_KP = delta_KP.clone()
        delta_KP[chosen] = 0
    weights = state.mixture
    if weights is not None:  # of several experts the first never learns
        dropped_1K = torch.cat((torch.zeros(1, dtype=torch.bool), chosen))[None]
        weights = mixture.drop(weights, dropped_1K.to(weights.weights_NK.device))
    return replace(
        state,
        delta_KP=delta_KP if delta_KP is not None and bool(delta_KP.any()) else None,
        now=_reread(reads, state, chosen) if state.pending else state.now,
        mixture=weights,
        bad_steps=tuple(0 if row else bad for row, bad in zip(rows, state.bad_steps, strict=True)),
    )


def _reread(reads: PaddedRows, state: AdaptedState, chosen: torch.Tensor) -> Cursor:
    """Where all rows are, after some have read the pending tokens with the slow weights."""
    experts = state.expert_config
    rows = torch.arange(experts.rows)[experts.learning][chosen]
    ids = (state.start.last, *state.pending[:-1])
    read = reads.read([RowInput(ids, state.start.state.rows(rows))])
    places = [Place(0, row) for row in range(len(rows))]
    text = Text(state.pending, places, experts=1, static=False, before=None, logprobs_only=True)
    (scored,) = Predictions.of([read.windows]).score([text])
    if any(scored.broken):
        raise NonFiniteState("the state at the segment's start is not finite")
    h, c = state.now.state.h.clone(), state.now.state.c.clone()
    h[:, rows], c[:, rows] = read.states[0]
    return Cursor(State(h, c), state.now.last)
