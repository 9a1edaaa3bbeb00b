"""Many streams in one round: each gets what it gets alone, to the last bit."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation.adapter import NonFiniteState
from rlstm_model.adaptation.round import perform
from rlstm_model.state import State

SEGMENT, VOCAB = 4, 40
NAN = float("nan")
LINEUPS = [{}, {"static": False}, {"experts": 2}, {"experts": 4}]


@pytest.fixture(scope="module", params=[8, None], ids=["subspace", "full"])
def adapter(request, make_adapter, wide_model):
    """Of float32 weights, where a product's last bits depend on how many rows it has."""
    return make_adapter(wide_model, rank=request.param, decay=0.05)


def histories(adapter, count=16):
    """Streams with all kinds of pasts: none, some text, resets, in mid-segment, learning or not."""
    draw, states = random.Random(7), []
    for number in range(count):
        scale = draw.choice([0.0, 0.5, 1.0, 4.0])
        state = adapter.start(rate_scale=scale, **LINEUPS[number % len(LINEUPS)])
        for _ in range(draw.randrange(4)):
            ids = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 7))]
            for observed in adapter.observe(state, ids, learn=draw.random() < 0.7):
                state = observed.state
            if draw.random() < 0.3:
                forget = draw.choice([(True, False), (False, True), (True, True)])
                state = adapter.reset(state, fast_weights=forget[0], recurrent=forget[1])
        states.append(state)
    return states


@pytest.fixture(scope="module")
def pool(adapter):
    """One part for each stream of any past, and what observing it alone gives."""
    draw, parts = random.Random(8), []
    for state in histories(adapter):
        ids = [draw.randrange(VOCAB) for _ in range(draw.randint(1, SEGMENT))]
        parts.append(adapter.part(state, ids, learn=draw.random() < 0.6, top=draw.choice([0, 3])))
    return parts, [alone(adapter, part) for part in parts]


def alone(adapter, part):
    (observed,) = adapter.observe(part.state, part.ids, learn=part.learn, top=part.top)
    return observed


def assert_same(found, expected):
    """To the last bit, in everything."""
    assert found.state.header() == expected.state.header()
    one, other = found.state.tensors(), expected.state.tensors()
    assert one.keys() == other.keys()
    columns = ("logprobs", "ranks", "entropies", "top_ids", "top_logprobs")
    pairs = [
        *((one[name], other[name]) for name in one),
        *((getattr(found.scores, name), getattr(expected.scores, name)) for name in columns),
        (found.static_logprobs, expected.static_logprobs),
    ]
    for first, second in pairs:
        assert (first is None and second is None) or torch.equal(first, second)
    for name in ("updates", "guards", "gradient_norms", "norm_ratio"):
        assert getattr(found, name) == getattr(expected, name)


def test_the_pool_holds_every_kind_of_part(pool):
    """What the next tests mix: learning and not, in mid-segment, with and without fast weights."""
    parts, expected = pool
    assert {part.state.lineup for part in parts} == {part.state.lineup for part in parts[:4]}
    assert {bool(part.state.pending) for part in parts} == {True, False}
    assert {part.state.delta_KP is None for part in parts} == {True, False}
    assert {observed.updates for observed in expected} == {0, 1}
    assert len({len(part.ids) for part in parts}) == SEGMENT
    learned = [
        len(part.state.pending) + len(part.ids) for part, o in zip(parts, expected, strict=True) if o.updates
    ]
    assert min(learned) < SEGMENT  # after a reset in mid-segment


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=24))
def test_pitfall_36_a_stream_in_any_round_gets_what_it_gets_alone(adapter, pool, chosen):
    """Any streams in any order, also the same one twice, beside any neighbours."""
    parts, expected = pool
    for found, place in zip(perform([parts[i] for i in chosen]), chosen, strict=True):
        assert_same(found, expected[place])


def test_rounds_of_many_streams(adapter, pool):
    """A hundred rows at once, then round after round to the end of their texts."""
    parts, expected = pool
    for place, found in enumerate(perform(parts * 4)):
        assert_same(found, expected[place % len(parts)])
    states, draw = [observed.state for observed in expected], random.Random(9)
    for _ in range(3):
        texts = [[draw.randrange(VOCAB) for _ in range(SEGMENT)] for _ in states]
        batch = [adapter.part(state, ids) for state, ids in zip(states, texts, strict=True)]
        round_ = perform(batch)
        for part, found in zip(batch, round_, strict=True):
            assert_same(found, alone(adapter, part))
        states = [observed.state for observed in round_]


def test_no_parts(adapter):
    """A round of nothing gives nothing."""
    assert perform([]) == []


def test_a_part_ends_where_its_segment_does(adapter):
    """As many tokens as there is room for, and no more."""
    state = adapter.start()
    for position in range(6):
        room = SEGMENT - position % SEGMENT
        assert adapter.part(replace(state, position=position), list(range(9))).ids == tuple(range(room))


def broken_state(state):
    c = state.now.state.c.clone()
    c[-1, -1, 0] = NAN
    cursor = state.now._replace(state=State(state.now.state.h, c))
    return replace(state, now=cursor, start=cursor)


@pytest.mark.parametrize("learn", [True, False])
def test_a_stream_that_is_no_number_fails_alone(adapter, pool, learn):
    """Its place holds the error; every other stream of the round keeps its bits."""
    parts, expected = pool
    ids, bad = (1, 2, 3, 4), broken_state(adapter.start(experts=4))
    found = perform(
        [
            *parts[:5],
            adapter.part(bad, ids, learn=learn),
            *parts[5:],
            adapter.part(bad, ids[:2], learn=learn),
        ]
    )
    errors = [found.pop(5), found.pop()]
    assert [type(error) for error in errors] == [NonFiniteState] * 2
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_fast_weights_that_are_no_number_restart_alone(adapter, pool):
    """A stream whose deltas are broken goes on with zero ones; no other stream changes a bit."""
    parts, expected = pool
    place = next(
        i for i, part in enumerate(parts) if part.state.delta_KP is not None and part.state.lineup.experts > 2
    )
    bad = replace(parts[place].state, delta_KP=torch.full_like(parts[place].state.delta_KP, NAN))
    found = perform([*parts, replace(parts[place], state=bad)])
    assert found[-1].guards[:3] == ("restarted",) * 3
    assert found[-1].scores.logprobs.isfinite().all()
    for one, other in zip(found[:-1], expected, strict=True):
        assert_same(one, other)
