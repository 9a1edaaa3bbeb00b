import math

import pytest
import torch

from rlstm_training.objective import l2_penalty, multi_sample_loss, repeat_samples

T, B, V = 5, 3, 7


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(0)


def _case(draw, samples):
    logits = torch.randn(T, B * samples, V, generator=draw, dtype=torch.float64)
    return logits, torch.randint(V, (T, B), generator=draw)


def test_one_sample_is_cross_entropy(draw):
    """D = 1 is the plain loss."""
    logits, targets_TB = _case(draw, 1)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets_TB.flatten())
    torch.testing.assert_close(multi_sample_loss(logits, targets_TB, 1), expected)


@pytest.mark.parametrize("samples", [2, 5])
def test_equal_samples_are_cross_entropy(draw, samples):
    """With the same masks in all D copies nothing is gained: the plain loss."""
    logits, targets_TB = _case(draw, 1)
    repeated = logits.repeat_interleave(samples, 1)
    torch.testing.assert_close(
        multi_sample_loss(repeated, targets_TB, samples), multi_sample_loss(logits, targets_TB, 1)
    )


def test_probabilities_are_averaged_token_by_token(draw):
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


def test_l2_counts_every_weight(draw):
    """Half the coefficient times the squares of all weights; the gradient is coefficient times weight."""
    weights = [torch.randn(3, 2, generator=draw, requires_grad=True), torch.ones(4, requires_grad=True)]
    penalty = l2_penalty(weights, 0.3)
    assert penalty.item() == pytest.approx(0.15 * sum(w.square().sum().item() for w in weights))
    for weight, gradient in zip(weights, torch.autograd.grad(penalty, weights), strict=True):
        torch.testing.assert_close(gradient, 0.3 * weight.detach())
