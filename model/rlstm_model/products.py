"""Matrix products whose factors have the weights' precision and whose results have that of everything else.

Where the two are the same, these are plain products without copies. With bfloat16 weights the other
factor is rounded to bfloat16, the sums inside a product are float32, and the product is added up in the
precision of ``out``. All take stacks of matrices: ``[L, B, N]`` times ``[L, N, M]``.
"""

import torch
from torch import Tensor


def affine(bias: Tensor | None, x: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out`` becomes ``x weight + bias``."""
    if bias is None:
        product(x, weight, out)
    elif weight.dtype == out.dtype:
        torch.baddbmm(bias, x, weight, out=out)
    else:
        torch.add(torch.bmm(x.to(weight.dtype), weight), bias, out=out)


def product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out`` becomes ``x weight``."""
    if weight.dtype == out.dtype:
        torch.bmm(x, weight, out=out)
    else:
        out.copy_(torch.bmm(x.to(weight.dtype), weight))


def add_product(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """``out`` grows by ``x weight``."""
    if weight.dtype == out.dtype:
        out.baddbmm_(x, weight)
    else:
        out.add_(torch.bmm(x.to(weight.dtype), weight))


def weight_gradient(delta: Tensor, source: Tensor, precision: torch.dtype) -> Tensor:
    """Gradient ``[N, M]`` of the matrix by which ``delta`` ``[.., N]`` stands behind ``source`` ``[.., M]``.

    One product, summed over all leading dimensions: the steps and rows of a window.
    """
    delta, source = delta.flatten(0, -2), source.flatten(0, -2)
    if precision == delta.dtype:
        return delta.t() @ source
    return (delta.to(precision).t() @ source.to(precision)).to(delta.dtype)
