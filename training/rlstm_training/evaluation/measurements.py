"""Gradient statistics on training text: what every rule of a checkpoint has in common."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlstm_model.adaptation.calibration import Calibration, CalibrationSet, GradientStatistics
from rlstm_model.adaptation.calibration_file import rounded
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.config import ModelConfig
from rlstm_model.native.packed import Axes
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.parameters import shapes
from rlstm_model.torch_backend.bases import GradientAxes, GradientSquares, collect, measure_rms
from rlstm_model.torch_backend.factors import segment_gradients
from rlstm_training.batches import Ids


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How gradient statistics are taken: ``heads`` read heads, each over ``segments`` segments.

    ``rank`` is how many axes a side of a matrix has at most, ``embedding_rank`` of the embedding and the
    softmax; with a rank of 0 only whole weights are measured.
    """

    heads: int = 16
    segments: int = 60
    rank: int = 0
    embedding_rank: int = 256


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """One point of the search: see :class:`rlstm_model.adaptation.config.AdaptationConfig`."""

    rate: float
    decay: float = 0.0
    epsilon: float = 0.1
    segment: int


@dataclass(frozen=True)
class Form:
    """A kind of fast weights and how many there are, of a subspace within so many axes; 0 stands for all."""

    kind: Kind = "full"
    num_fast_weights: int = 0
    rank: int = 0


FULL = Form()


Cores = Mapping[str, Sequence[int]]
"""The shape of each core between all axes, and of each bias, by weight name."""


def cores_of(config: ModelConfig, statistics: Statistics, known: GradientStatistics | None = None) -> Cores:
    """Those of statistics that are ``known``, or else as ``statistics`` will be taken.

    Raises ValueError when the known ones have no axes.
    """
    if known is not None:
        if not known.axes:
            raise ValueError("the statistics that are stored have no axes")
        return {
            name: known.cores[name].shape if name in known.axes else part.shape
            for name, part in known.rms.items()
        }
    cores = {}
    for name, shape in shapes(config).items():
        wide = name.startswith("embedding.") and statistics.rank > 0
        most = statistics.embedding_rank if wide else statistics.rank
        cores[name] = shape if name.endswith("bias") else _leading(shape, most)
    return cores


def most_fast_weights(cores: Cores, rank: int = 0, *, cells: bool = True) -> int:
    """How many elements all cores have together, and all biases.

    Of each side at most the leading ``rank`` axes; 0 is all of them. Without ``cells`` only the cores of the
    embedding and the softmax count.
    """
    total = 0
    for name, shape in cores.items():
        if name.endswith("bias"):
            total += math.prod(shape)
        elif cells or name.startswith("embedding."):
            total += math.prod(_leading(shape, rank) if rank else shape)
    return total


def _leading(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """The shape of a matrix, maybe with rounds in front, of ``most`` rows and columns at most."""
    *rounds, rows, columns = shape
    return (*rounds, min(rows, most), min(columns, most))


def read_heads(sources: Sequence[tuple[Ids, int]], heads: int, length: int) -> list[list[int]]:
    """``heads`` texts of up to ``length`` tokens, shared out over the sources by their rows.

    Within a source they begin at equal distances and run on over its end, as the rows of a batch do.
    """
    ends = list(accumulate(rows for _, rows in sources))
    owners = [bisect_right(ends, (head + 0.5) * ends[-1] / heads) for head in range(heads)]
    texts = []
    for index, (ids, _) in enumerate(sources):
        count = owners.count(index)
        for head in range(count):
            places = head * len(ids) // count + np.arange(min(length, len(ids)))
            texts.append([int(token) for token in ids[places % len(ids)]])
    return texts


class Measurements:
    """Statistics of one model: they belong to a segment length and are measured once for each.

    They are those of the loss alone, without dropout, L2 or clipping, at a temperature of 1, and rounded as
    they are stored.
    """

    def __init__(
        self,
        model: LanguageModel,
        sources: Sequence[tuple[Ids, int]],
        *,
        bos_id: int,
        statistics: Statistics,
        known: CalibrationSet | None = None,
    ) -> None:
        """``known`` are statistics that were measured before: they stand for their segment length."""
        self.model = model
        self.bos_id = bos_id
        self._sources = sources
        self._statistics = statistics
        self._known = None if known is None else known.statistics
        self._measured: dict[int, tuple[GradientStatistics, int]] = {}
        if known is not None:
            measured = (known.statistics, known.default.statistics_segments)
            self._measured[known.default.segment] = measured

    def of(self, segment: int) -> GradientStatistics:
        """The statistics for a segment length. Raises ValueError when no text fills one."""
        return self._of(segment)[0]

    def under(self, setting: Setting, form: Form = FULL) -> Calibration:
        """A rule with its statistics. Raises ValueError when no text fills its segment."""
        return self.of(setting.segment).calibration(self.config(setting, form))

    def config(self, setting: Setting, form: Form = FULL) -> AdaptationConfig:
        """A rule. Raises ValueError when no text fills its segment, or what is known has no axes for it."""
        return AdaptationConfig(
            kind=form.kind,
            num_fast_weights=form.num_fast_weights or self.size(form.kind),
            rank=form.rank,
            rule="rms",
            reduction="mean",
            statistics_batch=1,
            statistics_segments=self._of(setting.segment)[1],
            **asdict(setting),
        )

    def size(self, kind: Kind) -> int:
        """How many fast weights a kind has when it has all of them. Raises ValueError without axes."""
        if kind == "output_bias":
            return self.model.config.vocab_size
        if kind == "subspace":
            return most_fast_weights(cores_of(self.model.config, self._statistics, self._known))
        return sum(weight.numel() for weight in self.model.parameters())

    def _of(self, segment: int) -> tuple[GradientStatistics, int]:
        if segment not in self._measured:
            statistics, count = self._measure(segment)
            self._measured[segment] = (rounded(statistics), count)
        return self._measured[segment]

    def _measure(self, segment: int) -> tuple[GradientStatistics, int]:
        wanted = self._statistics
        texts = read_heads(self._sources, wanted.heads, wanted.segments * segment)
        if wanted.rank == 0:
            rms, count = measure_rms(self.model, texts, segment=segment, reduction="mean", bos_id=self.bos_id)
            return GradientStatistics(rms=_arrays(rms), axes={}, cores={}), count
        axes = GradientAxes(self.model, wanted.rank, embedding_rank=wanted.embedding_rank)
        full = GradientSquares(self.model)
        self._collect(texts, segment, axes, full)
        bases = axes.bases()
        cores = GradientSquares(self.model, bases)
        # Other text than the axes were fitted to: along the axes of a text its own gradients look too large.
        others = read_heads(self._sources, wanted.heads, 2 * wanted.segments * segment)
        count = self._collect([text[len(text) // 2 :] for text in others], segment, cores)
        between = _arrays(cores.rms())
        return GradientStatistics(
            rms=_arrays(full.rms()),
            axes={name: Axes(*(side.cpu().numpy() for side in basis)) for name, basis in bases.items()},
            cores={name: between[name] for name in bases},
        ), count

    def _collect(
        self, texts: Sequence[Sequence[int]], segment: int, *statistics: GradientAxes | GradientSquares
    ) -> int:
        gradients = segment_gradients(
            self.model, texts, segment=segment, reduction="mean", bos_id=self.bos_id
        )
        return collect(gradients, *statistics)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
