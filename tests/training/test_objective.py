"""The objective: against loops and automatic differentiation; its fused form against the plain one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_training import objective
from rlstm_training.objective import (
    add_l2_gradient,
    language_model_loss,
    multi_sample_loss,
    repeat_samples,
    softmax_loss,
)

T, B, V = 5, 3, 7
cross_entropy = torch.nn.functional.cross_entropy


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(0)


def _case(draw, samples):
    logits = torch.randn(T, B * samples, V, generator=draw, dtype=torch.float64)
    return logits, torch.randint(V, (T, B), generator=draw)


def test_pitfall_11_probabilities_are_averaged_token_by_token(draw):
    """The loss is -ln of the mean probability of each token: loops over every row, step and copy."""
    samples = 3
    logits, targets_TB = _case(draw, samples)
    losses = []
    for t in range(T):
        for b in range(B):
            copies = [torch.softmax(logits[t, b * samples + d], 0)[targets_TB[t, b]] for d in range(samples)]
            losses.append(-math.log(sum(copies) / samples))
    assert multi_sample_loss(logits, targets_TB, samples).item() == pytest.approx(sum(losses) / len(losses))


def test_a_sample_counts_by_its_responsibility(draw):
    """The gradient reaches a copy in proportion to its share of the probability, not one D-th."""
    logits = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(multi_sample_loss(logits, torch.tensor([[0]]), 2), logits)
    p = torch.softmax(logits.detach(), -1)[0, :, 0]
    torch.testing.assert_close(gradient[0, :, 0], p / p.sum() * (p - 1))


def test_repeated_rows_are_adjacent():
    """The D copies of a row stand beside each other, as the loss expects them."""
    assert repeat_samples(torch.tensor([[1, 2]]), 3).tolist() == [[1, 1, 1, 2, 2, 2]]


def _layer(seed, time, batch, samples, vocab, hidden, scale=1.0, dtype=torch.float64):
    """Features, output matrix and bias that need gradients, and targets."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((time, batch * samples, hidden), (vocab, hidden), (vocab,))
    inputs = [(scale * torch.randn(shape, generator=draw, dtype=torch.float64)).to(dtype) for shape in shapes]
    return [tensor.requires_grad_() for tensor in inputs], torch.randint(vocab, (time, batch), generator=draw)


def _plain(features, weight_VH, bias_V, targets_TB, samples):
    return multi_sample_loss(features @ weight_VH.t() + bias_V, targets_TB, samples)


def _and_gradients(form, inputs, *rest):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    loss = form(*leaves, *rest)
    return [loss, *torch.autograd.grad(loss, leaves)]


@given(
    seed=st.integers(0, 999),
    time=st.integers(1, 4),
    batch=st.integers(1, 3),
    samples=st.integers(1, 4),
    vocab=st.integers(1, 9),
    hidden=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 8.0]),
    piece_bytes=st.integers(1, 2000),
)
def test_the_fused_loss_is_the_plain_one(seed, time, batch, samples, vocab, hidden, scale, piece_bytes):
    """Loss and gradients, to float64's last digits, however the tokens are cut into pieces."""
    inputs, targets_TB = _layer(seed, time, batch, samples, vocab, hidden, scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "PIECE_BYTES", piece_bytes)
        loss = softmax_loss(*inputs, targets_TB, samples, torch.float64)
    expected = _plain(*inputs, targets_TB, samples)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    gradients, wanted = (torch.autograd.grad(3 * one, inputs) for one in (loss, expected))
    torch.testing.assert_close(gradients, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 3])
def test_oracle_d_the_fused_loss_of_equal_samples_is_cross_entropy(samples):
    """One sample, or as many as one likes that are the same: the plain loss, and its gradient in all."""
    (features, weight_VH, bias_V), targets_TB = _layer(1, T, B, 1, V, 4)
    copies = features.repeat_interleave(samples, 1)
    loss = softmax_loss(copies, weight_VH, bias_V, targets_TB, samples, torch.float64)
    expected = cross_entropy((features @ weight_VH.t() + bias_V).flatten(0, 1), targets_TB.flatten())
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, [features, weight_VH, bias_V]),
        torch.autograd.grad(expected, [features, weight_VH, bias_V]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 2])
def test_extreme_logits_stay_finite_and_right(dtype, samples):
    """At logits of 200 a target's probability is 0 in single precision; its loss is 400, its share right."""
    weight_VH = torch.tensor([[200.0], [-200.0], [0.0]], dtype=torch.float64)
    features = torch.tensor([1.0, -1.0, 0.999, 0.9, 1.0, 0.98], dtype=torch.float64)
    features = features[: 2 * samples].view(2, samples, 1)
    inputs = [features, weight_VH, torch.zeros(3, dtype=torch.float64)]
    targets_TB = torch.tensor([[1], [1]])
    wanted = _and_gradients(_plain, inputs, targets_TB, samples)
    results = _and_gradients(
        softmax_loss, [tensor.to(dtype) for tensor in inputs], targets_TB, samples, dtype
    )
    for got, exact in zip(results, wanted, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)
    if samples == 1:
        assert results[0].item() == pytest.approx(200.0)


def test_products_of_bfloat16_inputs_are_near():
    """Loss and gradients within what eight bits of the inputs allow; what is returned is of full width."""
    inputs, targets_TB = _layer(2, 8, 4, 2, 50, 32, 0.5, torch.float32)
    exact = softmax_loss(*inputs, targets_TB, 2)
    rounded = softmax_loss(*inputs, targets_TB, 2, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=5e-3)
    assert rounded.item() != exact.item()
    for got, wanted in zip(*(torch.autograd.grad(one, inputs) for one in (rounded, exact)), strict=True):
        assert got.dtype == torch.float32
        assert (got - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("samples", [1, 2])
def test_the_loss_of_a_model_is_that_of_its_own_output_layer(draw, components, tied, samples):
    """Tied or not, one softmax or a mixture: cross-entropy of the log-probabilities, and its gradients."""
    shape = {"vocab_size": V, "hidden_size": 4, "softmax_components": components, "tie_embeddings": tied}
    model = LanguageModel(ModelConfig(**shape)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=draw)
    features = torch.randn(T, B * samples, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    targets_TB = torch.randint(V, (T, B), generator=draw)
    leaves = [features, *model.embedding.parameters()]
    results = []
    for loss in (
        language_model_loss(model.embedding, features, targets_TB, samples, torch.float64),
        multi_sample_loss(model.log_probs(features), targets_TB, samples),
    ):
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([loss, *gradients])
    torch.testing.assert_close(*results)


def test_pitfall_13_l2_is_in_the_gradient_of_every_weight(draw):
    """That of l2 / 2 times the squares of all weights of a model, biases and embeddings too, is added."""
    model = LanguageModel(ModelConfig(vocab_size=V, hidden_size=3, num_layers=2, mogrifier_rank=2))
    weights = list(model.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.normal_(generator=draw)
    before = [torch.randn(weight.shape, generator=draw) for weight in weights]
    for weight, gradient in zip(weights[1:], before[1:], strict=True):
        weight.grad = gradient.clone()
    before[0] = torch.zeros_like(before[0])  # A weight that the loss did not reach is decayed too.
    add_l2_gradient(weights, 0.3)
    penalty = 0.15 * torch.stack([weight.square().sum() for weight in weights]).sum()
    for weight, old, more in zip(weights, before, torch.autograd.grad(penalty, weights), strict=True):
        torch.testing.assert_close(weight.grad, old + more)
    assert any(name.endswith("bias") for name, _ in model.named_parameters())


def test_without_l2_gradients_stay_as_they_are():
    """A coefficient of zero touches nothing."""
    weight = torch.ones(2, requires_grad=True)
    add_l2_gradient([weight], 0.0)
    assert weight.grad is None
