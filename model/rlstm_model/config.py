"""ModelConfig: the complete, immutable description of a model's shape."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

FORMAT_VERSION = 1
MODEL_TYPE = "rlstm"
"""What ``config.json`` is called by on model hubs, whatever the cell."""

CellKind = Literal["rlstm", "lstm"]
Stacking = Literal["residual", "skip", "plain"]


class ConfigError(ValueError):
    """A configuration that describes no model; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a language model (Melis 2022, §3).

    vocab_size          V, the number of symbols
    hidden_size         H, the width of every layer and of the embeddings
    widths              those of the embeddings and of each layer where they are not all H, which is then the
                        greatest; such layers are LSTMs, stacked plainly and not mogrified
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
    widths: tuple[int, ...] = ()

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
        if self.widths:
            self._check_widths()

    def _check_widths(self) -> None:
        widths = self.widths
        if type(widths) is not tuple or any(type(width) is not int or width < 1 for width in widths):
            raise ConfigError(f"widths must be integers of at least 1, not {widths!r}")
        if len(widths) != self.num_layers + 1 or max(widths) != self.hidden_size:
            raise ConfigError(
                f"widths must be those of the embeddings and of {self.num_layers} layers, the greatest "
                f"hidden_size, {self.hidden_size}, not {list(widths)}"
            )
        others = self.cell != "lstm" or self.stacking != "plain"
        if others or self.mogrifier_rounds or self.softmax_components > 1:
            raise ConfigError("widths: only LSTMs that are stacked plainly and not mogrified have several")
        if self.tie_embeddings and widths[0] != widths[-1]:
            raise ConfigError(f"widths: tied embeddings are as wide as the last layer, not {list(widths)}")

    @property
    def layer_widths(self) -> tuple[tuple[int, int], ...]:
        """Of each layer the width of what it reads, and its own."""
        widths = self.widths or (self.hidden_size,) * (self.num_layers + 1)
        return tuple(pairwise(widths))

    @property
    def num_parameters(self) -> int:
        """The number of weights (docs/mathematics.md §1.4)."""
        n, k = self.hidden_size, self.mogrifier_rank
        cells = self.num_layers * ((7 if self.cell == "rlstm" else 8) * n * n + 4 * n)
        if self.widths:
            cells = sum(4 * own * (below + own + 1) for below, own in self.layer_widths)
        round_weights = (2 * n * k if k else n * n) + (n if self.mogrifier_bias else 0)
        read, last = (self.widths[0], self.widths[-1]) if self.widths else (n, n)
        embeddings = self.vocab_size * (read + (0 if self.tie_embeddings else last) + 1)
        mixture = self.softmax_components * (n * n + 2 * n) if self.softmax_components > 1 else 0
        return cells + self.num_layers * self.mogrifier_rounds * round_weights + embeddings + mixture

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
        data = {**asdict(self), "widths": list(self.widths)}
        return {"model_type": MODEL_TYPE, "format_version": FORMAT_VERSION, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """The config in ``data``. Raises ConfigError on a missing, unknown or wrong field."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a model config must be a JSON object, not {type(data).__name__}")
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(f"format_version must be {FORMAT_VERSION}, not {version!r}")
        if data.get("model_type", MODEL_TYPE) != MODEL_TYPE:
            raise ConfigError(f"model_type must be {MODEL_TYPE}, not {data['model_type']!r}")
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in data.items() if name not in ("format_version", "model_type")}
        if isinstance(given.get("widths"), list):
            given["widths"] = tuple(given["widths"])
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
_ADDED_FIELDS: dict[str, Any] = {"stacking": "residual", "softmax_components": 1, "widths": ()}
