"""Matrix products whose factors have the weights' precision and whose results have that of everything else.

Where the two are the same, these are plain products without copies. With bfloat16 weights the other
factor is rounded to bfloat16, the sums inside a product are float32, and the product is added up in the
precision of ``out``. All take stacks of matrices: ``[L, B, N]`` times ``[L, N, M]``.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class RowMatrix(NamedTuple):
    """A matrix that is another one for every row b of the batch: ``shared + left core_b right``.

    ``shared`` ``[L, N, M]``; ``left`` ``[L, N, R]``; ``core`` ``[L, B, R, Q]``; ``right`` ``[L, Q, M]``. Only
    the product with the core is done row by row.
    """

    shared: Tensor
    left: Tensor
    core: Tensor
    right: Tensor

    @property
    def shape(self) -> torch.Size:
        """That of the shared matrix."""
        return self.shared.shape

    @property
    def mT(self) -> "RowMatrix":  # noqa: N802 - a tensor's name for it
        """The transposed matrices, as views."""
        return RowMatrix(self.shared.mT, self.right.mT, self.core.mT, self.left.mT)

    def add_own(self, out: Tensor, x: Tensor) -> None:
        """``out`` grows by ``x left core right``, each row with its own core."""
        low = torch.bmm(x, self.left)
        own = torch.matmul(low.unsqueeze(2), self.core).squeeze(2)
        out.baddbmm_(own, self.right)

    def add_own_to(self, base: Tensor, x_BM: Tensor) -> Tensor:
        """``base + left core_b right x``, a new tensor, where this is one matrix and no stack."""
        own = torch.bmm((x_BM @ self.right.t()).unsqueeze(1), self.core.mT).squeeze(1)
        return torch.addmm(base, own, self.left.t())


class ObservedMatrix(NamedTuple):
    """A shared matrix ``[.., N, M]`` of whose gradient the factors are wanted, not their product.

    It multiplies as ``shared``. What :func:`weight_gradient` gives of it are ``delta`` and ``source`` side by
    side, ``[T, B, N + M]``: row b's gradient is the product of the two over T.
    """

    shared: Tensor

    @property
    def shape(self) -> torch.Size:
        """That of the shared matrix."""
        return self.shared.shape

    @property
    def mT(self) -> "ObservedMatrix":  # noqa: N802 - a tensor's name for it
        """The transposed matrices, as views."""
        return ObservedMatrix(self.shared.mT)

    def add_own(self, out: Tensor, x: Tensor) -> None:
        """Rows have nothing of their own to add."""

    def add_own_to(self, base: Tensor, _x_BM: Tensor) -> Tensor:
        """``base``: rows have nothing of their own to add."""
        return base


Matrix: TypeAlias = Tensor | RowMatrix | ObservedMatrix


def stack(matrices: Sequence[Matrix], precision: torch.dtype | None) -> Matrix:
    """``[L, .., N, M]`` from matrices of the same kind, in ``precision`` (None: in their own).

    A view where possible: of one tensor in its own precision. Rows' own cores are not rounded.
    """
    if isinstance(matrices[0], RowMatrix):
        fields = zip(*(matrix for matrix in matrices if isinstance(matrix, RowMatrix)), strict=True)
        return RowMatrix(*(_stack_tensors(parts) for parts in fields))
    shared = [matrix if isinstance(matrix, Tensor) else matrix.shared for matrix in matrices]
    stacked = _stack_tensors(shared)
    return stacked if precision is None else stacked.to(precision)


def unbind(matrix: Matrix, dim: int) -> list[Matrix]:
    """The matrices along a leading dimension, as views."""
    if isinstance(matrix, RowMatrix):
        return [RowMatrix(*parts) for parts in zip(*(field.unbind(dim) for field in matrix), strict=True)]
    if isinstance(matrix, ObservedMatrix):
        return [ObservedMatrix(shared) for shared in matrix.shared.unbind(dim)]
    return list(matrix.unbind(dim))


def takes_gradient(weight: Matrix | None) -> bool:
    """Whether there is a gradient to work out: a tensor may be frozen, other kinds of matrices never are."""
    return weight is not None and (not isinstance(weight, Tensor) or weight.requires_grad)


def bias_takes_gradient(bias: Tensor | None, shared_dims: int) -> bool:
    """The same for a bias, which has a dimension more than if it were shared where rows have their own."""
    return bias is not None and (bias.requires_grad or bias.dim() > shared_dims)


def affine(bias: Tensor | None, x: Tensor, weight: Matrix, out: Tensor) -> None:
    """``out`` becomes ``x weight + bias``."""
    if not isinstance(weight, Tensor):
        affine(bias, x, weight.shared, out)
        weight.add_own(out, x)
    elif bias is None:
        product(x, weight, out)
    elif weight.dtype == out.dtype:
        torch.baddbmm(bias, x, weight, out=out)
    else:
        torch.add(torch.bmm(x.to(weight.dtype), weight), bias, out=out)


def product(x: Tensor, weight: Matrix, out: Tensor) -> None:
    """``out`` becomes ``x weight``."""
    if not isinstance(weight, Tensor):
        product(x, weight.shared, out)
        weight.add_own(out, x)
    elif weight.dtype == out.dtype:
        torch.bmm(x, weight, out=out)
    else:
        out.copy_(torch.bmm(x.to(weight.dtype), weight))


def add_product(out: Tensor, x: Tensor, weight: Matrix) -> None:
    """``out`` grows by ``x weight``."""
    if not isinstance(weight, Tensor):
        add_product(out, x, weight.shared)
        weight.add_own(out, x)
    elif weight.dtype == out.dtype:
        out.baddbmm_(x, weight)
    else:
        out.add_(torch.bmm(x.to(weight.dtype), weight))


def linear(x_BN: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """``weight x + bias`` for every row, as a new tensor; ``weight`` is ``[M, N]``, no stack."""
    if not isinstance(weight, Tensor):
        return weight.add_own_to(linear(x_BN, weight.shared, bias), x_BN)
    return x_BN @ weight.t() if bias is None else torch.addmm(bias, x_BN, weight.t())


def add_linear(base: Tensor, x_BN: Tensor, weight: Matrix) -> Tensor:
    """``base + weight x`` for every row, as a new tensor."""
    if not isinstance(weight, Tensor):
        return weight.add_own_to(add_linear(base, x_BN, weight.shared), x_BN)
    return torch.addmm(base, x_BN, weight.t())


def weight_gradient(weight: Matrix, delta: Tensor, source: Tensor, precision: torch.dtype) -> Tensor:
    """Gradient of a layer's matrix, by which ``delta`` ``[T, B, N]`` stands behind ``source`` ``[T, B, M]``.

    One product ``[N, M]`` over all steps and rows of a window; of a :class:`RowMatrix` that of the cores,
    ``[B, R, Q]``; of an :class:`ObservedMatrix` matrix the two factors, ``[T, B, N + M]``.
    """
    if isinstance(weight, RowMatrix):
        return _core_gradient(weight, delta, source)
    if isinstance(weight, ObservedMatrix):
        return torch.cat((delta, source), -1)
    delta, source = delta.flatten(0, -2), source.flatten(0, -2)
    if precision == delta.dtype:
        return delta.t() @ source
    return (delta.to(precision).t() @ source.to(precision)).to(delta.dtype)


def bias_gradient(bias: Tensor, delta: Tensor) -> Tensor:
    """Gradient of a layer's bias ``[N]``, or ``[B, N]`` where every row has its own, from ``[T, B, N]``."""
    return delta.sum(0) if bias.dim() == 2 else delta.sum((0, 1))


def _core_gradient(weight: RowMatrix, delta: Tensor, source: Tensor) -> Tensor:
    low_delta = (delta @ weight.left).permute(1, 2, 0)
    low_source = (source @ weight.right.t()).transpose(0, 1)
    return torch.bmm(low_delta, low_source)


def _stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
