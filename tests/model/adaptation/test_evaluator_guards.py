"""The evaluator's guards and resets: whatever a stream does to its weights, the next score is a number."""

from dataclasses import replace

import pytest
import torch
from rlstm_model.scoring import score

from rlstm_model.adaptation.state import Cursor, NonFiniteState
from rlstm_model.network.state import State

NAN, INF = float("nan"), float("inf")


def poisoned(state, value, place=slice(None), row=0):
    delta = state.delta_KP.clone()
    delta[row, place] = value
    return replace(state, delta_KP=delta)


def broken(cursor, row):
    """The cursor with one number of a row's cell values gone."""
    c = cursor.state.c.clone()
    c[-1, row, 0] = NAN
    return Cursor(State(cursor.state.h, c), cursor.last)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_step_that_is_not_finite_is_skipped(make_evaluator, text, bad_gradients, observe, logprobs, value):
    """The delta stays as it was, the skip is counted and named, and the next good step clears the count."""
    evaluator = make_evaluator()
    bad_gradients({1, 2}, value=value)
    parts, state = observe(evaluator, text(16))
    assert [part.guards for part in parts] == [(), ("step_skipped",), ("step_skipped",), ()]
    assert [part.state.bad_steps for part in parts] == [(0,), (1,), (2,), (0,)]
    assert [part.updates for part in parts] == [1, 0, 0, 1]
    assert parts[1].state.delta_KP is parts[0].state.delta_KP
    assert parts[1].gradient_norms == ()
    assert parts[1].norm_ratio is None
    assert state.updates == 2
    assert torch.isfinite(logprobs(parts)).all()


def test_three_bad_steps_in_a_row_restart(make_evaluator, text, bad_gradients, observe):
    """The third bad step in a row drops the fast weights; the stream goes on from zero."""
    evaluator = make_evaluator()
    bad_gradients({1, 2, 3})
    parts, state = observe(evaluator, text(20))
    assert parts[3].guards == ("step_skipped", "restarted")
    assert (parts[3].state.delta_KP, parts[3].state.bad_steps) == (None, (0,))
    assert torch.equal(parts[3].state.now.state.h, parts[3].state.start.state.h)
    assert parts[4].updates == 1
    assert state.position == 20


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("length", [8, 10])
@pytest.mark.parametrize("more", [1, 2, 4, 9])
@pytest.mark.parametrize("learn", [True, False])
def test_fast_weights_that_compute_no_number_restart(
    make_evaluator, text, observe, logprobs, value, length, more, learn
):
    """The scores are those of zero fast weights from the segment's start, and the guard is named."""
    evaluator, ids = make_evaluator(), text(more, seed=4)
    _, state = observe(evaluator, text(length))
    assert len(state.pending) == length % 4
    parts, after = observe(evaluator, ids, poisoned(state, value), learn=learn)
    fresh = replace(state, delta_KP=None)
    whole, _ = score(
        evaluator.model,
        [*fresh.pending, *ids[:4]],
        state=fresh.start.state.rows(slice(1, 2)),
        last=fresh.start.last,
    )
    first = parts[0].scores.logprobs
    assert parts[0].guards[0] == "restarted"
    torch.testing.assert_close(first, whole.logprobs[len(fresh.pending) :][: len(first)], rtol=0, atol=1e-5)
    assert torch.isfinite(logprobs(parts)).all()
    assert all("restarted" not in part.guards for part in parts[1:])
    assert after.position == length + more


@pytest.mark.parametrize("rule", [{"rule": "rms"}, {"rule": "sgd"}, {"rule": "rms", "decay": 3.0}], ids=str)
@pytest.mark.parametrize("rate_scale", [1e3, 1e6, 1e30, 1e300])
def test_an_absurd_rate_stays_finite(make_evaluator, text, observe, logprobs, rule, rate_scale):
    """However large the steps: the delta is projected or dropped, every score is a number, nothing raises."""
    evaluator = make_evaluator(**rule)
    slow_norm = evaluator.fast_weights.slow_norm
    parts, _ = observe(evaluator, text(80), evaluator.start(rate_scale=rate_scale))
    assert torch.isfinite(logprobs(parts)).all()
    assert {guard for part in parts for guard in part.guards} <= {"projected", "step_skipped", "restarted"}
    for part in parts:
        if part.state.delta_KP is not None:
            assert float(part.state.delta_KP.norm()) <= 0.5 * slow_norm * (1 + 1e-5)
        assert part.norm_ratio is None or part.norm_ratio <= 0.5
    if rate_scale <= 1e6:
        assert "projected" in parts[0].guards
        assert parts[0].norm_ratio == 0.5


@pytest.mark.parametrize("length", [0, 8])
@pytest.mark.parametrize("more", [1, 4])
@pytest.mark.parametrize("learn", [True, False])
def test_a_recurrent_state_that_is_no_number_raises(make_evaluator, text, observe, length, more, learn):
    """A broken cursor cannot be mended by dropping weights: NonFiniteState, with and without a delta."""
    evaluator = make_evaluator()
    state = evaluator.start() if not length else observe(evaluator, text(length))[1]
    for row, named in ((1, "recurrent state"), (0, "slow weights' state")):
        bad = replace(state, now=broken(state.now, row), start=broken(state.start, row))
        with pytest.raises(NonFiniteState, match=named):
            observe(evaluator, text(more), bad, learn=learn)


def test_a_broken_start_of_the_segment_raises(make_evaluator, text, observe):
    """In mid-segment a restart reads from the segment's start: where that is broken it says so."""
    evaluator = make_evaluator()
    _, state = observe(evaluator, text(10))
    bad = replace(poisoned(state, NAN), start=broken(state.start, 1))
    for more in (1, 2):
        with pytest.raises(NonFiniteState):
            observe(evaluator, text(more), bad)
    with pytest.raises(NonFiniteState):
        evaluator.reset(bad, fast_weights=True, recurrent=False)
