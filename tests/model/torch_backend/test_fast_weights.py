"""What every kind of fast weights promises, for all kinds alike."""

import pytest
import torch

from rlstm_model.torch_backend.fast_weights import FullFastWeights
from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

ROWS, TIME = 3, 5


def subspace(model):
    """All axes of two matrices, and two biases."""
    weights = dict(model.named_parameters())
    bases = {}
    for name in ("embedding.output", "stack.layers.1.h"):
        rows, columns = weights[name].shape
        bases[name] = Basis(*(torch.eye(size, dtype=torch.float64)[:, :3] for size in (rows, columns)))
        bases[name] = Basis(bases[name].left, bases[name].right.t())
    return SubspaceFastWeights(model, bases, ["embedding.bias", "stack.layers.0.bias"])


KINDS = [FullFastWeights, subspace]


def lesson(fast_weights):
    """Fast weights in float64, deltas, ids, targets, weights of the losses, and a state in mid-text."""
    generator = torch.Generator().manual_seed(6)
    delta = 0.2 * torch.randn(ROWS, fast_weights.size, dtype=torch.float64, generator=generator)
    ids, targets = torch.randint(11, (2, TIME, ROWS), generator=generator)
    weights = torch.rand(TIME, ROWS, dtype=torch.float64, generator=generator)
    weights[1, 0] = 0.0
    model = fast_weights.model
    _, state = model(ids, model.initial_state(ROWS))
    return fast_weights, delta, ids, targets, weights, state


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def case(request, tiny_model):
    return lesson(request.param(tiny_model(dtype=torch.float64)))


def test_reading_and_learning_give_the_same_logits_and_states(case):
    """A segment is scored alike whether it is learned from or not, at any temperature."""
    fast_weights, delta, ids, targets, weights, state = case
    for temperature in (1.0, 0.8):
        logits, after = fast_weights.read(delta, ids, state, temperature=temperature)
        learned = fast_weights.learn(delta, ids, targets, weights, state, temperature=temperature)
        torch.testing.assert_close(learned.logits_TNV, logits, rtol=0, atol=1e-12)
        torch.testing.assert_close(learned.state, after, rtol=0, atol=1e-12)


def test_rows_are_what_each_is_alone(case):
    """Logits, states and gradients of a row do not depend on the other rows."""
    fast_weights, delta, ids, targets, weights, state = case
    together = fast_weights.learn(delta, ids, targets, weights, state)
    for row in range(ROWS):
        own = slice(row, row + 1)
        columns = (ids[:, own], targets[:, own], weights[:, own])
        alone = fast_weights.learn(delta[own], *columns, state.rows(own))
        torch.testing.assert_close(together.logits_TNV[:, own], alone.logits_TNV, rtol=0, atol=1e-12)
        torch.testing.assert_close(together.gradient_NP[own], alone.gradient_NP, rtol=0, atol=1e-12)
        torch.testing.assert_close(together.state.rows(own), alone.state, rtol=0, atol=1e-12)


def test_no_delta_is_a_delta_of_zero(case):
    """None stands for zeros, in reading and in learning."""
    fast_weights, _, ids, targets, weights, state = case
    zero = torch.zeros(ROWS, fast_weights.size, dtype=torch.float64)
    expected = fast_weights.learn(zero, ids, targets, weights, state)
    found = fast_weights.learn(None, ids, targets, weights, state)
    torch.testing.assert_close(found.gradient_NP, expected.gradient_NP, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        fast_weights.read(None, ids, state)[0], expected.logits_TNV, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (subspace, {}),
        (FullFastWeights, {}),
        (FullFastWeights, {"tie_embeddings": True}),
        (FullFastWeights, {"cell": "lstm", "cap_input_gate": False, "mogrifier_rank": 0}),
        (FullFastWeights, {"mogrifier_rounds": 0}),
        (FullFastWeights, {"softmax_components": 3}),
        (FullFastWeights, {"softmax_components": 2, "tie_embeddings": True}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_gradient_is_that_of_the_weighted_losses(tiny_model, kind, shape):
    """Finite differences in random directions agree, row by row, at a temperature (pitfall 23)."""
    fast_weights, delta, ids, targets, weights, state = lesson(kind(tiny_model(dtype=torch.float64, **shape)))
    learned = fast_weights.learn(delta, ids, targets, weights, state, temperature=0.9)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(delta.shape, dtype=torch.float64, generator=generator)
        losses = []
        for sign in (1, -1):
            logits, _ = fast_weights.read(delta + sign * 1e-6 * direction, ids, state, temperature=0.9)
            log_probs = torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))[..., 0]
            losses.append(-(log_probs * weights).sum(0))
        expected = (learned.gradient_NP * direction).sum(1)
        torch.testing.assert_close((losses[0] - losses[1]) / 2e-6, expected, rtol=1e-6, atol=1e-8)


def test_the_slow_weights_are_never_written_to(case):
    """Reading and learning leave the model as it was loaded, and without gradients."""
    fast_weights, delta, ids, targets, weights, state = case
    before = {name: weight.clone() for name, weight in fast_weights.model.named_parameters()}
    fast_weights.learn(delta, ids, targets, weights, state)
    fast_weights.read(delta, ids, state)
    for name, weight in fast_weights.model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None


def test_a_mixture_of_softmaxes_has_no_subspace(tiny_model):
    """Rows can add nothing to one, and say so."""
    with pytest.raises(ValueError, match="mixture of softmaxes"):
        SubspaceFastWeights(tiny_model(softmax_components=2), {}, ["embedding.bias"])


def test_tied_embeddings_are_one_weight(tiny_model):
    """Full fast weights are as many as the model has weights (pitfall 33)."""
    for tied in (False, True):
        model = tiny_model(tie_embeddings=tied)
        assert FullFastWeights(model).size == model.config.num_parameters


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pitfall_35_half_precision_is_refused(tiny_model, kind, dtype):
    """Half precision would swallow the steps, so no such model may learn."""
    with pytest.raises(ValueError, match="float32"):
        kind(tiny_model(dtype=torch.float32).to(dtype))
