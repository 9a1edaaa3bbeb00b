"""Many items in one batch: each gets what it gets alone, to the last bit."""

import random
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlstm_model.adaptation.batch_items import (
    DecodeStep,
    NextToken,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.adaptation.padded_rows import PaddedRows
from rlstm_model.adaptation.passes import Passes
from rlstm_model.adaptation.thread_pool import ThreadPool

from rlstm_model.adaptation import batch_step
from rlstm_model.adaptation.evaluator import DynamicEvaluator, frozen_reader
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.network.state import State
from rlstm_model.vocab import InvalidToken

BOS, SEGMENT, VOCAB = 1, 4, 40
NAN = float("nan")
EXPERT_RATES = [{}, {"static": False}, {"experts": 2}, {"experts": 4}]


@pytest.fixture(scope="module", params=[8, None], ids=["subspace", "full"])
def evaluator(request, make_evaluator, wide_model):
    """Of float32 weights, where a product's last bits depend on how many rows it has."""
    return make_evaluator(wide_model, rank=request.param, decay=0.05)


def histories(evaluator, count=16):
    """Streams with all kinds of pasts: none, some text, resets, in mid-segment, learning or not."""
    draw, states = random.Random(7), []
    for number in range(count):
        scale = draw.choice([0.0, 0.5, 1.0, 4.0])
        state = evaluator.start(rate_scale=scale, **EXPERT_RATES[number % len(EXPERT_RATES)])
        for _ in range(draw.randrange(4)):
            ids = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 7))]
            for observed in evaluator.observe(state, ids, learn=draw.random() < 0.7):
                state = observed.state
            if draw.random() < 0.3:
                forget = draw.choice([(True, False), (False, True), (True, True)])
                state = evaluator.reset(state, fast_weights=forget[0], recurrent=forget[1])
        states.append(state)
    return states


@pytest.fixture(scope="module")
def pool(evaluator):
    """One part of each stream of any past, chunks and decoded after it and after nothing; each done alone."""
    draw, items = random.Random(10), []
    bare = frozen_reader(evaluator.model, BOS, 1.0)
    for number, state in enumerate(histories(evaluator)):
        ids = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(1, SEGMENT)))
        items.append(evaluator.chunk(state, ids, learn=draw.random() < 0.6, top=draw.choice([0, 3])))
        for reader in (evaluator.reader(state, static=number % 8 < 4), bare):
            piece = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(1, SEGMENT)))
            items.append(ScoreChunk(reader, reader.cursor, piece, draw.choice([0, 3])))
            items.append(DecodeStep(reader, reader.cursor))
    draw.shuffle(items)
    return items, [alone(item) for item in items]


@pytest.fixture(scope="module")
def parts(pool):
    """The parts among them, and what each gives alone."""
    return [*zip(*((w, o) for w, o in zip(*pool, strict=True) if isinstance(o, ObservedChunk)), strict=True)]


def alone(item):
    (result,) = run_batch([item])
    return result


def equal(one, other):
    return (one is None and other is None) or torch.equal(one, other)


def assert_same_scores(found, expected):
    for name in ("logprobs", "ranks", "entropies", "top_ids", "top_logprobs"):
        assert equal(getattr(found, name), getattr(expected, name))


def assert_same_cursor(found, expected):
    assert found.last == expected.last
    assert all(map(torch.equal, found.state, expected.state))
    assert (found.mixture is None) == (expected.mixture is None)
    assert found.mixture is None or all(map(torch.equal, found.mixture, expected.mixture))


def assert_same(found, expected):
    """To the last bit, in everything."""
    assert type(found) is type(expected)
    if isinstance(found, NextToken):
        assert torch.equal(found.log_probs_V, expected.log_probs_V)
        assert_same_cursor(found.after(3), expected.after(3))
        return
    assert_same_scores(found.scores, expected.scores)
    assert equal(found.static_logprobs, expected.static_logprobs)
    if isinstance(found, ScoredChunk):
        assert_same_cursor(found.cursor, expected.cursor)
        return
    assert found.state.header() == expected.state.header()
    one, other = found.state.tensors(), expected.state.tensors()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name in ("updates", "guards", "gradient_norms", "norm_ratio"):
        assert getattr(found, name) == getattr(expected, name)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 79), min_size=1, max_size=24))
def test_pitfall_36_an_item_in_any_batch_gets_what_it_gets_alone(pool, chosen):
    """Any items in any order, also the same one twice, beside any neighbours."""
    items, expected = pool
    for found, place in zip(run_batch([items[i] for i in chosen]), chosen, strict=True):
        assert_same(found, expected[place])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_thread_pool_gives_the_same(pool, threads):
    """However many threads share a batch, and however often: every item gets what it gets alone."""
    items, expected = pool
    with ThreadPool(threads) as thread_pool:
        for count in (1, 5, len(items), len(items)):
            for found, other in zip(run_batch(items[:count], thread_pool), expected, strict=False):
                assert_same(found, other)


def test_the_threads_of_a_pool_share_a_batch(parts, monkeypatch):
    """Its batches are done by all of them."""
    named, batches_of = set(), Passes.__init__

    def noted(self, *given, **named_too):
        named.add(threading.current_thread().name)
        both.wait(10)
        batches_of(self, *given, **named_too)

    both = threading.Barrier(2)
    monkeypatch.setattr(Passes, "__init__", noted)
    with ThreadPool(2) as thread_pool:
        run_batch(parts[0] * 2, thread_pool)
    assert len(named) == 2


@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_static_rows_are_guests_where_learning_leaves_room(make_evaluator, wide_model, monkeypatch, count):
    """In place of padding, as many as it is; what has no room, or pending tokens, has a pass of its own."""
    evaluator, read = make_evaluator(wide_model, rank=8), []
    monkeypatch.setitem(vars(evaluator.fast_weights), "tile", 8)

    def noted(rows, inputs, of=PaddedRows.read):
        read.extend(inputs)
        return of(rows, inputs)

    monkeypatch.setattr(PaddedRows, "read", noted)
    ids = tuple(range(SEGMENT))
    run_batch([evaluator.chunk(evaluator.start(experts=2), ids) for _ in range(count)])
    assert len(read) == max(0, count - -count % 8)
    begun = alone(evaluator.chunk(evaluator.start(experts=2), ids[:1])).state
    read.clear()
    run_batch([evaluator.chunk(begun, ids[1:])])
    assert len(read) == 1


@pytest.mark.parametrize(("count", "passes"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 2)])
def test_static_rows_ride_where_reading_leaves_room(make_evaluator, wide_model, monkeypatch, count, passes):
    """Beside the own rows of the same item, in place of padding: a lone text is read in one pass."""
    evaluator, sizes = make_evaluator(wide_model, rank=8), []
    monkeypatch.setitem(vars(evaluator.fast_weights), "tile", 8)

    def noted(rows, inputs, of=PaddedRows.read):
        sizes.append(sum(one.rows for one in inputs))
        return of(rows, inputs)

    monkeypatch.setattr(PaddedRows, "read", noted)
    learned = alone(evaluator.chunk(evaluator.start(experts=2), tuple(range(SEGMENT)))).state
    reader = evaluator.reader(learned, static=True)
    sizes.clear()
    run_batch([ScoreChunk(reader, reader.cursor, (1, 2, 3)) for _ in range(count)])
    assert len(sizes) == passes
    assert sum(sizes) == 2 * count


def test_static_rows_have_their_bits_wherever_they_are_read(make_evaluator, tiny_model):
    """As guests, as riders, in a pass of their own: also where a sum is long enough to be cut in two."""
    model = tiny_model(hidden_size=416, vocab_size=48, scale=0.05, num_layers=1)
    evaluator, draw = make_evaluator(model, rank=16), random.Random(1)
    states = [evaluator.start(experts=2)] * (evaluator.fast_weights.tile // 2 + 1)
    for _ in range(3):
        texts = [tuple(draw.randrange(48) for _ in range(SEGMENT)) for _ in states]
        parts = [evaluator.chunk(state, ids, top=48) for state, ids in zip(states, texts, strict=True)]
        readers = [evaluator.reader(state, static=True) for state in states]
        chunks = [
            ScoreChunk(reader, reader.cursor, ids, 48) for reader, ids in zip(readers, texts, strict=True)
        ]
        for items in (parts, chunks):
            found = run_batch(items)
            for one, item in zip(found, items, strict=True):
                assert_same(one, alone(item))
            states = [result.state for result in found if isinstance(result, ObservedChunk)] or states


@pytest.mark.parametrize("elements", [1, 2000, 20000])
def test_the_memory_of_a_batch_is_bounded(pool, monkeypatch, elements):
    """However few logits a pass may hold: results are the same, and there are never more than that."""
    items, expected = pool
    sizes, of = [], batch_step.batches

    def noted(rows, inputs, threads):
        for batch in of(rows, inputs, threads):
            own = [inputs[i] for i in batch]
            sizes.append((len(own), sum(sum(t.rows) for t in own) * max(t.length for t in own) * VOCAB))
            yield batch

    monkeypatch.setattr(batch_step, "ELEMENTS_AT_ONCE", elements)
    monkeypatch.setattr("rlstm_model.adaptation.batch_step.batches", noted)
    for found, other in zip(run_batch(items), expected, strict=True):
        assert_same(found, other)
    assert all(count == 1 or size <= elements for count, size in sizes)
    assert sum(count for count, _ in sizes) == len(items)


def test_evaluators_and_models_side_by_side(pool, make_evaluator, wide_model, calibration):
    """Works of another rule, of another kind, and at another temperature are told apart."""
    items, expected = pool
    others = [
        make_evaluator(wide_model, rate=0.5),
        make_evaluator(wide_model, rank=3),
        DynamicEvaluator(wide_model, calibration(wide_model, rank=2), bos_id=BOS, temperature=0.6),
    ]
    more = [other.chunk(other.start(experts=4), (1, 2, 3, 4)) for other in others]
    more += [
        DecodeStep(reader, reader.cursor)
        for reader in (frozen_reader(wide_model, BOS, t) for t in (0.6, 2.0))
    ]
    found = run_batch([*more, *items])
    for one, other in zip(found, [*map(alone, more), *expected], strict=True):
        assert_same(one, other)
    assert not torch.equal(found[3].log_probs_V, found[4].log_probs_V)


def test_states_do_not_keep_their_neighbours_alive(pool):
    """What a stream keeps for hours owns no more memory than its own rows."""
    for result in run_batch(pool[0]):
        if isinstance(result, ObservedChunk):
            kept = [*result.state.tensors().values(), *(result.state.mixture or ())]
        else:
            cursor = result.after(2) if isinstance(result, NextToken) else result.cursor
            kept = [*cursor.state, *(cursor.mixture or ())]
        for tensor in kept:
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_items_that_cannot_be_done(evaluator, pool):
    """Their errors are in their places; every other item of the batch keeps its bits."""
    items, expected = pool
    reader, state = evaluator.reader(evaluator.start()), evaluator.start()
    part = evaluator.chunk(state, (1, 2))
    bad = [
        (replace(part, ids=(1, VOCAB)), InvalidToken),
        (ScoreChunk(reader, reader.cursor, (3, -1, 2)), InvalidToken),
        (ScoreChunk(reader, reader.cursor, ()), ValueError),
        (replace(part, ids=()), ValueError),
        (replace(part, ids=(1,) * (SEGMENT + 1)), ValueError),
    ]
    found = run_batch([*(item for item, _ in bad), *items])
    assert [type(error) for error in found[: len(bad)]] == [error for _, error in bad]
    assert (found[1].index, found[1].id) == (1, -1)
    for one, other in zip(found[len(bad) :], expected, strict=True):
        assert_same(one, other)


def test_a_reader_that_is_no_number_fails_alone(evaluator, pool):
    """A slice has its error; a turn gives what sampling refuses; all others keep their bits."""
    items, expected = pool
    state = broken_state(evaluator.start())
    reader = evaluator.reader(state)
    bad = [ScoreChunk(reader, reader.cursor, (1, 2)), DecodeStep(reader, reader.cursor)]
    error, following, *found = run_batch([*bad, *items])
    assert type(error) is ArithmeticError
    assert following.log_probs_V.isnan().all()
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def broken_state(state, row=-1):
    c = state.now.state.c.clone()
    c[-1, row, 0] = NAN
    cursor = state.now._replace(state=State(state.now.state.h, c))
    return replace(state, now=cursor, start=cursor)


@pytest.mark.parametrize("learn", [True, False])
def test_a_stream_that_is_no_number_fails_alone(evaluator, pool, learn):
    """Its place holds the error; every other item of the batch keeps its bits."""
    items, expected = pool
    ids, bad = (1, 2, 3, 4), broken_state(evaluator.start(experts=4))
    failing = [evaluator.chunk(bad, ids[:length], learn=learn) for length in (4, 2)]
    found = run_batch([*items[:5], failing[0], *items[5:], failing[1]])
    errors = [found.pop(5), found.pop()]
    assert [type(error) for error in errors] == [NonFiniteState] * 2
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_fast_weights_that_are_no_number_restart_alone(parts):
    """A stream whose deltas are broken goes on with zero ones; no other stream changes a bit."""
    items, expected = parts
    place = next(
        i
        for i, item in enumerate(items)
        if item.state.delta_KP is not None and item.state.expert_config.experts > 2
    )
    bad = replace(items[place].state, delta_KP=torch.full_like(items[place].state.delta_KP, NAN))
    found = run_batch([*items, replace(items[place], state=bad)])
    assert found[-1].guards[:3] == ("restarted",) * 3
    assert found[-1].scores.logprobs.isfinite().all()
    for one, other in zip(found[:-1], expected, strict=True):
        assert_same(one, other)
