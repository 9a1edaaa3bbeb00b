"""Calibration: gradient statistics of a checkpoint on training text, and the rules chosen for it.

A checkpoint has statistics once and rules for several kinds and sizes of fast weights
(:class:`CalibrationSet`); a session learns by one of them (:class:`Calibration`).
Shape suffixes: P fast weights.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rlstm_model.adaptation.bases import SubspaceStatistics
from rlstm_model.adaptation.config import AdaptationConfig, Kind, Reduction
from rlstm_model.adaptation.fast_weights import FastWeights
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.adaptation.sparse import SparseFastWeights, SparseStatistics
from rlstm_model.adaptation.subspace import SubspaceFastWeights
from rlstm_model.language_model import LanguageModel

OUTPUT_BIAS = "embedding.bias"


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
    space: SubspaceFastWeights | SparseFastWeights | None = None

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
        digest.update(_bytes(self.rms_P))
        if self.space is not None:
            digest.update(self.space.layout)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientStatistics:
    """What was measured of a model's gradients: enough for every kind of fast weights.

    full_P    RMS of all weights, in the model's weight order
    subspace  axes, and the RMS between them; None where they were not measured. Biases have no axes: their
              RMS are those in full_P, which alone are stored
    sparse    units, and the RMS between them; None where they were not measured
    """

    full_P: Tensor
    subspace: SubspaceStatistics | None = None
    sparse: SparseStatistics | None = None

    def calibration(self, model: LanguageModel, config: AdaptationConfig) -> Calibration:
        """The statistics under a rule. Raises ValueError when they are not for that kind, or of its size."""
        if config.kind == "full":
            return Calibration(config=config, rms_P=self.full_P)
        if config.kind == "output_bias":
            space = SubspaceFastWeights(model, {}, [OUTPUT_BIAS])
            bias = FullFastWeights(model).split(self.full_P)[OUTPUT_BIAS]
            return Calibration(config=config, rms_P=bias, space=space)
        subspace = None if self.subspace is None else self.subspace.within(config.rank)
        measured = subspace if config.kind == "subspace" else self.sparse
        if measured is None:
            raise ValueError(f"what the kind {config.kind} needs was not measured")
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


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().float().contiguous().numpy().astype("<f4", copy=False).tobytes()
