"""Matrix products with factors of a lower precision."""

import pytest
import torch

from rlstm_model.network.products import (
    ObservedMatrix,
    add_linear,
    add_product,
    affine,
    linear,
    product,
    stack,
    takes_gradient,
    unbind,
    weight_gradient,
)


def _factors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 3, 64, generator=generator), torch.randn(2, 64, 5, generator=generator)
    return x.to(dtype), weight.to(dtype), torch.randn(2, 1, 5, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_one_precision_they_are_plain_products(dtype):
    """All three write what the formula says, also into a window of a larger buffer."""
    x, weight, bias = _factors(dtype)
    out = torch.zeros(2, 3, 9, dtype=dtype)[..., 2:7]
    product(x, weight, out)
    torch.testing.assert_close(out, x @ weight)
    add_product(out, x, weight)
    torch.testing.assert_close(out, 2 * (x @ weight))
    affine(bias, x, weight, out)
    torch.testing.assert_close(out, x @ weight + bias)
    affine(None, x, weight, out)
    torch.testing.assert_close(out, x @ weight)


def test_bfloat16_factors_give_float32_sums():
    """Within bfloat16's rounding of the exact product, and the bias and what is added to are not rounded."""
    x, weight, bias = _factors()
    exact, out = x @ weight, torch.empty(2, 3, 5)
    affine(bias, x, weight.bfloat16(), out)
    torch.testing.assert_close(out, exact + bias, atol=0.15, rtol=0)
    product(x, weight.bfloat16(), out)
    assert not torch.equal(out, exact)
    large = torch.full_like(out, 1024.25)  # bfloat16 has no number between 1024 and 1032
    add_product(large, torch.zeros_like(x), weight.bfloat16())
    assert bool((large == 1024.25).all())
    affine(bias, torch.zeros_like(x), weight.bfloat16(), out)
    assert torch.equal(out, bias.expand_as(out))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_weight_gradient_sums_over_everything_but_the_last_dimension(precision):
    """It equals the sum of all outer products, in the gradients' own precision."""
    generator = torch.Generator().manual_seed(1)
    delta, source = torch.randn(7, 3, 4, generator=generator), torch.randn(7, 3, 6, generator=generator)
    gradient = weight_gradient(torch.empty(4, 6), delta, source, precision)
    assert gradient.dtype == torch.float32
    tolerance = {"atol": 1e-5, "rtol": 0} if precision == torch.float32 else {"atol": 0.1, "rtol": 0}
    torch.testing.assert_close(gradient, torch.einsum("tbn,tbm->nm", delta, source), **tolerance)


def test_an_observed_matrix_multiplies_as_its_own():
    """In every product, transposed, stacked and taken apart."""
    x, weight, bias = _factors(torch.float64)
    observed, out, expected = (
        ObservedMatrix(weight),
        torch.empty(2, 3, 5).double(),
        torch.empty(2, 3, 5).double(),
    )
    assert observed.shape == weight.shape
    for own, result in ((observed, out), (weight, expected)):
        affine(bias, x, own, result)
        add_product(result, x, own)
    assert torch.equal(out, expected)
    product(x, observed, out)
    assert torch.equal(out, x @ weight)
    (first, second), flat = unbind(observed.mT, 0), torch.ones(3, 5).double()
    assert torch.equal(linear(x[0], first), x[0] @ weight[0])
    assert torch.equal(add_linear(flat, x[1], second), torch.addmm(flat, x[1], weight[1]))
    assert torch.equal(stack([first, second], torch.float32), weight.mT.float())


def test_an_observed_matrix_gives_the_factors_of_its_gradient():
    """Side by side, for every row, whether or not the matrix is frozen."""
    generator = torch.Generator().manual_seed(1)
    delta, source = torch.randn(7, 3, 4, generator=generator), torch.randn(7, 3, 6, generator=generator)
    observed = ObservedMatrix(torch.empty(4, 6))
    assert takes_gradient(observed)
    left, right = weight_gradient(observed, delta, source, torch.float32).split_with_sizes([4, 6], -1)
    assert torch.equal(left, delta)
    assert torch.equal(right, source)
