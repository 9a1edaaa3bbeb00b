"""``adaptation.safetensors``: a checkpoint's gradient statistics, and as metadata the rules chosen for it.

=====================  ========  =====================================================================
array                  dtype     content
=====================  ========  =====================================================================
``rms.NAME``           e5m2      RMS of a weight's gradient: a scale needs its exponent and little more. That
                                 of biases, and what is too small for eight bits, is bfloat16. That of a
                                 matrix with axes is there where a rule is of the kind `full`
``core.NAME``          bfloat16  RMS of a matrix's gradient between its axes
``left.NAME``          float16   its axes U ``[.., N, R]``: orthonormal to three digits, which is enough
``right.NAME``         float16   its axes A^T ``[.., Q, M]``
=====================  ========  =====================================================================

Reading is strict: whatever is missing, extra, misshaped or not finite is named. Nothing here can run code.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from rlstm_model import stored
from rlstm_model.adaptation.calibration import NOT_KEPT, CalibrationSet, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.files import replace_file
from rlstm_model.native.packed import Axes
from rlstm_model.parameters import shapes
from rlstm_model.scores import Floats

FORMAT_VERSION: Final = 3
_METADATA: Final = "adaptation"
_DTYPES: Final = {"rms": "F8_E5M2", "core": "BF16", "left": "F16", "right": "F16"}
_AXES: Final = ("core", "left", "right")
# The least mean of what is stored in eight bits, whose least value is 1.5e-5.
_SMALL: Final = 2.0**-11


class CalibrationError(ValueError):
    """A calibration that is missing, damaged or of another model; the message names file and array."""


def rounded(statistics: GradientStatistics) -> GradientStatistics:
    """Statistics as they are when they have been stored and read again."""
    arrays = {name: stored.rounded(array, _dtype(name, array)) for name, array in _named(statistics)}
    return _grouped(arrays, [*statistics.rms], [*statistics.axes])


def save_calibration(path: Path, calibrated: CalibrationSet) -> None:
    """Write the file: whoever reads it never sees half of one. Raises OSError; the old file is unharmed."""
    arrays, axes = dict(_named(calibrated.statistics)), calibrated.statistics.axes
    if all(choice.kind != "full" for choice in calibrated.choices):
        arrays = {name: array for name, array in arrays.items() if name.removeprefix("rms.") not in axes}
    rules = {"format_version": FORMAT_VERSION, "rules": [choice.to_json() for choice in calibrated.choices]}
    dtypes = {name: _dtype(name, array) for name, array in arrays.items()}
    replace_file(path, stored.write(arrays, dtypes, {_METADATA: json.dumps(rules)}))


def load_calibration(path: Path, config: ModelConfig) -> CalibrationSet:
    """The calibration of a model in a file. Raises CalibrationError."""
    try:
        data = path.read_bytes()
        held = stored.read(data)
        choices = _rules(held.metadata)
        calibrated = CalibrationSet(
            statistics=_statistics(held, config, whole=any(choice.kind == "full" for choice in choices)),
            choices=choices,
            fingerprint=hashlib.sha256(data).hexdigest(),
        )
        calibrated.check()
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{path}: missing, damaged or no safetensors file ({error})") from error
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path}: {error}") from error
    return calibrated


def _named(statistics: GradientStatistics) -> Iterator[tuple[str, Floats]]:
    for name, part in statistics.rms.items():
        if part is not NOT_KEPT:
            yield f"rms.{name}", part
    for name, axes in statistics.axes.items():
        yield f"left.{name}", axes.left
        yield f"right.{name}", axes.right
        yield f"core.{name}", statistics.cores[name]


def _grouped(
    arrays: Mapping[str, NDArray[Any]], names: list[str], with_axes: list[str]
) -> GradientStatistics:
    def wide(name: str) -> Floats:
        return np.asarray(arrays[name], np.float32) if name in arrays else NOT_KEPT

    return GradientStatistics(
        rms={name: wide(f"rms.{name}") for name in names},
        axes={name: Axes(wide(f"left.{name}"), wide(f"right.{name}")) for name in with_axes},
        cores={name: wide(f"core.{name}") for name in with_axes},
    )


def _dtype(name: str, array: Floats) -> str:
    """What an array is stored as."""
    small = name.startswith("rms.") and array.size > 0 and float(array.mean(dtype=np.float64)) < _SMALL
    return "BF16" if small or name.endswith("bias") else _DTYPES[name.partition(".")[0]]


def _rules(metadata: Mapping[str, str]) -> tuple[AdaptationConfig, ...]:
    if _METADATA not in metadata:
        raise ValueError("has no rules in its metadata")
    data = json.loads(metadata[_METADATA])
    if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"is not of format {FORMAT_VERSION}: calibrate the model again")
    if not isinstance(data.get("rules"), list) or set(data) != {"format_version", "rules"}:
        raise ValueError("its metadata must hold a list of rules, and nothing else")
    return tuple(AdaptationConfig.from_json(rule) for rule in data["rules"])


def _statistics(held: stored.Stored, config: ModelConfig, *, whole: bool) -> GradientStatistics:
    """The arrays of a file, all of which must be statistics of the model's weights, of all where `whole`."""
    expected = shapes(config)
    names = set(held.arrays)
    with_axes = [name for name in expected if any(f"{part}.{name}" in names for part in _AXES)]
    for name, shape in expected.items():
        if whole or name not in with_axes or f"rms.{name}" in names:
            _check(held, f"rms.{name}", shape)
    known = {f"rms.{name}" for name in expected}
    known |= {f"{part}.{name}" for name in with_axes for part in _AXES}
    for name in sorted(names - known):
        raise ValueError(f"tensor {name} belongs to another model")
    for name in with_axes:
        _check_axes(held, name, expected[name])
    return _grouped(held.arrays, [*expected], with_axes)


def _check_axes(held: stored.Stored, name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        raise ValueError(f"tensors of the axes of {name} are of no matrix")
    *rounds, rows, columns = shape
    _check(held, f"core.{name}", None)
    core = held.arrays[f"core.{name}"].shape
    if len(core) != len(shape) or list(core[:-2]) != rounds or 0 in core:
        raise ValueError(f"tensor core.{name} has shape {list(core)}, which is no core of {list(shape)}")
    _check(held, f"left.{name}", (*rounds, rows, core[-2]))
    _check(held, f"right.{name}", (*rounds, core[-1], columns))


def _check(held: stored.Stored, name: str, shape: tuple[int, ...] | None) -> None:
    """One array: there, of its shape and dtype, finite, and not negative where it is an RMS."""
    if name not in held.arrays:
        raise ValueError(f"tensor {name} is missing")
    array, part = held.arrays[name], name.partition(".")[0]
    if shape is not None and array.shape != shape:
        raise ValueError(f"tensor {name} has shape {list(array.shape)}, not {list(shape)}")
    if held.dtypes[name] not in ((_DTYPES[part], "BF16") if part == "rms" else (_DTYPES[part],)):
        raise ValueError(f"tensor {name} has dtype {held.dtypes[name]}, not {_DTYPES[part]}")
    if not np.isfinite(array).all():
        raise ValueError(f"tensor {name} holds a value that is not finite")
    if part not in ("left", "right") and not (array >= 0).all():
        raise ValueError(f"tensor {name} holds a value that is negative")
