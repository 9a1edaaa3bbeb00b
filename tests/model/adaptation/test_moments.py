"""Leading eigenvectors of sums of squares: whole, and from a sketch."""

import pytest
import torch

from rlstm_model.torch_backend.factors import Factor
from rlstm_model.torch_backend.moments import Moment

SIDE, RANK, BATCHES = 60, 4, 5


def factors(spectrum, seed=0):
    """Pairs D ``[B, T, N]``, the first rows by id, and X ``[B, T, M]``, with this decay over directions."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(SIDE, SIDE, generator=generator, dtype=torch.double))[0]
    for _ in range(BATCHES):
        dense = torch.randn(3, 6, SIDE, generator=generator, dtype=torch.double) * spectrum @ mix
        ids = torch.randint(2, (3, 2), generator=generator)
        yield Factor(ids, dense), torch.randn(3, 8, 7, generator=generator, dtype=torch.double)


def moment(pairs, *, exact_side=SIDE, rank=RANK):
    """All pairs taken in."""
    found = Moment(SIDE, rank, exact_side, torch.Generator().manual_seed(1), torch.device("cpu"))
    for factor, right in pairs:
        found.add(factor, right @ right.mT)
    return found


def dense_sum(pairs):
    """Sum G G^T, each gradient multiplied out."""
    gradients = [factor.whole().mT @ right for factor, right in pairs]
    return sum((g @ g.mT).sum(0) for g in gradients)


def assert_orthonormal(axes):
    expected = torch.eye(axes.shape[1], dtype=axes.dtype)
    torch.testing.assert_close(axes.mT @ axes, expected, atol=1e-12, rtol=0)


def decay(ratio):
    return ratio ** torch.arange(SIDE, dtype=torch.double)


def test_axes_are_the_leading_eigenvectors():
    """One by one they meet the definition, the largest value first, and the largest entry is positive."""
    axes, total = moment(factors(decay(0.8))).axes(), dense_sum(factors(decay(0.8)))
    values = torch.linalg.eigvalsh(total).flip(0)[:RANK]
    assert_orthonormal(axes)
    torch.testing.assert_close(total @ axes, axes * values, atol=1e-8, rtol=0)
    assert bool((axes.gather(0, axes.abs().argmax(0, keepdim=True)) > 0).all())


def test_a_sketch_of_few_directions_is_exact():
    """Where the gradients' rank is within the sketch's width, nothing is lost: axes are the exact ones."""
    spectrum = decay(0.8) * (torch.arange(SIDE) < 2 * RANK)
    exact, sketched = (moment(factors(spectrum), exact_side=side).axes() for side in (SIDE, SIDE - 1))
    assert_orthonormal(sketched)
    torch.testing.assert_close(sketched, exact, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("ratio", "least"), [(0.5, 0.9999), (0.8, 0.999), (0.95, 0.93)])
def test_a_sketch_of_many_directions_captures_nearly_all(ratio, least):
    """Its axes hold nearly as much of the sum as the best do: the more, the faster the spectrum falls."""
    exact, sketched = (moment(factors(decay(ratio)), exact_side=side).axes() for side in (SIDE, SIDE - 1))
    total = dense_sum(factors(decay(ratio)))
    held, best = (float((axes.mT @ total @ axes).trace()) for axes in (sketched, exact))
    assert least * best <= held <= best * (1 + 1e-12)


@pytest.mark.parametrize("exact_side", [SIDE, SIDE - 1])
def test_axes_of_too_few_gradients_are_still_orthonormal(exact_side):
    """With one direction, or with no gradient at all, the rest of the axes is arbitrary but whole."""
    one = torch.zeros(1, 1, SIDE, dtype=torch.double)
    one[0, 0, 7] = -3.0
    pair = (Factor.of(one), torch.ones(1, 1, 2, dtype=torch.double))
    first = moment([pair], exact_side=exact_side).axes()
    assert_orthonormal(first)
    torch.testing.assert_close(first[:, 0], one[0, 0] / -3.0)
    assert_orthonormal(moment([], exact_side=exact_side).axes())


def test_a_sketch_stays_small():
    """What is kept of a long side grows with the rank, not with its square."""
    side = 200_000
    found = Moment(side, 2, 4096, torch.Generator(), torch.device("cpu"))
    ids = torch.tensor([[5, 150_000, 5]])
    found.add(
        Factor(ids, torch.zeros(1, 0, side, dtype=torch.double)), torch.eye(3, dtype=torch.double)[None]
    )
    axes = found.axes()
    assert axes.shape == (side, 2)
    torch.testing.assert_close(axes[[5, 150_000]], torch.eye(2, dtype=torch.double), atol=1e-6, rtol=0)
