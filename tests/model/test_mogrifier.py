"""The rounds of gating between input and hidden state."""

import numpy as np
import pytest
import torch

from rlstm_model.network.mogrifier import (
    MogrifierDeltas,
    MogrifierTape,
    MogrifierWeights,
    RoundStep,
    RoundWeights,
    mogrified,
    mogrifier_gradients,
    mogrifier_slopes,
    mogrify,
    mogrify_backward,
)

ROUNDS = range(7)


def _layer_and_inputs(random_model, **shape):
    model = random_model(num_layers=1, **shape)
    x, h = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return model.config, model.stack.layers[0], x, h


def _rounds(weights):
    """The rounds of a group of one layer."""
    up, down, bias = (None if weight is None else weight.detach() for weight in weights)
    return [
        RoundWeights(
            up[None, k],
            None if down is None else down[None, k],
            None if bias is None else bias[None, None, k],
        )
        for k in range(len(up))
    ]


@torch.no_grad()
def _mogrify(weights, x, h):
    rounds = _rounds(weights)
    steps = RoundStep.scratch(rounds, h[None])
    x_1, h_1 = mogrify([weight.transposed() for weight in rounds], steps, x[None], h[None])
    return x_1[0], h_1[0]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_pitfall_7_rounds_are_what_the_equations_say(random_model, reference, rounds, rank, bias):
    """Each round reads the newest value of the other side, through weights of its own and 2 sigma."""
    config, layer, x, h = _layer_and_inputs(
        random_model, mogrifier_rounds=rounds, mogrifier_rank=rank, mogrifier_bias=bias
    )
    x_new, h_new = _mogrify(layer.weights.mogrifier, x, h)
    arrays = {name: weight.detach().numpy() for name, weight in layer.state_dict().items()}
    for b in range(3):
        x_b, h_b = reference.mogrify(config, arrays, x[b].numpy(), h[b].numpy())
        np.testing.assert_allclose(x_new[b], x_b, atol=1e-12)
        np.testing.assert_allclose(h_new[b], h_b, atol=1e-12)


def test_pitfall_7_rank_0_is_full_rank_and_rounds_0_is_none(random_model):
    """Rank 0 still gates; no rounds leave both sides untouched."""
    _, full, x, h = _layer_and_inputs(random_model, mogrifier_rounds=1, mogrifier_rank=0)
    _, none, _, _ = _layer_and_inputs(random_model, mogrifier_rounds=0, mogrifier_rank=2)
    assert not torch.equal(_mogrify(full.weights.mogrifier, x, h)[0], x)
    x_same, h_same = _mogrify(none.weights.mogrifier, x, h)
    assert torch.equal(x_same, x)
    assert torch.equal(h_same, h)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_zero_weights_are_the_identity(rounds):
    """2 sigma(0) = 1 exactly."""
    x, h = torch.randn(2, 3, 5)
    weights = MogrifierWeights(torch.zeros(rounds, 5, 2), torch.randn(rounds, 2, 5), torch.zeros(rounds, 5))
    x_same, h_same = _mogrify(weights, x, h)
    assert torch.equal(x_same, x)
    assert torch.equal(h_same, h)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_the_backward_pass_equals_automatic_differentiation(random_model, plain, rounds, rank, bias):
    """Gradients at x, h and every weight equal autograd's to 1e-12."""
    _, layer, x, h = _layer_and_inputs(
        random_model, mogrifier_rounds=rounds, mogrifier_rank=rank, mogrifier_bias=bias
    )
    weights = layer.weights.mogrifier
    inputs = [x.requires_grad_(), h.requires_grad_()]
    given = [weight for weight in weights if weight is not None]
    dx, dh = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x_new, h_new = plain.mogrify(weights, x, h)
    loss = (x_new * dx).sum() + (h_new * dh).sum()
    expected = torch.autograd.grad(loss, [*inputs, *given], allow_unused=True, materialize_grads=True)
    actual = _back(weights, x.detach(), h.detach(), dx, dh)
    for got, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def _back(weights, x, h, dx, dh):
    """Gradients at x, h and the weights, of a window of one step."""
    rounds = _rounds(weights)
    tape, deltas = (kind.empty(rounds, h[None, None]) for kind in (MogrifierTape, MogrifierDeltas))
    mogrify([weight.transposed() for weight in rounds], tape.steps()[0], x[None], h[None])
    mogrifier_slopes(tape, deltas)
    mogrify_backward(rounds, tape.steps()[0], deltas.steps()[0], dx[None], dh[None])
    tape, deltas = (
        type(window)(*(None if part is None else part[:, 0] for part in window)) for window in (tape, deltas)
    )
    gradients = mogrifier_gradients(weights, tape, deltas, h[None], h.dtype)
    return [dx, dh, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_what_the_cell_read_is_found_again_in_the_tape(random_model, rounds):
    """The last x and the last h that left a round, or what came in where no round made one."""
    _, layer, x, h = _layer_and_inputs(random_model, mogrifier_rounds=rounds)
    weights = _rounds(layer.weights.mogrifier)
    tape = MogrifierTape.empty(weights, h[None, None])
    with torch.no_grad():
        read = mogrify([weight.transposed() for weight in weights], tape.steps()[0], x[None], h[None])
    own = MogrifierTape(None, tape.gate[:, 0], tape.gated[:, 0])
    for kept, value in zip(mogrified(own, x[None], h[None]), read, strict=True):
        assert torch.equal(kept, value)
