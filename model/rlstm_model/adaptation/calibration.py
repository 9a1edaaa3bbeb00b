"""Calibration: gradient statistics of a checkpoint on training text, and the rules chosen for it.

A checkpoint has statistics once and rules for several kinds and sizes of fast weights
(:class:`CalibrationSet`); a session learns by one of them (:class:`Calibration`). The rule:

    delta <- delta - eta g / (RMS + epsilon) - min(1, lambda RMS / mean(RMS)) * delta

(Krause et al. 2017; docs/adaptation.md §1.) ``sgd`` is the same without RMS; both terms use the old delta.
The kind ``subspace`` confines it to W + U C A^T and biases: U and A are the leading eigenvectors of
sum G G^T and sum G^T G over segment gradients G on training text (docs/adaptation.md §2); of C and the
biases only those elements that learn most are changed. Shape suffixes: P fast weights.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.native.packed import Axes, Rule, Space
from rlstm_model.scores import Floats

OUTPUT_BIAS = "embedding.bias"

# Axes are taken so many at a time.
_WIDTH = 16


class NotCalibrated(ValueError):
    """A kind or size of fast weights for which a checkpoint has no rule; the message names those it has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """One rule with its statistics.

    rms_P  root mean square of segment gradients, at least 0, in the order of the fast weights
    space  what the fast weights are
    """

    config: AdaptationConfig
    rms_P: Floats
    space: Space

    def rule(self, slow_norm: float) -> Rule:
        """One step, for a model whose weights have this norm. Raises ValueError for statistics of zero."""
        config = self.config
        greatest = config.max_norm_ratio * slow_norm
        if config.rule == "sgd":
            return Rule(None, min(1.0, config.decay), greatest)
        mean = float(self.rms_P.mean(dtype=np.float64))
        if not mean > 0:
            raise ValueError("the gradient statistics are all zero")
        precision_P = (1.0 / (self.rms_P + np.float32(config.epsilon * mean))).astype(np.float32)
        if not config.decay:
            return Rule(precision_P, 0.0, greatest)
        shrink_P = np.minimum(self.rms_P / np.float32(mean) * np.float32(config.decay), np.float32(1))
        return Rule(precision_P, shrink_P, greatest)

    @cached_property
    def idle(self) -> bool:
        """Whether no step can ever change anything."""
        return self.config.rate == 0 and self.config.decay == 0

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the config and the statistics; worked out once, for it reads them all."""
        digest = hashlib.sha256(json.dumps(self.config.to_json(), sort_keys=True).encode())
        digest.update(self.rms_P.astype("<f4").tobytes())
        for name, axes in self.space.axes.items():
            digest.update(name.encode())
            for side in axes:
                digest.update(np.ascontiguousarray(side, "<f4").tobytes())
        digest.update(json.dumps([*self.space.biases, np.dtype(self.space.dtype).name]).encode())
        if self.space.chosen_P is not None:
            digest.update(self.space.chosen_P.astype("<i8").tobytes())
        return digest.hexdigest()


NOT_KEPT: Final = np.empty(0, np.float32)
"""In place of statistics that no rule of a calibration needs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientStatistics:
    """What was measured of a model's gradients: enough for every kind of fast weights.

    rms    RMS of the gradients of all weights, by name, in the order of the model's parameters; that of a
           matrix with axes may be `NOT_KEPT`: the kind `full` alone needs it
    axes   of matrices, by name, leading first; empty where they were not measured
    cores  RMS between all axes, as large as a core
    """

    rms: Mapping[str, Floats]
    axes: Mapping[str, Axes]
    cores: Mapping[str, Floats]
    _orders: dict[int, NDArray[np.intp]] = field(default_factory=dict, init=False, repr=False)

    def calibration(self, config: AdaptationConfig) -> Calibration:
        """The statistics under a rule. Raises ValueError when they are not for that kind, or of its size."""
        if config.kind == "full":
            if any(part is NOT_KEPT for part in self.rms.values()):
                raise ValueError("what the kind full needs was not kept: calibrate with --kind full")
            rms_P = np.concatenate([part.ravel() for part in self.rms.values()]).astype(np.float32)
            return _sized(config, rms_P, Space({}, (), whole=True))
        if config.kind == "output_bias":
            return _sized(config, self.rms[OUTPUT_BIAS].ravel(), Space({}, (OUTPUT_BIAS,)))
        if not self.axes:
            raise ValueError(f"what the kind {config.kind} needs was not measured")
        rms_P, space = self._greatest(config.num_fast_weights, config.rank)
        return _sized(config, rms_P, space)

    def _greatest(self, count: int, rank: int) -> tuple[Floats, Space]:
        """The fast weights that learn most, and their RMS.

        First those of the embedding, the softmax and all biases: they pay most for their bytes, and bear
        rates at which cells lose their way. Among each the greatest RMS comes first: a step has the size of
        a gradient over its RMS, and what it gains is the product of the two. Of equals the first is taken.
        ``rank`` limits the axes of a side; 0 is all. Axes of which nothing is chosen take no part.
        """
        parts = self._elements(rank)
        flat = np.concatenate([part.ravel() for part in parts.values()])
        if not 1 <= count <= flat.size:
            raise ValueError(f"a subspace has 1 to {flat.size} fast weights, not {count}")
        if rank not in self._orders:
            of_a_cell = np.concatenate(
                [np.full(each.size, _is_of_a_cell(name)) for name, each in parts.items()]
            )
            self._orders[rank] = np.lexsort((-flat, of_a_cell))  # stable: of equals the first is taken
        chosen = np.zeros(flat.size, bool)
        chosen[self._orders[rank][:count]] = True
        ends = np.cumsum([part.size for part in parts.values()])[:-1]
        masks = {
            name: mask.reshape(part.shape)
            for (name, part), mask in zip(parts.items(), np.split(chosen, ends), strict=True)
            if mask.any()
        }
        matrices = {name: mask for name, mask in masks.items() if name in self.axes}
        extents = {name: _extent(mask) for name, mask in matrices.items()}
        axes = {name: _leading(self.axes[name], *extent) for name, extent in extents.items()}
        biases = [name for name in masks if name not in axes]
        cut = {name: _core(masks[name], extents.get(name)) for name in (*axes, *biases)}
        chosen_D = np.concatenate([mask.ravel() for mask in cut.values()])
        rms_P = np.concatenate([_core(parts[name], extents.get(name))[mask] for name, mask in cut.items()])
        places = None if chosen_D.all() else np.flatnonzero(chosen_D)
        return rms_P.astype(np.float32), Space(axes, tuple(biases), places, np.float16)

    def _elements(self, rank: int) -> dict[str, Floats]:
        """RMS of cores and biases in the order of the parameters, between ``rank`` axes at most."""
        named = {}
        for name, part in self.rms.items():
            if name in self.axes:
                core = self.cores[name]
                named[name] = core[..., :rank, :rank] if rank else core
            elif name.endswith("bias"):
                named[name] = part
        return named


def _sized(config: AdaptationConfig, rms_P: NDArray[Any], space: Space) -> Calibration:
    if len(rms_P) != config.num_fast_weights:
        raise ValueError(
            f"the model has {len(rms_P)} fast weights of that kind, not {config.num_fast_weights}"
        )
    return Calibration(config=config, rms_P=rms_P.astype(np.float32), space=space)


def _is_of_a_cell(name: str) -> bool:
    return name.startswith("stack.") and not name.endswith("bias")


def _leading(axes: Axes, rows: int, columns: int) -> Axes:
    return Axes(axes.left[..., :rows], axes.right[..., :columns, :])


def _core(part: NDArray[Any], extent: tuple[int, int] | None) -> NDArray[Any]:
    """What of a core lies between so many axes; a bias as it is."""
    return part if extent is None else part[..., : extent[0], : extent[1]]


def _extent(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """The leading rows and columns of ``[.., R, Q]`` within which all is that is true, in sixteens."""
    *_, rows, columns = np.nonzero(mask)
    ends = (_WIDTH * (int(places.max()) // _WIDTH + 1) for places in (rows, columns))
    row, column = (min(end, side) for end, side in zip(ends, mask.shape[-2:], strict=True))
    return row, column


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationSet:
    """All that a checkpoint knows about learning: its statistics, and a rule for each kind and size.

    choices      the rules, the default first; no two of one kind and size
    fingerprint  sha256 of the file it was read from
    """

    statistics: GradientStatistics
    choices: tuple[AdaptationConfig, ...]
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("a calibration has at least one rule")
        keys = [(choice.kind, choice.num_fast_weights) for choice in self.choices]
        if len(set(keys)) != len(keys):
            raise ValueError("two rules are of the same kind and size")

    @property
    def default(self) -> AdaptationConfig:
        """The rule that is used unless another is asked for."""
        return self.choices[0]

    def choose(self, kind: Kind | None = None, num_fast_weights: int | None = None) -> Calibration:
        """What :meth:`find` finds, with its statistics; the same object each time."""
        return self._calibrations[self.find(kind, num_fast_weights)]

    @cached_property
    def _calibrations(self) -> Mapping[AdaptationConfig, Calibration]:
        """Every rule with its statistics. Raises ValueError where they are not for one, or of its size."""
        return {choice: self.statistics.calibration(choice) for choice in self.choices}

    def check(self) -> None:
        """Raise ValueError where a rule cannot be followed with these statistics."""
        for choice, calibration in self._calibrations.items():
            if choice.rule == "rms" and not calibration.rms_P.any():
                raise ValueError(
                    f"the statistics of {choice.kind} of {choice.num_fast_weights:,} are all zero"
                )

    def find(self, kind: Kind | None = None, num_fast_weights: int | None = None) -> AdaptationConfig:
        """The first rule of that kind and size; None stands for any. Raises NotCalibrated."""
        for choice in self.choices:
            if kind in (None, choice.kind) and num_fast_weights in (None, choice.num_fast_weights):
                return choice
        there = ", ".join(f"{choice.kind} of {choice.num_fast_weights:,}" for choice in self.choices)
        raise NotCalibrated(
            f"there is no rule for {kind or 'any kind'} of {num_fast_weights or 'any size'}: {there}"
        )

    def including(self, config: AdaptationConfig, *, first: bool = False) -> "CalibrationSet":
        """With one more rule, in place of that of its kind and size; ``first`` makes it the default."""
        key = (config.kind, config.num_fast_weights)
        choices = [config if (c.kind, c.num_fast_weights) == key else c for c in self.choices]
        if config not in choices:
            choices.append(config)
        if first:
            choices.sort(key=lambda choice: choice != config)
        return replace(self, choices=tuple(choices), fingerprint="")
