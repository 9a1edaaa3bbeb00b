"""AdaptationConfig: the learning rule and everything its rate depends on."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

FORMAT_VERSION = 3

Kind = Literal["full", "subspace", "output_bias"]
Rule = Literal["rms", "sgd"]
Reduction = Literal["mean", "sum"]


class AdaptationConfigError(ValueError):
    """A configuration that describes no learning rule; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class AdaptationConfig:
    """How a session learns (adaptation: §1).

    A learning rate means nothing without the loss reduction, the segment length and the batch of the
    gradient statistics it was chosen for, so they are one value and none of them has a default.

    kind                 what a session may change (docs/adaptation.md §2): "full" is every weight, "subspace"
                         chosen numbers between fixed axes, "output_bias" the softmax's bias
    num_fast_weights     P: how many numbers that is
    rank                 of a subspace: the leading axes of a side of a matrix that it may use; 0 is all
    rule                 "rms": g / (RMS + epsilon); "sgd": g
    rate                 eta, in units of a weight
    decay                lambda: the pull back to the loaded weights at every step
    epsilon              in multiples of the mean RMS
    segment              S, the tokens of one step
    reduction            of a segment's losses: "mean" divides by S
    statistics_batch     rows whose gradients were averaged before squaring
    statistics_segments  how many such gradients the RMS comes from
    max_norm_ratio       rho: the fast weights' norm is at most rho times that of the loaded weights
    """

    kind: Kind
    num_fast_weights: int
    rank: int = 0
    rule: Rule
    rate: float
    segment: int
    reduction: Reduction
    statistics_batch: int
    statistics_segments: int
    decay: float = 0.0
    epsilon: float = 0.1
    max_norm_ratio: float = 0.5

    def __post_init__(self) -> None:
        for name, choices in (("kind", Kind), ("rule", Rule), ("reduction", Reduction)):
            if getattr(self, name) not in get_args(choices):
                raise AdaptationConfigError(
                    f"{name} must be one of {get_args(choices)}, not {getattr(self, name)!r}"
                )
        for name in ("num_fast_weights", "segment", "statistics_batch", "statistics_segments"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise AdaptationConfigError(f"{name} must be an integer of at least 1, not {value!r}")
        for name in ("rate", "decay", "epsilon", "max_norm_ratio"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
                raise AdaptationConfigError(f"{name} must be a finite number of at least 0, not {value!r}")
        if type(self.rank) is not int or self.rank < 0:
            raise AdaptationConfigError(f"rank must be an integer of at least 0, not {self.rank!r}")
        if self.rank and self.kind != "subspace":
            raise AdaptationConfigError(f"rank belongs to a subspace, not to the kind {self.kind}")
        if self.rule == "rms" and self.epsilon == 0:
            raise AdaptationConfigError("epsilon must be above 0: weights without gradients divide by it")

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` reads back."""
        fields = asdict(self)
        if self.kind != "subspace":
            del fields["rank"]
        return {"format_version": FORMAT_VERSION, **fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AdaptationConfig":
        """The config in ``data``. Raises AdaptationConfigError on a missing, unknown or wrong field."""
        if not isinstance(data, Mapping):
            raise AdaptationConfigError(f"an adaptation config must be an object, not {type(data).__name__}")
        if data.get("format_version") != FORMAT_VERSION:
            raise AdaptationConfigError(
                f"format_version must be {FORMAT_VERSION}, not {data.get('format_version')!r}"
            )
        if data.get("kind") not in get_args(Kind):
            raise AdaptationConfigError(f"kind must be one of {get_args(Kind)}, not {data.get('kind')!r}")
        known = {field.name for field in fields(cls)}
        if data.get("kind") != "subspace":
            known -= {"rank"}
        given = set(data) - {"format_version"}
        if given != known:
            raise AdaptationConfigError(f"unknown or missing fields: {', '.join(sorted(given ^ known))}")
        return cls(**{name: data[name] for name in known})
