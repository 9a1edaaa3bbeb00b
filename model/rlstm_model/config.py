"""ModelConfig: the complete, immutable description of a model's shape."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

FORMAT_VERSION = 1

CellKind = Literal["rlstm", "lstm"]
Stacking = Literal["residual", "skip", "plain"]


class ConfigError(ValueError):
    """A configuration that describes no model; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a language model (Melis 2022, §3).

    vocab_size          V, the number of symbols
    hidden_size         H, the width of every layer and of the embeddings
    num_layers          L
    cell                "rlstm", or "lstm" (the baseline)
    cap_input_gate      min(i, 1 - f) in place of i (the published baseline has it too)
    mogrifier_rounds    r: 0 is none
    mogrifier_rank      k of the low-rank factors; 0 is *full rank*, not none
    mogrifier_bias      a bias in each round
    tie_embeddings      the output matrix is the transposed input embedding
    stacking            what a layer above the first reads, and what the softmax reads:
                        "residual": the sum of all layers below it; the sum of all layers
                        "skip": the layer below it; the sum of all layers
                        "plain": the layer below it; the last layer
    softmax_components  of a mixture of softmaxes (Yang et al. 2018); 1 is the plain softmax
    """

    vocab_size: int
    hidden_size: int
    num_layers: int = 2
    cell: CellKind = "rlstm"
    cap_input_gate: bool = True
    mogrifier_rounds: int = 4
    mogrifier_rank: int = 0
    mogrifier_bias: bool = True
    tie_embeddings: bool = False
    stacking: Stacking = "residual"
    softmax_components: int = 1

    def __post_init__(self) -> None:
        for name, least in _INTEGER_FIELDS.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
        for name, choices in (("cell", get_args(CellKind)), ("stacking", get_args(Stacking))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {choices}, not {getattr(self, name)!r}")
        for name in ("cap_input_gate", "mogrifier_bias", "tie_embeddings"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.cell == "rlstm" and not self.cap_input_gate:
            raise ConfigError("cap_input_gate: the RLSTM is defined with a capped input gate")

    @property
    def num_parameters(self) -> int:
        """The number of weights (docs/mathematics.md §1.4)."""
        n, k = self.hidden_size, self.mogrifier_rank
        cell = (7 if self.cell == "rlstm" else 8) * n * n + 4 * n
        round_weights = (2 * n * k if k else n * n) + (n if self.mogrifier_bias else 0)
        embeddings = self.vocab_size * n * (1 if self.tie_embeddings else 2) + self.vocab_size
        mixture = self.softmax_components * (n * n + 2 * n) if self.softmax_components > 1 else 0
        return self.num_layers * (cell + self.mogrifier_rounds * round_weights) + embeddings + mixture

    def with_budget(self, budget: int) -> "ModelConfig":
        """The same model with the largest hidden size that has at most ``budget`` weights.

        Raises ConfigError when even one unit a layer is too large.
        """

        def fits(hidden: int) -> bool:
            return replace(self, hidden_size=hidden).num_parameters <= budget

        if not fits(1):
            raise ConfigError(f"no hidden size has at most {budget} weights")
        low, high = 1, max(2, math.isqrt(budget) + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return replace(self, hidden_size=low)

    def identity(self) -> dict[str, Any]:
        """The fields for a fingerprint, which an old model keeps.

        Fields that were added later are left out where they have the value that models before them had.
        """
        return {n: v for n, v in asdict(self).items() if n not in _ADDED_FIELDS or v != _ADDED_FIELDS[n]}

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` reads back."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """The config in ``data``. Raises ConfigError on a missing, unknown or wrong field."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a model config must be a JSON object, not {type(data).__name__}")
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(f"format_version must be {FORMAT_VERSION}, not {version!r}")
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in data.items() if name != "format_version"}
        whole = {**_ADDED_FIELDS, **given}
        if set(whole) != known:
            wrong = sorted(set(whole) ^ known)
            raise ConfigError(f"unknown or missing fields: {', '.join(wrong)}")
        return cls(**whole)


_INTEGER_FIELDS = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_layers": 1,
    "mogrifier_rounds": 0,
    "mogrifier_rank": 0,
    "softmax_components": 1,
}

# Fields that configs written before them lack, with what those models are.
_ADDED_FIELDS = {"stacking": "residual", "softmax_components": 1}
