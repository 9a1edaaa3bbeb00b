"""Second moments of one side of a matrix's gradients, and their leading eigenvectors.

For gradients G = D^T X the sum of G G^T is one of D^T (X X^T) D, which needs no G. A sum too large to be
kept is met only as its product with a fixed random matrix; its leading eigenvectors follow from that
(Nystrom's approximation: Halko, Martinsson & Tropp 2011, §5.4; of a stream: Tropp et al. 2017).
Shape suffixes: N the side, K columns that are kept, R axes, T factor rows, B batch rows.
"""

import math

import torch
from torch import Tensor

from rlstm_model.torch_backend.factors import Factor

# The longest side whose sum is kept whole, in double precision: 128 MiB.
EXACT_SIDE = 4096

# A sketch has twice as many random directions as axes, and these.
_OVERSAMPLING = 8


class Moment:
    """The sum of D^T (X X^T) D, ``[N, N]``; or, where N is large, its product with a random matrix."""

    def __init__(
        self, side: int, max_rank: int, exact_side: int, generator: torch.Generator, device: torch.device
    ) -> None:
        self._rank = min(side, max_rank)
        self._probe_NK: Tensor | None = None
        width = 2 * self._rank + _OVERSAMPLING
        if side > max(exact_side, width):
            random_NK = torch.randn(side, width, generator=generator, dtype=torch.double)
            self._probe_NK = torch.linalg.qr(random_NK)[0].to(device)
        columns = side if self._probe_NK is None else width
        self._total_NK = torch.zeros(side, columns, dtype=torch.double, device=device)

    def add(self, factor: Factor, other_BTT: Tensor) -> None:
        """Take in D, and the Gram matrix X X^T of its counterpart."""
        probed_BTK = factor.whole() if self._probe_NK is None else factor.times(self._probe_NK)
        factor.add_transposed_times(torch.bmm(other_BTT, probed_BTK), self._total_NK)

    def axes(self) -> Tensor:
        """The leading eigenvectors ``[N, R]``, the largest entry of each positive."""
        if self._probe_NK is None:
            axes = torch.linalg.eigh((self._total_NK + self._total_NK.mT) / 2).eigenvectors.flip(-1)
        else:
            axes = _nystrom_axes(self._total_NK, self._probe_NK)
        axes_NR: Tensor = axes[:, : self._rank]
        largest = axes_NR.gather(0, axes_NR.abs().argmax(0, keepdim=True))
        return torch.where(largest < 0, -axes_NR, axes_NR)


def _nystrom_axes(product_NK: Tensor, probe_NK: Tensor) -> Tensor:
    """Eigenvectors of P (Omega^T P)^+ P^T, leading first, where P is a sum's product with Omega."""
    core = probe_NK.mT @ product_NK
    values, vectors = torch.linalg.eigh((core + core.mT) / 2)
    least = len(values) * torch.finfo(values.dtype).eps * values[-1]
    roots = torch.where(values > least, values, math.inf).rsqrt()
    axes_NK: Tensor = torch.linalg.svd(product_NK @ (vectors * roots), full_matrices=False).U
    return axes_NK
