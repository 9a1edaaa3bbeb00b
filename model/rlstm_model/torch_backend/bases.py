"""Statistics of a checkpoint from which subspace fast weights are made: axes, and the RMS within them.

The axes of a matrix are the leading eigenvectors of sum G G^T and sum G^T G over the gradients G = D^T X of
single rows' segments (adaptation: §2): within them a diagonal preconditioner comes close to the curvature.
Axes are nested, leading first: the RMS of a smaller core is the leading block of a larger one's.
Shape suffixes: N, M sides of a matrix, R axes of one, P fast weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.torch_backend.factors import Factors, SegmentGradients
from rlstm_model.torch_backend.moments import EXACT_SIDE, Moment
from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

# Gradients are written out for as many rows at once as have this many elements together.
_ELEMENTS_AT_ONCE = 2**20


class Statistic(Protocol):
    """What is collected over segments."""

    def add(self, gradients: SegmentGradients) -> None:
        """Take in the gradients of one segment of each row."""


@dataclass(frozen=True, eq=False)
class SubspaceStatistics:
    """Axes of a model's matrices, and root mean squares of its gradients, by weight name.

    ``rms`` are those of the cores between all axes, as large as :attr:`Basis.core`, and of the biases.
    """

    bases: Mapping[str, Basis]
    rms: Mapping[str, Tensor]

    def within(self, rank: int) -> "SubspaceStatistics":
        """Those of the leading axes, at most ``rank`` a side; 0 is all."""
        if rank == 0:
            return self
        bases = {name: basis.leading(rank, rank) for name, basis in self.bases.items()}
        rms = {name: _leading(part, bases.get(name)) for name, part in self.rms.items()}
        return SubspaceStatistics(bases, rms)

    def greatest(self, model: LanguageModel, num_fast_weights: int) -> tuple[SubspaceFastWeights, Tensor]:
        """Fast weights that are the fast weights which learn most, and the RMS of their gradients, ``[P]``.

        First those of the embedding, the softmax and all biases: they pay most for their bytes, and bear
        rates at which cells lose their way. Among each the greatest RMS comes first: a step has the size of
        a gradient over its RMS, and what it gains is the product of the two. Of equals the first is taken.
        Axes and matrices of which nothing is chosen take no part. Raises ValueError unless there are so many.
        """
        masks = self._greatest(model, num_fast_weights)
        bases = {
            name: self.bases[name].leading(*_extent(mask))
            for name, mask in masks.items()
            if name in self.bases
        }
        order = [*bases, *(name for name in masks if name not in bases)]
        cut = {name: _leading(masks[name], bases.get(name)) for name in order}
        mask_D = torch.cat([mask.flatten() for mask in cut.values()])
        chosen_P = None if bool(mask_D.all()) else mask_D.nonzero().flatten()
        rms_P = torch.cat([_leading(self.rms[name], bases.get(name))[mask] for name, mask in cut.items()])
        return SubspaceFastWeights(model, bases, order[len(bases) :], chosen_P, torch.float16), rms_P

    def _greatest(self, model: LanguageModel, num_fast_weights: int) -> dict[str, Tensor]:
        """Which elements of the cores and biases are chosen, where any is; in the model's weight order."""
        parts = {name: self.rms[name] for name, _ in model.named_parameters() if name in self.rms}
        sizes = [part.numel() for part in parts.values()]
        if not 1 <= num_fast_weights <= sum(sizes):
            raise ValueError(f"a subspace has 1 to {sum(sizes)} fast weights, not {num_fast_weights}")
        of_a_cell_D = torch.cat(
            [torch.full((part.numel(),), _is_of_a_cell(name)) for name, part in parts.items()]
        )
        places_D = torch.cat([part.flatten().cpu() for part in parts.values()]).argsort(
            descending=True, stable=True
        )
        places_D = places_D[of_a_cell_D[places_D].int().argsort(stable=True)]
        chosen_D = torch.zeros_like(of_a_cell_D).index_fill_(0, places_D[:num_fast_weights], True)
        masks = torch.split(chosen_D.to(model.embedding.input.device), sizes)
        named = zip(parts.items(), masks, strict=True)
        return {name: mask.view(part.shape) for (name, part), mask in named if bool(mask.any())}


# Axes are taken so many at a time.
_WIDTH = 16


def _is_of_a_cell(name: str) -> bool:
    return name.startswith("stack.") and not name.endswith("bias")


def _leading(part: Tensor, basis: Basis | None) -> Tensor:
    """What of a core lies between the axes of a basis; a bias as it is."""
    return part if basis is None else part[..., : basis.core[-2], : basis.core[-1]]


def _extent(mask: Tensor) -> tuple[int, int]:
    """The leading rows and columns of ``[.., R, Q]`` within which all of it lies that is true.

    Both in sixteens, as far as there are any: in narrower products, and where a tile of rows leaves a
    remainder (see :func:`~rlstm_model.torch_backend.fast_weights.row_tile`), a row's last bits would depend on
    its place.
    """
    *_, row, column = mask.nonzero().amax(0).tolist()
    rows, columns = (_WIDTH * (place // _WIDTH + 1) for place in (row, column))
    return min(rows, mask.shape[-2]), min(columns, mask.shape[-1])


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
        self._like, self._shapes = model.embedding.input.detach(), _matrices(model)
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
        """See :class:`Statistic`."""
        for name, rounds in gradients.matrices.items():
            for (left, right), factors in zip(self._moments[name], rounds, strict=True):
                own = Factors(factors.left.double(), factors.right.double())
                left.add(own.left, own.right.gram())
                right.add(own.right, own.left.gram())

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
        shapes = {name: weight.shape for name, weight in model.named_parameters()}
        if bases is not None:
            subspace = SubspaceFastWeights(model, bases, [name for name in shapes if name.endswith("bias")])
            shapes = {name: torch.Size(shape) for name, shape in subspace.shapes.items()}
        self._sums = {name: self._like.new_zeros(shape).double() for name, shape in shapes.items()}

    def add(self, gradients: SegmentGradients) -> None:
        """See :class:`Statistic`."""
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


def collect(segments: Iterable[SegmentGradients], *statistics: Statistic) -> int:
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


def _matrices(model: LanguageModel) -> dict[str, torch.Size]:
    """The shapes of the matrices that have elements, by weight name."""
    named = model.named_parameters()
    return {n: weight.shape for n, weight in named if not n.endswith("bias") and weight.numel() > 0}


def _by_round(basis: Basis) -> list[Basis]:
    return [
        Basis(*each) for each in zip(*(side.reshape(-1, *side.shape[-2:]) for side in basis), strict=True)
    ]
