"""Calibration: gradient statistics of a checkpoint on training text, and the rule chosen for it.

``adaptation.safetensors`` holds the RMS of every weight's gradient (bfloat16: eight bits of a scale are
plenty) and, as metadata, the :class:`AdaptationConfig` they belong to.
Shape suffixes: P fast weights.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rlstm_model.adaptation.config import AdaptationConfig, Reduction
from rlstm_model.adaptation.fast_weights import FastWeights
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.language_model import LanguageModel

_CONFIG = "adaptation"


class CalibrationError(ValueError):
    """A calibration that is missing, damaged or of another model; the message names file and tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """``rms_P``: root mean square of segment gradients, at least 0, in the model's weight order."""

    config: AdaptationConfig
    rms_P: Tensor

    def with_rate(self, rate: float, decay: float | None = None) -> "Calibration":
        """The same statistics under another learning rate (and decay)."""
        changed = replace(self.config, rate=rate, decay=self.config.decay if decay is None else decay)
        return replace(self, config=changed)

    def fast_weights(self, model: LanguageModel) -> FastWeights:
        """The fast weights of ``model`` that these are statistics of. Raises ValueError for another model."""
        fast_weights = FullFastWeights(model)
        if self.rms_P.shape != (fast_weights.size,):
            raise ValueError(
                f"the calibration is of {self.rms_P.numel()} weights, the model has {fast_weights.size}"
            )
        return fast_weights

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the config and the statistics; worked out once, for it reads them all."""
        digest = hashlib.sha256(json.dumps(self.config.to_json(), sort_keys=True).encode())
        digest.update(self.rms_P.detach().cpu().float().numpy().astype("<f4", copy=False).tobytes())
        return digest.hexdigest()

    def save(self, path: Path, model: LanguageModel) -> None:
        """Write ``adaptation.safetensors``; the statistics are rounded to bfloat16."""
        tensors = {
            name: part.to("cpu", torch.bfloat16).contiguous()
            for name, part in FullFastWeights(model).split(self.rms_P).items()
        }
        beside = path.with_name(path.name + ".partial")
        # Not save_file, which would make a file that its owner alone can read.
        beside.write_bytes(save(tensors, metadata={_CONFIG: json.dumps(self.config.to_json())}))
        beside.replace(path)

    @classmethod
    def load(cls, path: Path, model: LanguageModel) -> "Calibration":
        """The calibration of ``model`` in a file. Raises CalibrationError."""
        layout = FullFastWeights(model)
        try:
            with safe_open(path, framework="pt") as stored:
                config = _config_of(stored.metadata() or {})
                rms_P = layout.join(_statistics_of(stored, layout))
        except (OSError, SafetensorError) as error:
            raise CalibrationError(f"{path}: missing, damaged or no safetensors file ({error})") from error
        except (ValueError, RecursionError) as error:
            raise CalibrationError(f"{path}: {error}") from error
        if config.rule == "rms" and not bool(rms_P.any()):
            raise CalibrationError(f"{path}: its statistics are all zero")
        return cls(config=config, rms_P=rms_P)


def measure_rms(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    reduction: Reduction,
    bos_id: int,
) -> tuple[Tensor, int]:
    """RMS over the gradients of single segments at the slow weights, ``[P]``, and how many there were.

    Each text is read from its beginning with carried state, as a session would be; its last tokens that
    fill no segment are left. Raises ValueError when no text fills one.
    """
    fast_weights = FullFastWeights(model)
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


def _config_of(metadata: Mapping[str, str]) -> AdaptationConfig:
    if _CONFIG not in metadata:
        raise ValueError("has no adaptation config in its metadata")
    return AdaptationConfig.from_json(json.loads(metadata[_CONFIG]))


def _statistics_of(stored: Any, layout: FullFastWeights) -> dict[str, Tensor]:
    """The tensors of an open file, all of which must be statistics of the layout's weights."""
    present = set(stored.keys())
    for name in sorted(set(layout.names) - present):
        raise ValueError(f"tensor {name} is missing")
    for name in sorted(present - set(layout.names)):
        raise ValueError(f"tensor {name} belongs to another model")
    tensors = {}
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        header = stored.get_slice(name)
        if header.get_shape() != list(shape):
            raise ValueError(f"tensor {name} has shape {header.get_shape()}, not {list(shape)}")
        if header.get_dtype() != "BF16":
            raise ValueError(f"tensor {name} has dtype {header.get_dtype()}, not BF16")
        tensors[name] = stored.get_tensor(name)
        if not bool((torch.isfinite(tensors[name]) & (tensors[name] >= 0)).all()):
            raise ValueError(f"tensor {name} holds a value that is negative or not finite")
    return tensors
