"""A memory beside the experts: wherever a stream is cut, read on, restored or reset."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation.state import ExpertConfig, StateMismatch
from rlstm_model.native.memory import size_of

KINDS = [{"experts": 1, "adapt": "memory"}, {"experts": 2, "adapt": "both"}, {"experts": 4, "adapt": "both"}]
MOTIF = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
kinds = pytest.mark.parametrize("kind", KINDS, ids=str)
streams = st.lists(st.integers(0, 18), min_size=1, max_size=40)
few = settings(max_examples=10, deadline=None)


@kinds
@few
@given(ids=streams, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_stream_may_be_cut_anywhere(evaluator, observe, kind, ids, cuts):
    ends = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    pieces = [ids[start:stop] for start, stop in pairwise(ends)]
    whole, cut = observe(evaluator, ids, **kind), observe(evaluator, *pieces, **kind)
    np.testing.assert_allclose(cut.logprobs, whole.logprobs, atol=2e-4)
    assert cut.state.memory.marked.tolist() == whole.state.memory.marked.tolist()


@kinds
@few
@given(ids=streams)
def test_the_mixture_is_within_its_bound(evaluator, observe, kind, ids):
    """Of any of its experts, which are the frozen baseline, rates, and the memory."""
    seen = observe(evaluator, ids * 3, **kind)
    size = ExpertConfig(**kind).mixture_size
    assert len(seen.state.weights) == size
    bound = math.log(size) + math.log(3 * len(ids) + 1)
    assert -seen.logprobs.sum(dtype=float) <= -seen.static.sum(dtype=float) + bound + 1e-3


@kinds
def test_what_was_there_before_is_known(evaluator, observe, kind):
    """At once, where gradients need many repeats."""
    seen = observe(evaluator, MOTIF * 6, **kind)
    assert -seen.logprobs[-22:].mean() < 0.5
    assert seen.state.weights[-1] > 0.9


@kinds
def test_a_reader_counts_nothing_and_follows_its_own_text(evaluator, observe, bits_of, kind):
    """A token's probability is what the distribution before it says; the stream stays as it is."""
    state = observe(evaluator, MOTIF * 3, **kind).state
    before, reader = bits_of(state), evaluator.reader(state)
    scores, _ = reader.score(reader.cursor, [*MOTIF, 7, 7])
    cursor = reader.cursor
    for token, logprob in zip([*MOTIF, 7, 7], scores.logprobs, strict=True):
        following = reader.next(cursor)
        assert np.exp(following.log_probs_V.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)
        assert following.log_probs_V[token] == pytest.approx(logprob, abs=2e-5)
        cursor = following.after(token)
    assert bits_of(state) == before


@kinds
def test_a_restored_stream_goes_on_to_the_last_bit(evaluator, observe, bits_of, text, kind):
    """An older state too, after a newer one went on from it."""
    state = observe(evaluator, MOTIF * 2, text(9), **kind).state
    again = evaluator.state_schema.restore(state.arrays(), state.header())
    first, second, third = (observe(evaluator, MOTIF * 2, state=start) for start in (state, again, state))
    assert first.logprobs.tobytes() == second.logprobs.tobytes() == third.logprobs.tobytes()
    assert bits_of(first.state) == bits_of(second.state) == bits_of(third.state)


@kinds
def test_what_may_not_be_learned_from_is_context_alone(evaluator, observe, kind):
    """It is not counted, and what follows it is read after it."""
    state = observe(evaluator, MOTIF, **kind).state
    read = observe(evaluator, (MOTIF, False), state=state).state
    assert read.memory.values.tobytes() == state.memory.values.tobytes()
    assert (read.memory.marked & 1).tolist() == [1] * 11 + [0] * 11
    assert (read.memory.marked[11:] >> 1).tolist() == MOTIF


@kinds
def test_resets_forget_what_they_say(evaluator, observe, kind):
    """What was learned, the memory too; or the text before, which then is no context."""
    state = observe(evaluator, MOTIF * 2, **kind).state
    forgotten = evaluator.reset(state, fast_weights=True, recurrent=False)
    fresh = evaluator.start(**kind).memory
    assert not len(forgotten.memory.marked)
    assert forgotten.memory.values.tobytes() == fresh.values.tobytes()
    away = evaluator.reset(state, fast_weights=False, recurrent=True)
    assert away.memory.marked.tolist() == [*state.memory.marked.tolist(), evaluator.bos_id << 1]
    for after in (forgotten, away):
        assert np.isfinite(observe(evaluator, MOTIF, state=after).logprobs).all()


def test_a_restart_leaves_the_memory(evaluator, observe, text):
    """An expert that computes no number starts anew; the memory knows what it knew."""
    state = observe(evaluator, MOTIF * 3, experts=2, adapt="both").state
    bad = replace(state, delta_KP=np.full_like(state.delta_KP, np.nan))
    seen = observe(evaluator, MOTIF[1:8], state=bad)
    assert "restarted" in seen.chunks[0].guards
    assert -seen.logprobs[-4:].mean() < 0.5


def test_a_memory_is_not_heard_where_an_expert_computes_nothing(evaluator, observe):
    """The others are, and no reader is told a number where none of them computed one."""
    state = observe(evaluator, MOTIF * 3, experts=2, adapt="both").state
    bad = replace(state, delta_KP=np.full_like(state.delta_KP, np.nan))
    reader = evaluator.reader(bad, static=True)
    (chunk,) = reader.chunks(reader.cursor, MOTIF)
    np.testing.assert_allclose(chunk.scores.logprobs, chunk.static_logprobs, atol=1e-6)
    odd = replace(state, now=state.now._replace(states_R2U=state.now.states_R2U * np.nan))
    reader = evaluator.reader(odd)
    with pytest.raises(ArithmeticError):
        reader.score(reader.cursor, MOTIF)
    assert np.isnan(reader.next(reader.cursor).log_probs_V).all()


def test_a_memory_that_no_reading_leads_to_is_refused(evaluator, observe):
    state = observe(evaluator, MOTIF, experts=2, adapt="both").state
    arrays, header = state.arrays(), state.header()
    foreign, odd = arrays["memory"].copy(), arrays["mixing"].copy()
    foreign[state.memory.config.kept - 1] = 19
    odd[0] = np.nan
    unlearnable = [arrays["mixing"].copy() for _ in range(3)]
    unlearnable[0][4] = 1.5  # a context's share
    unlearnable[1][size_of(257, 2)] = 0  # a cell of the tree's first map
    unlearnable[2][-1] = 5  # a weight of the tree's
    for changes, told in (
        ({"memory": foreign}, {}),
        ({}, {"remembered": 12}),
        ({}, {"read": 10}),
        ({"memory": arrays["memory"][1:]}, {}),
        *(({"mixing": values}, {}) for values in unlearnable),
        ({"memory": arrays["memory"].astype(np.int32)}, {}),
    ):
        with pytest.raises(StateMismatch, match="memory"):
            evaluator.state_schema.restore({**arrays, **changes}, {**header, **told})
    with pytest.raises(ArithmeticError, match="mixing"):
        evaluator.state_schema.restore({**arrays, "mixing": odd}, header)


@pytest.mark.parametrize(
    "asked",
    [
        {"adapt": "memory", "experts": 2},
        {"adapt": "memory", "static": False},
        {"adapt": "both", "experts": 1},
        {"adapt": "all"},
    ],
)
def test_what_cannot_be_together_is_refused(asked):
    with pytest.raises(ValueError, match=r"memory|adapt"):
        ExpertConfig(**asked)
