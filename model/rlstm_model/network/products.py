"""Matrix products whose factors have the weights' precision and whose results have that of everything else.

Where the two are the same, these are plain products without copies. With bfloat16 weights the other
factor is rounded to bfloat16, the sums inside a product are float32, and the product is added up in the
precision of ``out``.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


class RowMatrix(NamedTuple):
    """A matrix that is another one for every row b of the batch: ``shared + left core_b right``.

    ``shared`` ``[N, M]``; ``left`` ``[N, R]``; ``right`` ``[Q, M]``; ``core`` ``[B, R, Q]``, which alone has
    a gradient; of a mogrifier's matrices all have the rounds in front. Only the product with the core is done
    row by row.
    """

    shared: Tensor
    left: Tensor
    right: Tensor
    core: Tensor

    @property
    def shape(self) -> torch.Size:
        """That of the shared matrix."""
        return self.shared.shape

    @property
    def mT(self) -> "RowMatrix":  # noqa: N802 - a tensor's name for it
        """The transposed matrix, as views."""
        return RowMatrix(self.shared.mT, self.right.mT, self.left.mT, self.core.mT)

    def add_own(self, out: Tensor, x: Tensor) -> None:
        """``out`` grows by ``x left core right``, each row with its own core."""
        own = torch.bmm((x @ self.left).unsqueeze(1), self.core).squeeze(1)
        out.addmm_(own, self.right)


class ObservedMatrix(NamedTuple):
    """A shared matrix ``[.., N, M]`` of whose gradient the factors are wanted, not their product.

    ``factors`` ``[.., T, B, N + M]`` stand for them: their values play no part, and their gradient is
    ``delta`` and ``source`` of :func:`weight_gradient` side by side. Row b's gradient of the matrix is the
    product of the two over T.
    """

    shared: Tensor
    factors: Tensor

    @property
    def shape(self) -> torch.Size:
        """That of the shared matrix."""
        return self.shared.shape


Matrix: TypeAlias = Tensor | RowMatrix | ObservedMatrix


def factor_of(matrix: Matrix, precision: torch.dtype) -> Tensor | RowMatrix:
    """What is multiplied with, in ``precision``; rows' own cores are not rounded."""
    if isinstance(matrix, RowMatrix):
        return matrix
    return (matrix if isinstance(matrix, Tensor) else matrix.shared).to(precision)


def unbind(matrix: Matrix) -> list[Matrix]:
    """The matrices along the leading dimension, as views."""
    if isinstance(matrix, Tensor):
        return list(matrix.unbind())
    return [type(matrix)(*parts) for parts in zip(*(field.unbind() for field in matrix), strict=True)]


def takes_gradient(weight: Matrix | None) -> bool:
    """Whether there is a gradient to work out: of a tensor, or of the last part of another matrix."""
    return weight is not None and (weight if isinstance(weight, Tensor) else weight[-1]).requires_grad


def affine(bias: Tensor | None, x_BN: Tensor, weight: Matrix, out: Tensor) -> None:
    """``out`` becomes ``x weight + bias``."""
    if isinstance(weight, RowMatrix):
        affine(bias, x_BN, weight.shared, out)
        weight.add_own(out, x_BN)
        return
    assert isinstance(weight, Tensor)
    if bias is None:
        product(x_BN, weight, out)
    elif weight.dtype == out.dtype:
        torch.addmm(bias, x_BN, weight, out=out)
    else:
        torch.add(x_BN.to(weight.dtype) @ weight, bias, out=out)


def product(x_BN: Tensor, weight: Matrix, out: Tensor) -> None:
    """``out`` becomes ``x weight``."""
    if isinstance(weight, RowMatrix):
        product(x_BN, weight.shared, out)
        weight.add_own(out, x_BN)
        return
    assert isinstance(weight, Tensor)
    if weight.dtype == out.dtype:
        torch.mm(x_BN, weight, out=out)
    else:
        out.copy_(x_BN.to(weight.dtype) @ weight)


def add_product(out: Tensor, x_BN: Tensor, weight: Matrix) -> None:
    """``out`` grows by ``x weight``."""
    if isinstance(weight, RowMatrix):
        add_product(out, x_BN, weight.shared)
        weight.add_own(out, x_BN)
        return
    assert isinstance(weight, Tensor)
    if weight.dtype == out.dtype:
        out.addmm_(x_BN, weight)
    else:
        out.add_(x_BN.to(weight.dtype) @ weight)


def weight_gradient(weight: Matrix, delta: Tensor, source: Tensor, precision: torch.dtype) -> Tensor:
    """Gradient of a layer's matrix, by which ``delta`` ``[T, B, N]`` stands behind ``source`` ``[T, B, M]``.

    One product ``[N, M]`` over all steps and rows of a window; of a :class:`RowMatrix` that of the cores,
    ``[B, R, Q]``; of an :class:`ObservedMatrix` the two factors, ``[T, B, N + M]``.
    """
    if isinstance(weight, RowMatrix):
        low_delta = (delta @ weight.left).permute(1, 2, 0)
        return torch.bmm(low_delta, (source @ weight.right.t()).transpose(0, 1))
    if isinstance(weight, ObservedMatrix):
        return torch.cat((delta, source), -1)
    delta, source = delta.flatten(0, -2), source.flatten(0, -2)
    if precision == delta.dtype:
        return delta.t() @ source
    return (delta.to(precision).t() @ source.to(precision)).to(delta.dtype)


def bias_gradient(bias: Tensor, delta: Tensor) -> Tensor:
    """Gradient of a layer's bias ``[N]``, or ``[B, N]`` where every row has its own, from ``[T, B, N]``."""
    return delta.sum(0) if bias.dim() == 2 else delta.sum((0, 1))
