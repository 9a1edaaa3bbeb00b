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

from rlstm_model.adaptation.config import Reduction
from rlstm_model.adaptation.factors import Factors, SegmentGradients, segment_gradients
from rlstm_model.adaptation.moments import EXACT_SIDE, Moment
from rlstm_model.adaptation.subspace import Basis, SubspaceFastWeights
from rlstm_model.language_model import LanguageModel

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

    def fast_weights(
        self, model: LanguageModel, ranks: Mapping[str, tuple[int, int]], biases: Sequence[str]
    ) -> tuple[SubspaceFastWeights, Tensor]:
        """Fast weights in the leading axes, and the RMS of their gradients, ``[P]``.

        ``ranks`` gives for each matrix that takes part the axes of its left and of its right side; a side
        that is shorter gives all it has. Raises ValueError for axes that are not here.
        """
        bases = {name: self._leading(name, *wanted) for name, wanted in ranks.items()}
        subspace = SubspaceFastWeights(model, bases, biases)
        rms = [self.rms[name][..., : basis.core[-2], : basis.core[-1]] for name, basis in bases.items()]
        rms += [self.rms[name] for name in biases]
        empty = model.embedding.input.new_empty(0)
        return subspace, torch.cat([empty, *(part.flatten() for part in rms)])

    def _leading(self, name: str, rows: int, columns: int) -> Basis:
        if name not in self.bases:
            raise ValueError(f"there are no axes of {name}")
        basis = self.bases[name]
        (*_, side, here), (across, length) = basis.left.shape, basis.right.shape[-2:]
        for wanted, given, of in ((rows, here, side), (columns, across, length)):
            if not 1 <= min(wanted, of) <= given:
                raise ValueError(f"a side of {name} has {given} axes, not {wanted}")
        return basis.leading(rows, columns)


class GradientAxes:
    """The leading axes of every matrix's gradients.

    Sides longer than ``exact_side`` are sketched, with twice as many random directions as axes: of gradients
    whose rank exceeds that, the axes are approximate. Random directions are the same in every run.
    """

    def __init__(self, model: LanguageModel, max_rank: int, *, exact_side: int = EXACT_SIDE) -> None:
        """At most ``max_rank`` axes a side. Raises ValueError when that is below 1."""
        if max_rank < 1:
            raise ValueError(f"max_rank must be at least 1, not {max_rank}")
        self._like, self._shapes = model.embedding.input.detach(), _matrices(model)
        generator, device = torch.Generator().manual_seed(0), model.embedding.input.device
        self._moments = {
            name: [
                [Moment(side, max_rank, exact_side, generator, device) for side in shape[-2:]]
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


def measure_bases(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    max_rank: int,
    bos_id: int,
    rows: int = 32,
    exact_side: int = EXACT_SIDE,
) -> dict[str, Basis]:
    """The leading axes of all matrices, at most ``max_rank`` a side.

    Texts are read as :func:`~rlstm_model.adaptation.factors.segment_gradients` does; see there and
    :class:`GradientAxes` for the rest, and for what is raised. ValueError when no text fills a segment.
    """
    axes = GradientAxes(model, max_rank, exact_side=exact_side)
    # The axes of sums are those of means.
    read = segment_gradients(model, texts, segment=segment, reduction="mean", bos_id=bos_id, rows=rows)
    collect(read, axes)
    return axes.bases()


def measure_core_rms(
    model: LanguageModel,
    bases: Mapping[str, Basis],
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    reduction: Reduction,
    bos_id: int,
    rows: int = 32,
) -> dict[str, Tensor]:
    """RMS over the gradients of single rows' segments: of cores between ``bases``, and of all biases.

    At the slow weights, on texts other than the bases'. Raises as :func:`measure_bases` does.
    """
    squares = GradientSquares(model, bases)
    collect(
        segment_gradients(model, texts, segment=segment, reduction=reduction, bos_id=bos_id, rows=rows),
        squares,
    )
    return squares.rms()


def measure_full_rms(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    reduction: Reduction,
    bos_id: int,
    rows: int = 32,
) -> tuple[Tensor, int]:
    """What :func:`~rlstm_model.adaptation.calibration.measure_rms` gives, many rows at a time."""
    squares = GradientSquares(model)
    count = collect(
        segment_gradients(model, texts, segment=segment, reduction=reduction, bos_id=bos_id, rows=rows),
        squares,
    )
    return torch.cat([part.flatten() for part in squares.rms().values()]), count


def _matrices(model: LanguageModel) -> dict[str, torch.Size]:
    """The shapes of the matrices that have elements, by weight name."""
    named = model.named_parameters()
    return {n: weight.shape for n, weight in named if not n.endswith("bias") and weight.numel() > 0}


def _by_round(basis: Basis) -> list[Basis]:
    return [
        Basis(*each) for each in zip(*(side.reshape(-1, *side.shape[-2:]) for side in basis), strict=True)
    ]
