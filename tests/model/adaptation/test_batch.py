"""A batch of anything: each item gets what it gets alone, and one that cannot be done disturbs no other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model import drawn

from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.items import DecodeStep, ObservedChunk, ScoreChunk
from rlstm_model.vocab import InvalidToken

SEGMENT = 4


def items_of(evaluator, other, observe, text):
    """Items of every kind, of streams in every state."""
    items = []
    kinds = [{}, {"experts": 2}, {"experts": 4}, {"experts": 2, "adapt": "both"}, {"adapt": "memory"}]
    for number, kind in enumerate(kinds):
        own = evaluator if number % 2 else other
        state = observe(own, text(5 + number, number), **kind).state
        room = SEGMENT - state.position % SEGMENT
        items += [own.chunk(state, text(room, number)), own.chunk(state, text(1, number))]
        reader = own.reader(state, static=number > 1)
        items += [reader_chunk(reader, text(9, number))]
        reader = own.reader(state)
        items += [decode(reader)]
    return items


def reader_chunk(reader, ids):
    return ScoreChunk(reader, reader.cursor, tuple(ids), 2)


def decode(reader):
    return DecodeStep(reader, reader.cursor)


def bits(result):
    """Everything that a result holds."""
    if isinstance(result, np.ndarray):
        return result.tobytes()
    if hasattr(result, "arrays"):
        return bits(result.arrays()), str(result.header())
    if hasattr(result, "__dict__"):
        return {name: bits(value) for name, value in vars(result).items() if name not in ("before", "reader")}
    if isinstance(result, dict):
        return {name: bits(value) for name, value in result.items()}
    if isinstance(result, tuple | list):
        return [bits(value) for value in result]
    return repr(result)


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(20)), size=st.integers(1, 20))
def test_an_item_gets_in_any_batch_what_it_gets_alone(make_evaluator, observe, text, order, size):
    evaluator, other = make_evaluator(), make_evaluator(drawn.parameters_of(3, hidden_size=7))
    items = items_of(evaluator, other, observe, text)
    alone = [bits(run_batch([item])[0]) for item in items]
    for start in range(0, 20, size):
        places = order[start : start + size]
        for place, result in zip(places, run_batch([items[i] for i in places]), strict=True):
            assert bits(result) == alone[place]
            if isinstance(result, ObservedChunk):  # and keeps none of its neighbours alive
                kept = result.state.arrays().values()
                assert all(array.base is None or array.base.nbytes == array.nbytes for array in kept)


def test_items_that_cannot_be_done_disturb_no_other(evaluator, observe, text):
    state = observe(evaluator, text(6)).state
    good, reader = evaluator.chunk(state, text(2)), evaluator.reader(state)
    bad = [
        replace(good, ids=()),
        replace(good, ids=(1, 2, 3)),
        replace(good, ids=(1, 19)),
        reader_chunk(reader, []),
        replace(good, state=replace(state, now=state.now._replace(states_R2U=state.now.states_R2U * np.nan))),
    ]
    results = run_batch([*bad, good])
    assert all(isinstance(result, Exception) for result in results[:-1])
    assert isinstance(results[2], InvalidToken)
    assert bits(results[-1]) == bits(run_batch([good])[0])
    assert run_batch([]) == []


def test_a_large_batch_is_cut_into_windows(monkeypatch, evaluator, observe, text):
    items = [evaluator.chunk(evaluator.start(experts=2), text(4, seed)) for seed in range(9)]
    together = [bits(result) for result in run_batch(items)]
    monkeypatch.setattr("rlstm_model.adaptation.batch._ELEMENTS_AT_ONCE", 300)
    assert [bits(result) for result in run_batch(items)] == together


EVERY_KIND = [
    {"experts": experts, "adapt": adapt, "static": static}
    for adapt, counts in {"weights": (1, 2, 4), "memory": (1,), "both": (2, 4)}.items()
    for experts in counts
    for static in (True, False)
    if static or (experts == 1 and adapt == "weights")
]


@pytest.mark.parametrize("start", EVERY_KIND, ids=str)
def test_a_token_that_was_predicted_is_followed_without_reading_again(
    evaluator, observe, text, bits_of, start
):
    """The state is that of observing it, and what predicted it is what it is scored against."""
    ids = text(3 * SEGMENT + 2)
    state = evaluator.start(**start)
    for token, chunk in zip(
        ids, observe(evaluator, *([token] for token in ids), **start).chunks, strict=True
    ):
        following = evaluator.next(state)
        state = evaluator.follow(state, following, token)
        assert bits_of(state) == bits_of(chunk.state)
        assert chunk.scores.logprobs[0] == pytest.approx(following.log_probs_V[token], abs=2e-6)
    whole = [
        chunk.log_probs_TV for chunk in evaluator.observe(evaluator.start(**start), ids, distributions=True)
    ]
    assert np.concatenate(whole)[-1].tobytes() == following.log_probs_V.tobytes()


def test_fast_weights_that_broke_are_read_again(evaluator, text):
    """Though what predicted the token was read with them."""
    (chunk,) = evaluator.observe(evaluator.start(experts=2), text(SEGMENT))
    state = replace(chunk.state, delta_KP=np.full_like(chunk.state.delta_KP, np.nan))
    after = evaluator.follow(state, evaluator.next(state), 3)
    assert after.delta_KP is None
    assert np.isfinite(after.now.states_R2U).all()
