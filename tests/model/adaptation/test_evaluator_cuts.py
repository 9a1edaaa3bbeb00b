"""A stream may be cut anywhere: steps happen on its token grid, and learning reads the whole segment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

SEGMENT = 4
tokens = st.integers(0, 10)
few = settings(max_examples=12, deadline=None)


runs_of_tokens = st.lists(st.tuples(st.lists(tokens, max_size=9), st.booleans()), min_size=1, max_size=7)


def recut(data, runs):
    """The same tokens under the same flags, cut otherwise."""
    flat = [(token, learn) for ids, learn in runs for token in ids]
    cuts = []
    while flat:
        longest = next((i for i, (_, learn) in enumerate(flat) if learn != flat[0][1]), len(flat))
        length = data.draw(st.integers(1, longest))
        cuts.append(([token for token, _ in flat[:length]], flat[0][1]))
        flat = flat[length:]
    return cuts


@few
@given(runs_of_tokens.filter(lambda runs: any(ids for ids, _ in runs)), st.data())
def test_a_stream_may_be_cut_anywhere(evaluator, observe_runs, logprobs, static_logprobs, runs, data):
    """Other cuts give the same scores to 1e-5 and the same steps, whatever the learn flags."""
    one, one_state = observe_runs(evaluator, runs)
    other, other_state = observe_runs(evaluator, recut(data, runs))
    torch.testing.assert_close(logprobs(one), logprobs(other), rtol=0, atol=1e-5)
    torch.testing.assert_close(static_logprobs(one), static_logprobs(other), rtol=0, atol=1e-5)
    assert one_state.header() == other_state.header()
    for name, tensor in one_state.tensors().items():
        torch.testing.assert_close(tensor, other_state.tensors()[name], rtol=1e-4, atol=1e-4)


@few
@given(runs_of_tokens.filter(lambda runs: any(ids for ids, _ in runs)))
def test_pitfall_38_same_cuts_same_bits(make_evaluator, digest, observe_runs, logprobs, runs):
    """The same requests give the same bits, in another evaluator too."""
    (one, one_state), (other, other_state) = (
        observe_runs(make_evaluator(decay=0.05), runs) for _ in range(2)
    )
    assert torch.equal(logprobs(one), logprobs(other))
    assert digest(*one_state.tensors().values()) == digest(*other_state.tensors().values())


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_learning_reads_the_whole_segment_by_hand(
    make_evaluator, tiny_model, calibration, by_hand, text, observe_runs, logprobs, cut
):
    """Mixed flags: only flagged tokens count, over S, with the whole segment as context."""
    model, ids = tiny_model(dtype=torch.float64), text(16)
    learn = [True] * cut + [False] * (8 - cut) + [False, True] * 4
    runs = [([token], flag) for token, flag in zip(ids, learn, strict=True)]
    parts, state = observe_runs(make_evaluator(model, decay=0.1), runs)
    expected = by_hand(model, calibration(model, decay=0.1), ids, learn)
    torch.testing.assert_close(
        logprobs(parts).double(), torch.cat([s.logprobs for s in expected]), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(state.delta_KP[0], expected[-1].delta_P, rtol=1e-9, atol=1e-10)


def test_steps_happen_on_the_absolute_grid(evaluator, text):
    """Slices end where segments do, counted from the stream's first token, whatever the cuts."""
    ends, state = [], evaluator.start()
    for length in (3, 6, 1, 2, 9):
        for part in evaluator.observe(state, text(length)):
            state = part.state
            ends += [state.position] if part.updates else []
            assert part.scores.logprobs.shape == part.static_logprobs.shape
            assert (state.start is state.now) == (state.position % SEGMENT == 0) == (not state.pending)
    assert ends == [4, 8, 12, 16, 20]


def test_an_iterator_may_be_left_at_any_slice(evaluator, text, digest, observe):
    """Whoever stops keeps the state of the last slice, and can go on from there."""
    ids = text(20)
    first = next(iter(evaluator.observe(evaluator.start(), ids)))
    _, state = observe(evaluator, ids[len(first.scores) :], first.state)
    _, whole = observe(evaluator, ids)
    assert digest(*state.tensors().values()) == digest(*whole.tensors().values())


def test_no_tokens(evaluator):
    """Observing nothing gives nothing."""
    assert list(evaluator.observe(evaluator.start(), [])) == []
