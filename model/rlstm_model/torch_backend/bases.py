"""Statistics of a checkpoint from which subspace fast weights are made: axes, and the RMS within them.

The axes of a matrix are the leading eigenvectors of sum G G^T and sum G^T G over the gradients G = D^T X of
single rows' segments (docs/adaptation.md §2): within them a diagonal preconditioner comes close to the
curvature. Axes are nested, leading first: the RMS of a smaller core is the leading block of a larger one's.
Their sum is one of D^T (X X^T) D, which needs no G. A sum too large to be kept is met only as its product
with a fixed random matrix; its leading eigenvectors follow from that (Nystrom's approximation: Halko,
Martinsson & Tropp 2011, §5.4; of a stream: Tropp et al. 2017).
Shape suffixes: N, M sides of a matrix, K columns of a sum that are kept, R axes, T factor rows, B batch rows,
P fast weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from rlstm_model.adaptation.config import Reduction
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.torch_backend.factors import Factors, SegmentGradients
from rlstm_model.torch_backend.fast_weights import FullFastWeights
from rlstm_model.torch_backend.subspace import Basis

# Gradients are written out for as many rows at once as have this many elements together.
_ELEMENTS_AT_ONCE = 2**20


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

    def add(self, factor_BTN: Tensor, other_BTM: Tensor) -> None:
        """Take in D and its counterpart X."""
        probed_BTK = factor_BTN if self._probe_NK is None else factor_BTN @ self._probe_NK
        values_BTK = torch.bmm(other_BTM @ other_BTM.mT, probed_BTK)
        self._total_NK.addmm_(factor_BTN.flatten(0, 1).t(), values_BTK.flatten(0, 1))

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


class GradientAxes:
    """The leading axes of every matrix's gradients.

    Sides longer than ``exact_side`` are sketched, with twice as many random directions as axes: of gradients
    whose rank exceeds that, the axes are approximate. Random directions are the same in every run.
    """

    def __init__(
        self,
        model: LanguageModel,
        max_rank: int,
        *,
        embedding_rank: int | None = None,
        exact_side: int = EXACT_SIDE,
    ) -> None:
        """At most ``max_rank`` axes a side, or ``embedding_rank`` of the embedding and the softmax.

        Raises ValueError when that is below 1.
        """
        ranks = (max_rank, max_rank if embedding_rank is None else embedding_rank)
        for name, rank in zip(("max_rank", "embedding_rank"), ranks, strict=True):
            if rank < 1:
                raise ValueError(f"{name} must be at least 1, not {rank}")
        self._like = model.embedding.input.detach()
        self._shapes = {
            n: w.shape for n, w in model.named_parameters() if not n.endswith("bias") and w.numel() > 0
        }
        generator, device = torch.Generator().manual_seed(0), model.embedding.input.device
        self._moments = {
            name: [
                [
                    Moment(side, ranks[name.startswith("embedding.")], exact_side, generator, device)
                    for side in shape[-2:]
                ]
                for _ in range(math.prod(shape[:-2]))
            ]
            for name, shape in self._shapes.items()
        }

    def add(self, gradients: SegmentGradients) -> None:
        """Take in the gradients of one segment of each row."""
        for name, rounds in gradients.matrices.items():
            for (left, right), factors in zip(self._moments[name], rounds, strict=True):
                own_left, own_right = factors.left.double(), factors.right.double()
                left.add(own_left, own_right)
                right.add(own_right, own_left)

    def bases(self) -> dict[str, Basis]:
        """The axes, in the model's precision."""
        return {name: self._basis(self._shapes[name], each) for name, each in self._moments.items()}

    def _basis(self, shape: torch.Size, moments: Sequence[Sequence[Moment]]) -> Basis:
        left, right = (torch.stack([each.axes() for each in side]) for side in zip(*moments, strict=True))
        left, right = left.to(self._like), right.mT.to(self._like).contiguous()
        return Basis(*(side.reshape(*shape[:-2], *side.shape[-2:]) for side in (left, right)))


class GradientSquares:
    """Mean squares of gradients: of cores between bases and all biases, or of all weights."""

    def __init__(self, model: LanguageModel, bases: Mapping[str, Basis] | None = None) -> None:
        """Without ``bases``: of all weights, whole."""
        self._bases = bases
        self._like = model.embedding.input.detach()
        self._count = 0
        shapes: dict[str, Sequence[int]] = {name: weight.shape for name, weight in model.named_parameters()}
        if bases is not None:
            biases = {name: shape for name, shape in shapes.items() if name.endswith("bias")}
            shapes = {name: basis.core for name, basis in bases.items()} | biases
        self._sums = {name: self._like.new_zeros(shape).double() for name, shape in shapes.items()}

    def add(self, gradients: SegmentGradients) -> None:
        """Take in the gradients of one segment of each row."""
        self._count += gradients.batch
        for name, bias in gradients.biases.items():
            self._sums[name] += bias.double().square_().sum(0)
        for name, rounds in gradients.matrices.items():
            if self._bases is None:
                self._add(name, rounds, [None] * len(rounds))
            elif name in self._bases:
                self._add(name, rounds, _by_round(self._bases[name]))

    def rms(self) -> dict[str, Tensor]:
        """The square roots of the means, in the model's precision; nothing but NaN before any gradient."""
        return {name: (total / self._count).sqrt_().to(self._like) for name, total in self._sums.items()}

    def _add(self, name: str, rounds: Sequence[Factors], bases: Sequence[Basis | None]) -> None:
        total = self._sums[name]
        for own, factors, basis in zip(total.view(-1, *total.shape[-2:]), rounds, bases, strict=True):
            at_once = max(1, _ELEMENTS_AT_ONCE // own.numel())
            for start in range(0, factors.batch, at_once):
                some = factors.rows(slice(start, start + at_once))
                values = some.gradients() if basis is None else some.between(*basis)
                own += values.square_().sum(0)


def collect(segments: Iterable[SegmentGradients], *statistics: GradientAxes | GradientSquares) -> int:
    """Show gradients to several statistics. Returns how many there were: segments, one for each row.

    Raises ValueError when there were none.
    """
    count = 0
    for gradients in segments:
        for statistic in statistics:
            statistic.add(gradients)
        count += gradients.batch
    if count == 0:
        raise ValueError("no text fills a segment")
    return count


def measure_rms(
    model: LanguageModel, texts: Sequence[Sequence[int]], *, segment: int, reduction: Reduction, bos_id: int
) -> tuple[dict[str, Tensor], int]:
    """RMS of single segments' gradients by weight name, and how many there were, of any model.

    Each text is read from its beginning with carried state, as a session would be; its last tokens that
    fill no segment are left. Raises ValueError when no text fills one.
    """
    full, named, count = FullFastWeights(model), dict(model.named_parameters()), 0
    squares_P = model.embedding.input.new_zeros(full.size).double()
    weights_S1 = model.embedding.input.new_full((segment, 1), 1 / segment if reduction == "mean" else 1.0)
    for ids in texts:
        state, last = model.initial_state(1), bos_id
        for start in range(0, len(ids) - segment + 1, segment):
            read = torch.tensor([last, *ids[start : start + segment]], device=weights_S1.device)[:, None]
            done = full.learn(None, read[:-1], read[1:], weights_S1, state)
            squares_P += done.gradient_NP[0].double().square_()
            state, last, count = done.state, int(read[-1]), count + 1
    if count == 0:
        raise ValueError(f"no text fills a segment of {segment} tokens")
    rms_P = (squares_P / count).sqrt_().to(model.embedding.input)
    parts = torch.split(rms_P, [weight.numel() for weight in named.values()])
    return {name: part.view_as(named[name]) for name, part in zip(named, parts, strict=True)}, count


def _by_round(basis: Basis) -> list[Basis]:
    return [
        Basis(*each) for each in zip(*(side.reshape(-1, *side.shape[-2:]) for side in basis), strict=True)
    ]
