"""Several experts on one stream: a mixture of evaluators, each guarded on its own."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation import mixture
from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.adaptation.state import EXPERT_RATES, StateMismatch

NAN, INF = float("nan"), float("inf")
tokens = st.integers(0, 10)
few = settings(max_examples=8, deadline=None)
KINDS = {"full": None, "subspace": 2}


def bits(state, rows=slice(None)):
    """Deltas and states of some of the rows that learn."""
    chosen = range(len(state.expert_config.rates))[rows]
    delta = torch.zeros(0) if state.delta_KP is None else state.delta_KP[list(chosen)]
    return [delta, *(tensor[:, [1 + row for row in chosen]] for tensor in state.now.state)]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def evaluator(request, make_evaluator):
    return make_evaluator(rate=0.1, decay=0.05, rank=request.param)


@pytest.mark.parametrize("experts", [2, 4])
@pytest.mark.parametrize("learn", [True, False])
def test_is_the_mixture_of_evaluators_that_run_alone(
    evaluator, text, observe, logprobs, static_logprobs, experts, learn
):
    """Scores, weights and deltas are those of streams of one rate each, mixed by hand with the static row."""
    ids, apart, deltas = text(30), [], []
    for rate in EXPERT_RATES[experts]:
        parts, state = observe(evaluator, ids[:21], evaluator.start(rate_scale=2 * rate))
        more, state = observe(evaluator, ids[21:], state, learn=learn)
        apart.append(logprobs(parts + more))
        deltas.append(state.delta_KP[0])
    static = static_logprobs(parts + more)
    expected = mixture.read(MixtureState.start(1, experts), torch.stack([static, *apart], 1)[:, None])
    parts, state = observe(evaluator, ids[:21], evaluator.start(rate_scale=2.0, experts=experts))
    more, state = observe(evaluator, ids[21:], state, learn=learn)
    found = logprobs(parts + more)
    torch.testing.assert_close(found, expected.logprobs_SN[:, 0].float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(static_logprobs(parts + more), static, rtol=0, atol=1e-6)
    torch.testing.assert_close(state.mixture, expected.state, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.delta_KP, torch.stack(deltas), rtol=1e-4, atol=1e-5)
    assert sum(state.weights) == pytest.approx(1.0)
    assert (found - static).abs().max() > 0.05


@few
@given(st.lists(tokens, min_size=1, max_size=20), st.data())
def test_cuts_do_not_matter(evaluator, observe, logprobs, ids, data):
    """Scores and weights at every cut are those of the whole, to 1e-5."""
    whole, end = observe(evaluator, ids, evaluator.start(experts=4))
    parts, state = [], evaluator.start(experts=4)
    while ids:
        length = data.draw(st.integers(1, len(ids)))
        more, state = observe(evaluator, ids[:length], state)
        parts, ids = parts + more, ids[length:]
    torch.testing.assert_close(logprobs(parts), logprobs(whole), rtol=0, atol=1e-5)
    assert state.weights == pytest.approx(end.weights, abs=1e-5)
    assert (state.updates, state.position) == (end.updates, end.position)


@pytest.mark.parametrize("rate_scale", [1.0, 100.0, 1e6])
@pytest.mark.parametrize("hostile", ["random", "one token", "alternating"])
def test_the_loss_to_the_static_row_is_bounded(
    evaluator, text, observe, logprobs, static_logprobs, hostile, rate_scale
):
    """After every token of a hostile stream, at any rate: at most ln K + ln(T + 1) nats in all."""
    ids = {"random": text(80), "one token": [3] * 40 + text(40), "alternating": [1, 2] * 20 + [2, 1] * 20}
    for experts in (2, 4):
        start = evaluator.start(experts=experts, rate_scale=rate_scale)
        parts, _ = observe(evaluator, ids[hostile], start)
        lost = (static_logprobs(parts).double() - logprobs(parts).double()).cumsum(0)
        for read, nats in enumerate(lost.tolist(), start=1):
            assert nats <= math.log(experts) + math.log(read + 1) + 1e-4


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(("length", "more"), [(8, 2), (8, 4), (10, 1), (10, 2)])
def test_an_expert_that_computes_no_number_restarts_alone(evaluator, text, observe, row, value, length, more):
    """Its delta is dropped, the part is scored again, and the other experts go on bit for bit."""
    _, state = observe(evaluator, text(length), evaluator.start(experts=4))
    delta = state.delta_KP.clone()
    delta[row] = value
    ids = text(more, seed=4)
    (broken,), after = observe(evaluator, ids, replace(state, delta_KP=delta))
    (whole,), expected = observe(evaluator, ids, state)
    assert broken.guards == ("restarted",)
    assert broken.scores.logprobs.isfinite().all()
    assert torch.equal(broken.static_logprobs, whole.static_logprobs)
    for other in {0, 1, 2} - {row}:
        assert equal(bits(after, slice(other, other + 1)), bits(expected, slice(other, other + 1)))
    zeroed = delta.clone()
    zeroed[row] = 0
    dropped = torch.tensor([[False, *(row == other for other in range(3))]])
    fresh = replace(state, delta_KP=zeroed, mixture=mixture.drop(state.mixture, dropped))
    if state.pending:
        slow = evaluator.reset(state, fast_weights=True, recurrent=False).now.state
        for kept, forgotten in zip(fresh.now.state, slow, strict=True):
            kept[:, 1 + row] = forgotten[:, 1 + row]
    (as_zeroed,), mended = observe(evaluator, ids, fresh)
    torch.testing.assert_close(broken.scores.logprobs, as_zeroed.scores.logprobs, rtol=0, atol=1e-5)
    assert after.header() == mended.header() | {"weights": list(after.weights)}
    torch.testing.assert_close(after.delta_KP, mended.delta_KP, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_bad_gradient_is_one_experts_affair(evaluator, text, bad_gradients, observe, row):
    """The expert skips its steps, at the third it restarts; the others learn bit for bit as ever."""
    expected, _ = observe(evaluator, text(24), evaluator.start(experts=4))
    bad_gradients({1, 2, 3}, row=row)
    parts, state = observe(evaluator, text(24), evaluator.start(experts=4))
    skipped = ("step_skipped",)
    assert [part.guards for part in parts] == [(), skipped, skipped, (*skipped, "restarted"), (), ()]
    assert [part.state.bad_steps[row] for part in parts] == [0, 1, 2, 0, 0, 0]
    assert all(part.updates == 1 for part in parts)
    assert len(parts[1].gradient_norms) == 2
    assert torch.equal(parts[2].state.delta_KP[row], parts[0].state.delta_KP[row])
    assert not parts[3].state.delta_KP[row].any()
    assert parts[4].state.delta_KP[row].any()
    for part, other in zip(parts, expected, strict=True):
        for own in {0, 1, 2} - {row}:
            assert equal(bits(part.state, slice(own, own + 1)), bits(other.state, slice(own, own + 1)))
            assert part.state.bad_steps[own] == 0
    assert state.updates == 6


def test_an_expert_that_restarts_after_its_steps_has_lost_its_weight(
    evaluator, text, bad_gradients, observe, stored
):
    """It counts as if its last token had been impossible; the state can be stored, and it comes back."""
    bad_gradients({1, 2, 3}, row=1)
    parts, _ = observe(evaluator, text(24), evaluator.start(experts=4))
    assert parts[3].guards[-1] == "restarted"
    assert parts[2].state.weights[2] > 1.01 / (12 + 1) / 4
    restarted = parts[3].state
    assert restarted.weights[2] == pytest.approx(1 / (16 + 1) / 4, rel=1e-12)
    mixture.check_state(restarted.mixture)
    again = evaluator.restore(*stored(restarted))
    assert again.weights == restarted.weights
    assert parts[5].state.weights[2] > restarted.weights[2]


def test_when_no_expert_can_step_nothing_changes(evaluator, text, bad_gradients, observe):
    """All steps skipped is no update, and the weights stay the same value."""
    bad_gradients({1}, row=slice(None))
    (first, second, third), _ = observe(evaluator, text(12), evaluator.start(experts=4))
    assert second.state.delta_KP is first.state.delta_KP
    assert (second.updates, second.guards) == (0, ("step_skipped",) * 3)
    assert (second.gradient_norms, second.norm_ratio) == ((), None)
    assert (third.updates, third.state.updates) == (1, 2)


def test_a_reset_of_the_weights_makes_the_experts_equal(evaluator, text, observe):
    """Pi = 1/K and t = 0; a reset of the text alone leaves them."""
    _, state = observe(evaluator, text(10), evaluator.start(experts=4))
    assert state.weights != (0.25,) * 4
    kept = evaluator.reset(state, fast_weights=False, recurrent=True)
    assert kept.mixture is state.mixture
    reset = evaluator.reset(state, fast_weights=True, recurrent=False)
    assert reset.weights == (0.25,) * 4
    assert int(reset.mixture.tokens_N) == 0
    assert reset.delta_KP is None
    (part,), _ = observe(evaluator, text(1), reset)
    assert int(part.state.mixture.tokens_N) == 1


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("weights", [[0.25] * 3, [0.25] * 5, [0.25, 0.25, 0.25, 0.2], [1.0, 0.0, 0.0, 0.0], [NAN] * 4]),
        ("weights", [[0.5, 0.5, 0.5, -0.5], [1, 0, 0, 0], ["0.25"] * 4, [INF] * 4, None]),
        ("weights_tokens", [-1, 11, 2**70, 10.0, None, True]),
        ("experts", [3, 8, True, "4"]),
        ("static", [False]),
        ("bad_steps", [[0], [0, 0], [0] * 4, [0, 0, -1], [0, 0, 2**70], 0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_header_values(evaluator, text, observe, field, values):
    """Weights that no stream can have, and counts of experts that do not fit, are refused by name."""
    _, state = observe(evaluator, text(10), evaluator.start(experts=4))
    for value in values:
        with pytest.raises(StateMismatch, match=field):
            evaluator.restore(state.tensors(), {**state.header(), field: value})


@pytest.mark.parametrize(
    "expert_config", [{"experts": 3}, {"experts": 0}, {"experts": True}, {"experts": 2.0}]
)
def test_start_refuses_numbers_of_experts(evaluator, expert_config):
    """There are 1, 2 or 4."""
    with pytest.raises(ValueError, match="experts must be one of"):
        evaluator.start(**expert_config)


def test_several_experts_need_the_static_row(evaluator):
    """It is one of them; and whether it is there is true or false."""
    with pytest.raises(ValueError, match="static"):
        evaluator.start(experts=2, static=False)
    with pytest.raises(ValueError, match="static"):
        evaluator.start(static=1)
