"""Back to zero: resets that a stream asks for, and experts that start anew."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.adaptation.adapter import NonFiniteState
from rlstm_model.adaptation.restart import restart
from rlstm_model.scoring import score


@pytest.mark.parametrize("length", [8, 10])
def test_a_restart_is_of_the_chosen_experts(make_adapter, text, observe, length):
    """Their fast weights, skips and weight in the mixture; the others keep theirs to the last bit."""
    adapter = make_adapter(rank=2)
    _, state = observe(adapter, text(length), adapter.start(experts=4))
    state = replace(state, bad_steps=(1, 2, 1))
    after = restart(adapter, state, [False, True, False])
    assert after.bad_steps == (1, 0, 1)
    assert [bool(row.any()) for row in after.delta_KP] == [True, False, True]
    assert torch.equal(after.delta_KP[[0, 2]], state.delta_KP[[0, 2]])
    assert after.weights[2] == pytest.approx(1 / (length + 1) / 4)
    assert sum(after.weights) == pytest.approx(1.0, abs=1e-12)
    assert all(
        new >= old for k, (new, old) in enumerate(zip(after.weights, state.weights, strict=True)) if k != 2
    )
    for new, old in zip(after.now.state, state.now.state, strict=True):
        assert torch.equal(new[:, [0, 1, 3]], old[:, [0, 1, 3]])
        assert torch.equal(new[:, 2], old[:, 2]) == (length == 8)
    assert adapter.restore(after.tensors(), after.header()).weights == after.weights


def test_a_restart_that_cannot_help_says_so(make_adapter, text, observe):
    """Where the rows have no fast weights that could be to blame."""
    adapter = make_adapter(rank=2)
    for state in (adapter.start(), restart(adapter, observe(adapter, text(8))[1], [True])):
        with pytest.raises(NonFiniteState, match="recurrent state or a slow weight"):
            restart(adapter, state, [True], must_help=True)


def test_reset_both_is_a_new_stream_at_its_old_position(make_adapter, text, digest, observe):
    """Forgetting weights and text leaves position, count of steps and rate; the rest is the start."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10), adapter.start(rate_scale=2.0))
    reset, fresh = adapter.reset(state, fast_weights=True, recurrent=True), adapter.start()
    assert digest(*reset.tensors().values()) == digest(*fresh.tensors().values())
    assert (reset.position, reset.updates, reset.rate_scale, reset.pending) == (10, 2, 2.0, ())
    assert reset.now.last == fresh.now.last


def test_reset_of_nothing(make_adapter, text, digest, observe):
    """A reset of neither part changes nothing."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    assert adapter.reset(state, fast_weights=False, recurrent=False) is state


def test_the_grid_stays_absolute_after_a_recurrent_reset(make_adapter, text, observe):
    """Forgetting the text in mid-segment keeps the delta, drops the pending tokens and moves no step."""
    adapter = make_adapter()
    _, state = observe(adapter, text(6))
    reset = adapter.reset(state, fast_weights=False, recurrent=True)
    assert reset.delta_KP is state.delta_KP
    parts, after = observe(adapter, text(10, seed=4), reset)
    assert [part.state.position for part in parts if part.updates] == [8, 12, 16]
    assert [len(part.scores) for part in parts] == [2, 4, 4]
    assert after.updates == 4


def test_a_shortened_segment_divides_by_its_full_length(make_adapter, tiny_model, text, observe):
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
def test_after_a_reset_of_the_weights_cuts_still_do_not_matter(make_adapter, text, observe, logprobs, learn):
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


def test_nothing_before_a_reset_of_the_weights_is_learned_after_it(make_adapter, text, observe):
    """The pending tokens stay as context; a segment that only they could teach takes no step."""
    adapter = make_adapter()
    _, state = observe(adapter, text(10))
    reset = adapter.reset(state, fast_weights=True, recurrent=False)
    assert (reset.pending, reset.pending_learn) == (state.pending, (False, False))
    assert observe(adapter, [1, 2], reset, learn=False)[1].delta_KP is None
    assert observe(adapter, [1, 2], reset)[1].delta_KP is not None
