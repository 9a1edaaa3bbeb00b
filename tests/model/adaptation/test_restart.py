"""Back to zero: resets that a stream asks for, and experts that start anew."""

from dataclasses import replace

import pytest
import torch
from rlstm_model.adaptation.batch_step import restart
from rlstm_model.scoring import score

from rlstm_model.adaptation.state import NonFiniteState


@pytest.mark.parametrize("length", [8, 10])
def test_a_restart_is_of_the_chosen_experts(make_evaluator, text, observe, length):
    """Their fast weights, skips and weight in the mixture; the others keep theirs to the last bit."""
    evaluator = make_evaluator(rank=2)
    _, state = observe(evaluator, text(length), evaluator.start(experts=4))
    state = replace(state, bad_steps=(1, 2, 1))
    after = restart(evaluator.rows, state, [False, True, False])
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
    assert evaluator.restore(after.tensors(), after.header()).weights == after.weights


def test_a_restart_that_cannot_help_says_so(make_evaluator, text, observe):
    """Where the rows have no fast weights that could be to blame."""
    evaluator = make_evaluator(rank=2)
    for state in (evaluator.start(), restart(evaluator.rows, observe(evaluator, text(8))[1], [True])):
        with pytest.raises(NonFiniteState, match="recurrent state or a slow weight"):
            restart(evaluator.rows, state, [True], must_help=True)


def test_reset_both_is_a_new_stream_at_its_old_position(make_evaluator, text, digest, observe):
    """Forgetting weights and text leaves position, count of steps and rate; the rest is the start."""
    evaluator = make_evaluator()
    _, state = observe(evaluator, text(10), evaluator.start(rate_scale=2.0))
    reset, fresh = evaluator.reset(state, fast_weights=True, recurrent=True), evaluator.start()
    assert digest(*reset.tensors().values()) == digest(*fresh.tensors().values())
    assert (reset.position, reset.updates, reset.rate_scale, reset.pending) == (10, 2, 2.0, ())
    assert reset.now.last == fresh.now.last


def test_reset_of_nothing(make_evaluator, text, digest, observe):
    """A reset of neither part changes nothing."""
    evaluator = make_evaluator()
    _, state = observe(evaluator, text(10))
    assert evaluator.reset(state, fast_weights=False, recurrent=False) is state


def test_the_grid_stays_absolute_after_a_recurrent_reset(make_evaluator, text, observe):
    """Forgetting the text in mid-segment keeps the delta, drops the pending tokens and moves no step."""
    evaluator = make_evaluator()
    _, state = observe(evaluator, text(6))
    reset = evaluator.reset(state, fast_weights=False, recurrent=True)
    assert reset.delta_KP is state.delta_KP
    parts, after = observe(evaluator, text(10, seed=4), reset)
    assert [part.state.position for part in parts if part.updates] == [8, 12, 16]
    assert [len(part.scores) for part in parts] == [2, 4, 4]
    assert after.updates == 4


def test_a_shortened_segment_divides_by_its_full_length(make_evaluator, tiny_model, text, observe):
    """After a recurrent reset two tokens learn: their summed loss over S, not over two."""
    evaluator = make_evaluator(tiny_model(dtype=torch.float64))
    _, state = observe(evaluator, text(6))
    reset = evaluator.reset(state, fast_weights=True, recurrent=True)
    parts, _ = observe(evaluator, [3, 5], reset)
    model = tiny_model(dtype=torch.float64).requires_grad_(True)
    features, _ = model(torch.tensor([[1], [3]]), model.initial_state(1))
    loss = -model.log_probs(features)[[0, 1], 0, [3, 5]].sum() / 4
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
    assert parts[0].gradient_norms == pytest.approx((norm,), rel=1e-9)


@pytest.mark.parametrize("learn", [True, False])
def test_after_a_reset_of_weights_cuts_still_do_not_matter(make_evaluator, text, observe, logprobs, learn):
    """In mid-segment the unfinished segment is read again with zero weights: at once or token by token."""
    evaluator, ids = make_evaluator(), text(7, seed=4)
    _, state = observe(evaluator, text(10))
    reset = evaluator.reset(state, fast_weights=True, recurrent=False)
    assert reset.delta_KP is None
    whole, _ = score(
        evaluator.model,
        [*state.pending, *ids[:2]],
        state=state.start.state.rows(slice(1, 2)),
        last=state.start.last,
    )
    once, one = observe(evaluator, ids, reset, learn=learn)
    singles, other = [], reset
    for token in ids:
        parts, other = observe(evaluator, [token], other, learn=learn)
        singles += parts
    torch.testing.assert_close(logprobs(once), logprobs(singles), rtol=0, atol=1e-5)
    torch.testing.assert_close(logprobs(once)[:2], whole.logprobs[2:], rtol=0, atol=1e-5)
    assert one.header() == other.header()


def test_nothing_before_a_reset_of_the_weights_is_learned_after_it(make_evaluator, text, observe):
    """The pending tokens stay as context; a segment that only they could teach takes no step."""
    evaluator = make_evaluator()
    _, state = observe(evaluator, text(10))
    reset = evaluator.reset(state, fast_weights=True, recurrent=False)
    assert (reset.pending, reset.pending_learn) == (state.pending, (False, False))
    assert observe(evaluator, [1, 2], reset, learn=False)[1].delta_KP is None
    assert observe(evaluator, [1, 2], reset)[1].delta_KP is not None
