"""Calibration: gradient statistics of a checkpoint on training text, and the rules chosen for it.

``adaptation.safetensors`` holds the statistics, and as metadata the rules:

=====================  ========  =====================================================================
tensor                 dtype     content
=====================  ========  =====================================================================
``rms.NAME``           e5m2      RMS of a weight's gradient: a scale needs its exponent and little more. That
                                 of biases, and what is too small for eight bits, is bfloat16
``core.NAME``          bfloat16  RMS of a matrix's gradient between its axes
``left.NAME``          float16   its axes U ``[.., N, R]``: orthonormal to three digits, which is enough
``right.NAME``         float16   its axes A^T ``[.., Q, M]``
=====================  ========  =====================================================================

Reading is strict: whatever is missing, extra, misshaped or not finite is named. Nothing here can run code.

A checkpoint has statistics once and rules for several kinds and sizes of fast weights
(:class:`CalibrationSet`); a session learns by one of them (:class:`Calibration`).
Shape suffixes: P fast weights.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rlstm_model.adaptation.bases import SubspaceStatistics
from rlstm_model.adaptation.config import AdaptationConfig, Kind, Reduction
from rlstm_model.adaptation.fast_weights import FastWeights
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.adaptation.subspace import Basis, SubspaceFastWeights, tensor_bytes
from rlstm_model.language_model import LanguageModel

FORMAT_VERSION: Final = 3
_METADATA: Final = "adaptation"
_DTYPES: Final = {
    "rms": torch.float8_e5m2,
    "core": torch.bfloat16,
    "left": torch.float16,
    "right": torch.float16,
}
# The least mean of what is stored in eight bits, whose least value is 1.5e-5.
_SMALL: Final = 2.0**-11
_AXES: Final = ("core", "left", "right")
_STORED: Final = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E5M2": torch.float8_e5m2,
}
OUTPUT_BIAS: Final = "embedding.bias"


class NotCalibrated(ValueError):
    """A kind or size of fast weights for which a checkpoint has no rule; the message names those it has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """One rule with its statistics.

    rms_P  root mean square of segment gradients, at least 0, in the order of the fast weights
    space  the fast weights, but for their model; None stands for the kind "full"
    """

    config: AdaptationConfig
    rms_P: Tensor
    space: SubspaceFastWeights | None = None

    def fast_weights(self, model: LanguageModel) -> FastWeights:
        """The fast weights of ``model`` that these are statistics of. Raises ValueError for another model."""
        fast_weights = FullFastWeights(model) if self.space is None else replace(self.space, model=model)
        if not self.rms_P.shape == (fast_weights.size,) == (self.config.num_fast_weights,):
            raise ValueError(
                f"the calibration is of {self.config.num_fast_weights} weights and has {self.rms_P.numel()} "
                f"statistics, the model has {fast_weights.size}"
            )
        return fast_weights

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the config and the statistics; worked out once, for it reads them all."""
        digest = hashlib.sha256(json.dumps(self.config.to_json(), sort_keys=True).encode())
        digest.update(tensor_bytes(self.rms_P))
        if self.space is not None:
            digest.update(self.space.layout)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientStatistics:
    """What was measured of a model's gradients: enough for every kind of fast weights.

    full_P    RMS of all weights, in the model's weight order
    subspace  axes, and the RMS between them; None where they were not measured. Biases have no axes: their
              RMS are those in full_P, which alone are stored
    """

    full_P: Tensor
    subspace: SubspaceStatistics | None = None

    def calibration(self, model: LanguageModel, config: AdaptationConfig) -> Calibration:
        """The statistics under a rule. Raises ValueError when they are not for that kind, or of its size."""
        if config.kind == "full":
            return Calibration(config=config, rms_P=self.full_P)
        if config.kind == "output_bias":
            space = SubspaceFastWeights(model, {}, [OUTPUT_BIAS])
            bias = FullFastWeights(model).split(self.full_P)[OUTPUT_BIAS]
            return Calibration(config=config, rms_P=bias, space=space)
        if self.subspace is None:
            raise ValueError("what the kind subspace needs was not measured")
        measured = self.subspace.within(config.rank)
        chosen, rms_P = measured.greatest(model, config.num_fast_weights)
        return Calibration(config=config, rms_P=rms_P, space=chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationSet:
    """All that a checkpoint knows about learning: its statistics, and a rule for each kind and size.

    choices      the rules, the default first; no two of one kind and size
    fingerprint  sha256 of the file it was read from
    """

    model: LanguageModel
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
        """What :meth:`find` finds, with its statistics."""
        return self.statistics.calibration(self.model, self.find(kind, num_fast_weights))

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


def measure_rms(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    reduction: Reduction,
    bos_id: int,
    fast_weights: FastWeights | None = None,
) -> tuple[Tensor, int]:
    """RMS over the gradients of single segments at the slow weights, ``[P]``, and how many there were.

    They are those of all weights, or of other ``fast_weights`` of the model.

    Each text is read from its beginning with carried state, as a session would be; its last tokens that
    fill no segment are left. Raises ValueError when no text fills one.
    """
    fast_weights = FullFastWeights(model) if fast_weights is None else fast_weights
    squares_P = fast_weights.zero(1)[0].double()
    weights_S1 = model.embedding.input.new_full((segment, 1), 1 / segment if reduction == "mean" else 1.0)
    count = 0
    for ids in texts:
        state, last = model.initial_state(1), bos_id
        for start in range(0, len(ids) - segment + 1, segment):
            read = torch.tensor([last, *ids[start : start + segment]], device=weights_S1.device)[:, None]
            done = fast_weights.learn(None, read[:-1], read[1:], weights_S1, state)
            gradient_P = done.gradient_NP[0].double()
            squares_P.addcmul_(gradient_P, gradient_P)
            state, last, count = done.state, int(read[-1]), count + 1
    if count == 0:
        raise ValueError(f"no text fills a segment of {segment} tokens")
    return (squares_P / count).sqrt().to(model.embedding.input), count


class CalibrationError(ValueError):
    """A calibration that is missing, damaged or of another model; the message names file and tensor."""


def rounded(statistics: GradientStatistics, model: LanguageModel) -> GradientStatistics:
    """Statistics of ``model`` as they are when they have been stored and read again."""
    layout = FullFastWeights(model)
    parts = layout.split(statistics.full_P)
    full = {name: _as_stored(f"rms.{name}", part) for name, part in parts.items()}
    subspace = statistics.subspace
    return GradientStatistics(
        full_P=layout.join(full),
        subspace=None if subspace is None else _rounded(subspace),
    )


def save_calibration(path: Path, calibrated: CalibrationSet) -> None:
    """Write the file: a reader of ``path`` never sees half of it."""
    model = calibrated.model
    tensors = {
        name: tensor.to("cpu", _dtype(name, tensor)).contiguous()
        for name, tensor in _named(calibrated.statistics, FullFastWeights(model))
    }
    rules = {"format_version": FORMAT_VERSION, "rules": [choice.to_json() for choice in calibrated.choices]}
    beside = path.with_name(path.name + ".partial")
    # Not save_file, which would make a file that its owner alone can read.
    beside.write_bytes(save(tensors, metadata={_METADATA: json.dumps(rules)}))
    beside.replace(path)


def load_calibration(path: Path, model: LanguageModel) -> CalibrationSet:
    """The calibration of ``model`` in a file. Raises CalibrationError."""
    try:
        fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
        with safe_open(path, framework="pt") as stored:
            choices = _rules(stored.metadata() or {})
            statistics = _statistics(stored, model)
        calibrated = CalibrationSet(
            model=model, statistics=statistics, choices=choices, fingerprint=fingerprint
        )
        for choice in choices:
            _check_rule(calibrated, choice)
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{path}: missing, damaged or no safetensors file ({error})") from error
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path}: {error}") from error
    return calibrated


def _named(statistics: GradientStatistics, layout: FullFastWeights) -> Iterator[tuple[str, Tensor]]:
    for name, part in layout.split(statistics.full_P).items():
        yield f"rms.{name}", part
    if statistics.subspace is not None:
        for name, basis in statistics.subspace.bases.items():
            yield f"left.{name}", basis.left
            yield f"right.{name}", basis.right
            yield f"core.{name}", statistics.subspace.rms[name]


def _rounded(subspace: SubspaceStatistics) -> SubspaceStatistics:
    bases = {
        name: Basis(_as_stored(f"left.{name}", basis.left), _as_stored(f"right.{name}", basis.right))
        for name, basis in subspace.bases.items()
    }
    rms = {name: _as_stored(f"core.{name}", part) for name, part in subspace.rms.items()}
    return SubspaceStatistics(bases, rms)


def _dtype(name: str, tensor: Tensor) -> torch.dtype:
    """What a tensor is stored as."""
    small = name.startswith("rms.") and float(tensor.mean()) < _SMALL
    return torch.bfloat16 if small or name.endswith("bias") else _DTYPES[name.partition(".")[0]]


def _may_be(name: str) -> tuple[torch.dtype, ...]:
    """What a tensor may be stored as."""
    dtype = _DTYPES[name.partition(".")[0]]
    return (dtype, torch.bfloat16) if name.startswith("rms.") else (dtype,)


def _as_stored(name: str, tensor: Tensor) -> Tensor:
    return tensor.to(_dtype(name, tensor)).to(tensor.dtype)


def _rules(metadata: Mapping[str, str]) -> tuple[AdaptationConfig, ...]:
    if _METADATA not in metadata:
        raise ValueError("has no rules in its metadata")
    data = json.loads(metadata[_METADATA])
    if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"is not of format {FORMAT_VERSION}: calibrate the model again")
    if not isinstance(data.get("rules"), list) or set(data) != {"format_version", "rules"}:
        raise ValueError("its metadata must hold a list of rules, and nothing else")
    return tuple(AdaptationConfig.from_json(rule) for rule in data["rules"])


def _check_rule(calibrated: CalibrationSet, choice: AdaptationConfig) -> None:
    calibration = calibrated.statistics.calibration(calibrated.model, choice)
    calibration.fast_weights(calibrated.model)
    if choice.rule == "rms" and not bool(calibration.rms_P.any()):
        raise ValueError(f"the statistics of {choice.kind} of {choice.num_fast_weights:,} are all zero")


def _statistics(stored: Any, model: LanguageModel) -> GradientStatistics:
    """The tensors of an open file, all of which must be statistics of the model's weights."""
    layout = FullFastWeights(model)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    names = set(stored.keys())
    rms = {name: _read(stored, f"rms.{name}", shapes[name]) for name in layout.names}
    with_axes = [name for name in layout.names if any(f"{part}.{name}" in names for part in _AXES)]
    known = {f"rms.{name}" for name in rms}
    known |= {f"{part}.{name}" for name in with_axes for part in _AXES}
    for name in sorted(names - known):
        raise ValueError(f"tensor {name} belongs to another model")
    like = model.embedding.input
    full_P = layout.join(rms)
    if not with_axes:
        return GradientStatistics(full_P=full_P)
    bases, cores = {}, {}
    for name in with_axes:
        basis, core = _axes(stored, name, shapes[name])
        bases[name] = Basis(basis.left.to(like), basis.right.to(like))
        cores[name] = core.to(like)
    biases = {name: part.to(like) for name, part in rms.items() if name.endswith("bias")}
    subspace = SubspaceStatistics(bases, cores | biases)
    return GradientStatistics(full_P=full_P, subspace=subspace)


def _axes(stored: Any, name: str, shape: torch.Size) -> tuple[Basis, Tensor]:
    if len(shape) < 2:
        raise ValueError(f"tensors of the axes of {name} are of no matrix")
    *rounds, rows, columns = shape
    core = _read(stored, f"core.{name}", None)
    if core.dim() != len(shape) or list(core.shape[:-2]) != rounds or 0 in core.shape:
        raise ValueError(
            f"tensor core.{name} has shape {list(core.shape)}, which is no core of {list(shape)}"
        )
    left = _read(stored, f"left.{name}", torch.Size((*rounds, rows, core.shape[-2])))
    right = _read(stored, f"right.{name}", torch.Size((*rounds, core.shape[-1], columns)))
    return Basis(left, right), core


def _read(stored: Any, name: str, shape: torch.Size | None) -> Tensor:
    """One tensor: there, of its shape and dtype, finite, and not negative where it is an RMS."""
    if name not in stored.keys():  # noqa: SIM118 - a safetensors file is no mapping
        raise ValueError(f"tensor {name} is missing")
    header, part = stored.get_slice(name), name.partition(".")[0]
    if shape is not None and header.get_shape() != list(shape):
        raise ValueError(f"tensor {name} has shape {header.get_shape()}, not {list(shape)}")
    if _STORED.get(header.get_dtype()) not in _may_be(name):
        raise ValueError(f"tensor {name} has dtype {header.get_dtype()}, not {_may_be(name)[0]}")
    tensor: Tensor = stored.get_tensor(name)
    if tensor.dtype is torch.float8_e5m2:
        tensor = tensor.to(torch.bfloat16)  # the same values, in a dtype that can be computed with
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"tensor {name} holds a value that is not finite")
    if part not in ("left", "right") and not bool((tensor >= 0).all()):
        raise ValueError(f"tensor {name} holds a value that is negative")
    return tensor
