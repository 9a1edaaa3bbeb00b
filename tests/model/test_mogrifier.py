"""The rounds of gating between input and hidden state."""

import numpy as np
import pytest
import torch

from rlstm_model.mogrifier import MogrifierWeights, mogrifier_gradients, mogrify, mogrify_backward

ROUNDS = range(7)


def _layer_and_inputs(random_model, **shape):
    model = random_model(num_layers=1, **shape)
    x, h = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return model.config, model.stack.layers[0], x, h


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_pitfall_7_rounds_are_what_the_equations_say(random_model, reference, rounds, rank, bias):
    """Each round reads the newest value of the other side, through weights of its own and 2 sigma."""
    config, layer, x, h = _layer_and_inputs(
        random_model, mogrifier_rounds=rounds, mogrifier_rank=rank, mogrifier_bias=bias
    )
    x_new, h_new, _ = mogrify(layer.mogrifier_weights, x, h)
    arrays = {name: weight.detach().numpy() for name, weight in layer.state_dict().items()}
    for b in range(3):
        x_b, h_b = reference.mogrify(config, arrays, x[b].numpy(), h[b].numpy())
        np.testing.assert_allclose(x_new[b].detach(), x_b, atol=1e-12)
        np.testing.assert_allclose(h_new[b].detach(), h_b, atol=1e-12)


def test_pitfall_7_rank_0_is_full_rank_and_rounds_0_is_none(random_model):
    """Rank 0 still gates; no rounds leave both sides untouched."""
    _, full, x, h = _layer_and_inputs(random_model, mogrifier_rounds=1, mogrifier_rank=0)
    _, none, _, _ = _layer_and_inputs(random_model, mogrifier_rounds=0, mogrifier_rank=2)
    assert not torch.equal(mogrify(full.mogrifier_weights, x, h)[0], x)
    x_same, h_same, tape = mogrify(none.mogrifier_weights, x, h)
    assert x_same is x
    assert h_same is h
    assert tape == []


@pytest.mark.parametrize("rounds", ROUNDS)
def test_zero_weights_are_the_identity(rounds):
    """2 sigma(0) = 1 exactly."""
    x, h = torch.randn(2, 3, 5)
    weights = MogrifierWeights(torch.zeros(rounds, 5, 2), torch.randn(rounds, 2, 5), torch.zeros(rounds, 5))
    x_same, h_same, _ = mogrify(weights, x, h)
    assert torch.equal(x_same, x)
    assert torch.equal(h_same, h)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_the_backward_pass_equals_automatic_differentiation(random_model, rounds, rank, bias):
    """Gradients at x, h and every weight equal autograd's to 1e-12."""
    _, layer, x, h = _layer_and_inputs(
        random_model, mogrifier_rounds=rounds, mogrifier_rank=rank, mogrifier_bias=bias
    )
    inputs = [x.requires_grad_(), h.requires_grad_()]
    weights = [weight for weight in layer.mogrifier_weights if weight is not None]
    dx, dh = torch.randn(2, 3, 5, dtype=torch.float64)
    x_new, h_new, tape = mogrify(layer.mogrifier_weights, x, h)
    loss = (x_new * dx).sum() + (h_new * dh).sum()
    expected = torch.autograd.grad(loss, [*inputs, *weights], allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        dx, dh, deltas = mogrify_backward(layer.mogrifier_weights, tape, dx, dh)
        gradients = mogrifier_gradients(layer.mogrifier_weights, [tape], [deltas])
    actual = [dx, dh, *(g for g in gradients if g is not None)]
    for got, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)
