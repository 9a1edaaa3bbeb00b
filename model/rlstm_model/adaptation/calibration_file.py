"""``adaptation.safetensors``: a checkpoint's gradient statistics, and as metadata the rules chosen for it.

=====================  ========  =====================================================================
tensor                 dtype     content
=====================  ========  =====================================================================
``rms.NAME``           e5m2      RMS of a weight's gradient: a scale needs its exponent and little more. That
                                 of biases, and what is too small for eight bits, is bfloat16
``core.NAME``          bfloat16  RMS of a matrix's gradient between its axes
``left.NAME``          float16   its axes U ``[.., N, R]``: orthonormal to three digits, which is enough
``right.NAME``         float16   its axes A^T ``[.., Q, M]``
``sparse.units``       int32     hidden units of each layer ``[L, U]``, those that learn most first
``sparse.rms``         bfloat16  RMS of the gradient of what they may add to each other ``[L, U, U]``
=====================  ========  =====================================================================

Reading is strict: whatever is missing, extra, misshaped or not finite is named. Nothing here can run code.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rlstm_model.adaptation.bases import SubspaceStatistics
from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.adaptation.sparse import SparseStatistics, check_units
from rlstm_model.adaptation.subspace import Basis
from rlstm_model.language_model import LanguageModel

FORMAT_VERSION: Final = 2
_METADATA: Final = "adaptation"
_DTYPES: Final = {
    "rms": torch.float8_e5m2,
    "core": torch.bfloat16,
    "left": torch.float16,
    "right": torch.float16,
}
# The least mean of what is stored in eight bits, whose least value is 1.5e-5.
_SMALL: Final = 2.0**-11
_UNITS: Final = {"sparse.units": torch.int32, "sparse.rms": torch.bfloat16}
_AXES: Final = ("core", "left", "right")
_STORED: Final = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E5M2": torch.float8_e5m2,
    "I32": torch.int32,
}


class CalibrationError(ValueError):
    """A calibration that is missing, damaged or of another model; the message names file and tensor."""


def rounded(statistics: GradientStatistics, model: LanguageModel) -> GradientStatistics:
    """Statistics of ``model`` as they are when they have been stored and read again."""
    layout = FullFastWeights(model)
    parts = layout.split(statistics.full_P)
    full = {name: _as_stored(f"rms.{name}", part) for name, part in parts.items()}
    subspace, sparse = statistics.subspace, statistics.sparse
    return GradientStatistics(
        full_P=layout.join(full),
        subspace=None if subspace is None else _rounded(subspace),
        sparse=None if sparse is None else replace(sparse, rms_LUU=_as_stored("sparse.rms", sparse.rms_LUU)),
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
    if statistics.sparse is not None:
        yield "sparse.units", statistics.sparse.units_LU
        yield "sparse.rms", statistics.sparse.rms_LUU


def _rounded(subspace: SubspaceStatistics) -> SubspaceStatistics:
    bases = {
        name: Basis(_as_stored(f"left.{name}", basis.left), _as_stored(f"right.{name}", basis.right))
        for name, basis in subspace.bases.items()
    }
    rms = {name: _as_stored(f"core.{name}", part) for name, part in subspace.rms.items()}
    return SubspaceStatistics(bases, rms)


def _dtype(name: str, tensor: Tensor) -> torch.dtype:
    """What a tensor is stored as."""
    if name in _UNITS:
        return _UNITS[name]
    small = name.startswith("rms.") and float(tensor.mean()) < _SMALL
    return torch.bfloat16 if small or name.endswith("bias") else _DTYPES[name.partition(".")[0]]


def _may_be(name: str) -> tuple[torch.dtype, ...]:
    """What a tensor may be stored as."""
    if name in _UNITS:
        return (_UNITS[name],)
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
    known |= {f"{part}.{name}" for name in with_axes for part in _AXES} | set(_UNITS)
    for name in sorted(names - known):
        raise ValueError(f"tensor {name} belongs to another model")
    like = model.embedding.input
    full_P = layout.join(rms)
    sparse = _units(stored, model) if names & set(_UNITS) else None
    if not with_axes:
        return GradientStatistics(full_P=full_P, sparse=sparse)
    bases, cores = {}, {}
    for name in with_axes:
        basis, core = _axes(stored, name, shapes[name])
        bases[name] = Basis(basis.left.to(like), basis.right.to(like))
        cores[name] = core.to(like)
    biases = {name: part.to(like) for name, part in rms.items() if name.endswith("bias")}
    subspace = SubspaceStatistics(bases, cores | biases)
    return GradientStatistics(full_P=full_P, subspace=subspace, sparse=sparse)


def _units(stored: Any, model: LanguageModel) -> SparseStatistics:
    units_LU = _read(stored, "sparse.units", None).to(model.embedding.input.device, torch.int64)
    try:
        check_units(units_LU, model)
    except ValueError as error:
        raise ValueError(f"tensor sparse.units: {error}") from error
    layers, units = units_LU.shape
    rms_LUU = _read(stored, "sparse.rms", torch.Size((layers, units, units)))
    return SparseStatistics(units_LU=units_LU, rms_LUU=rms_LUU.to(model.embedding.input))


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
