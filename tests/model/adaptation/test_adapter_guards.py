"""The adapter's guards and resets: whatever a stream does to its weights, the next score is a number."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.adaptation.adapter import Cursor, NonFiniteState
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.scoring import TokenScores, score
from rlstm_model.state import State

NAN, INF = float("nan"), float("inf")


def observe(adapter, ids, state=None, **options):
    state = adapter.start() if state is None else state
    parts = list(adapter.observe(state, ids, **options))
    return parts, parts[-1].state


def logprobs(parts):
    return TokenScores.concatenate([part.scores for part in parts]).logprobs


def poisoned(state, value, place=slice(None), row=0):
    delta = state.delta_KP.clone()
    delta[row, place] = value
    return replace(state, delta_KP=delta)


def broken(cursor, row):
    """The cursor with one number of a row's cell values gone."""
    c = cursor.state.c.clone()
    c[-1, row, 0] = NAN
    return Cursor(State(cursor.state.h, c), cursor.last)


@pytest.fixture
def bad_gradients(monkeypatch):
    """Makes the gradients of the numbered segments NaN, or any value."""

    def install(numbers, value=NAN):
        seen, original = [], FullFastWeights.learn

        def injected(*arguments, **options):
            done = original(*arguments, **options)
            if len(seen) in numbers:
                done.gradient_NP[0, 3] = value
            seen.append(True)
            return done

        monkeypatch.setattr(FullFastWeights, "learn", injected)

    return install


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_step_that_is_not_finite_is_skipped(make_adapter, text, bad_gradients, value):
    """The delta stays as it was, the skip is counted and named, and the next good step clears the count."""
    adapter = make_adapter()
    bad_gradients({1, 2}, value)
    parts, state = observe(adapter, text(16))
    assert [part.guards for part in parts] == [(), ("step_skipped",), ("step_skipped",), ()]
    assert [part.state.bad_steps for part in parts] == [(0,), (1,), (2,), (0,)]
    assert [part.updates for part in parts] == [1, 0, 0, 1]
    assert parts[1].state.delta_KP is parts[0].state.delta_KP
    assert parts[1].gradient_norms == ()
    assert parts[1].norm_ratio is None
    assert state.updates == 2
    assert torch.isfinite(logprobs(parts)).all()


def test_three_bad_steps_in_a_row_restart(make_adapter, text, bad_gradients):
    """The third bad step in a row drops the fast weights; the stream goes on from zero."""
    adapter = make_adapter()
    bad_gradients({1, 2, 3})
    parts, state = observe(adapter, text(20))
    assert parts[3].guards == ("step_skipped", "restarted")
    assert (parts[3].state.delta_KP, parts[3].state.bad_steps) == (None, (0,))
    assert torch.equal(parts[3].state.now.state.h, parts[3].state.start.state.h)
    assert parts[4].updates == 1
    assert state.position == 20


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("length", [8, 10])
@pytest.mark.parametrize("more", [1, 2, 4, 9])
@pytest.mark.parametrize("learn", [True, False])
def test_fast_weights_that_compute_no_number_restart(make_adapter, text, value, length, more, learn):
    """The scores are those of zero fast weights from the segment's start, and the guard is named."""
    adapter, ids = make_adapter(), text(more, seed=4)
    _, state = observe(adapter, text(length))
    assert len(state.pending) == length % 4
    parts, after = observe(adapter, ids, poisoned(state, value), learn=learn)
    fresh = replace(state, delta_KP=None)
    whole, _ = score(
        adapter.model,
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


def test_one_bad_weight_in_the_middle_of_a_stream(make_adapter, text):
    """A single infinite weight of the output layer is enough to restart."""
    adapter = make_adapter()
    _, state = observe(adapter, text(8))
    bias = 2 * 11 * 5
    parts, _ = observe(adapter, text(4), poisoned(state, INF, slice(bias, bias + 1)))
    assert parts[0].guards == ("restarted",)
    assert parts[0].updates == 1


@pytest.mark.parametrize("rule", [{"rule": "rms"}, {"rule": "sgd"}, {"rule": "rms", "decay": 3.0}], ids=str)
@pytest.mark.parametrize("rate_scale", [1e3, 1e6, 1e30, 1e300])
def test_an_absurd_rate_stays_finite(make_adapter, text, rule, rate_scale):
    """However large the steps: the delta is projected or dropped, every score is a number, nothing raises."""
    adapter = make_adapter(**rule)
    slow_norm = adapter.fast_weights.slow_norm
    parts, _ = observe(adapter, text(80), adapter.start(rate_scale=rate_scale))
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
def test_a_recurrent_state_that_is_no_number_raises(make_adapter, text, length, more, learn):
    """A broken cursor cannot be mended by dropping weights: NonFiniteState, with and without a delta."""
    adapter = make_adapter()
    state = adapter.start() if not length else observe(adapter, text(length))[1]
    for row, named in ((1, "recurrent state"), (0, "slow weights' state")):
        bad = replace(state, now=broken(state.now, row), start=broken(state.start, row))
        with pytest.raises(NonFiniteState, match=named):
            observe(adapter, text(more), bad, learn=learn)


def test_a_broken_start_of_the_segment_raises(make_adapter, text):
    """In mid-segment a restart reads from the segment's start: where that is broken it says so."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    bad = replace(poisoned(state, NAN), start=broken(state.start, 1))
    for more in (1, 2):
        with pytest.raises(NonFiniteState):
            observe(adapter, text(more), bad)
    with pytest.raises(NonFiniteState):
        adapter.reset(bad, fast_weights=True, recurrent=False)


def test_reader_refuses_what_is_no_number(make_adapter, text):
    """Inference cannot restart a stream: it raises instead of answering NaN."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    reader = adapter.reader(poisoned(state, NAN))
    with pytest.raises(ArithmeticError):
        reader.score(reader.cursor, text(3))


def test_reset_both_is_a_new_stream_at_its_old_position(make_adapter, text, digest):
    """Forgetting weights and text leaves position, count of steps and rate; the rest is the start."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10), adapter.start(rate_scale=2.0))
    reset, fresh = adapter.reset(state, fast_weights=True, recurrent=True), adapter.start()
    assert digest(*reset.tensors().values()) == digest(*fresh.tensors().values())
    assert (reset.position, reset.updates, reset.rate_scale, reset.pending) == (10, 2, 2.0, ())
    assert reset.now.last == fresh.now.last


def test_reset_of_nothing(make_adapter, text, digest):
    """A reset of neither part changes nothing."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    assert adapter.reset(state, fast_weights=False, recurrent=False) is state


def test_the_grid_stays_absolute_after_a_recurrent_reset(make_adapter, text):
    """Forgetting the text in mid-segment keeps the delta, drops the pending tokens and moves no step."""
    adapter = make_adapter()
    _, state = observe(adapter, text(6))
    reset = adapter.reset(state, fast_weights=False, recurrent=True)
    assert reset.delta_KP is state.delta_KP
    parts, after = observe(adapter, text(10, seed=4), reset)
    assert [part.state.position for part in parts if part.updates] == [8, 12, 16]
    assert [len(part.scores) for part in parts] == [2, 4, 4]
    assert after.updates == 4


def test_a_shortened_segment_divides_by_its_full_length(make_adapter, tiny_model, text):
    """After a recurrent reset two tokens learn: their summed loss over S, not over two."""
    adapter = make_adapter(tiny_model(dtype=torch.float64))
    _, state = observe(adapter, text(6))
    reset = adapter.reset(state, fast_weights=True, recurrent=True)
    parts, _ = observe(adapter, [3, 5], reset)
    model = tiny_model(dtype=torch.float64).requires_grad_(True)
    features, _ = model(torch.tensor([[1], [3]]), model.initial_state(1))
    loss = -model.log_probs(features)[[0, 1], 0, [3, 5]].sum() / 4
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
    assert parts[0].gradient_norms == pytest.approx((norm,), rel=1e-9)


@pytest.mark.parametrize("learn", [True, False])
def test_after_a_reset_of_the_weights_cuts_still_do_not_matter(make_adapter, text, learn):
    """In mid-segment the unfinished segment is read again with zero weights: at once or token by token."""
    adapter, ids = make_adapter(), text(7, seed=4)
    _, state = observe(adapter, text(10))
    reset = adapter.reset(state, fast_weights=True, recurrent=False)
    assert reset.delta_KP is None
    whole, _ = score(
        adapter.model,
        [*state.pending, *ids[:2]],
        state=state.start.state.rows(slice(1, 2)),
        last=state.start.last,
    )
    once, one = observe(adapter, ids, reset, learn=learn)
    singles, other = [], reset
    for token in ids:
        parts, other = observe(adapter, [token], other, learn=learn)
        singles += parts
    torch.testing.assert_close(logprobs(once), logprobs(singles), rtol=0, atol=1e-5)
    torch.testing.assert_close(logprobs(once)[:2], whole.logprobs[2:], rtol=0, atol=1e-5)
    assert one.header() == other.header()


def test_nothing_before_a_reset_of_the_weights_is_learned_after_it(make_adapter, text):
    """The pending tokens stay as context; a segment that only they could teach takes no step."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    reset = adapter.reset(state, fast_weights=True, recurrent=False)
    assert (reset.pending, reset.pending_learn) == (state.pending, (False, False))
    assert observe(adapter, [1, 2], reset, learn=False)[1].delta_KP is None
    assert observe(adapter, [1, 2], reset)[1].delta_KP is not None
