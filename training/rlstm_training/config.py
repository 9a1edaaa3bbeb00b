"""Recipe: everything that determines a training run, in one immutable value."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlstm_model.config import ModelConfig
from rlstm_model.dropout import DropoutRates

FORMAT_VERSION = 1

Form = Literal["as_is", "lf", "unwrapped"]
VocabKind = Literal["bytes", "characters", "words"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A corpus, the form its text is read in, and how many rows of the batch read it.

    ``form``: "as_is"; "lf" (CRLF becomes LF); "unwrapped" (also, hard-wrapped lines are joined).
    """

    corpus: str
    rows: int
    form: Form = "as_is"

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"source {self.corpus}: rows must be at least 1, not {self.rows}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete training run.

    The loss is the mean over tokens; ``clip_norm`` and ``l2`` belong to that mean. (A published setting for
    the sum over a window of T tokens is divided by T: mathematics §2.7.)

    model                   the model's shape
    vocab                   how text becomes ids
    sources                 what the rows of a batch read; their sum is the batch size B
    window                  T, tokens a row and step (truncated back-propagation)
    steps                   optimiser steps in all
    learning_rate           RAdam's rate at the first step
    decay                   "constant", or "linear": to zero at the last step
    beta1, beta2, epsilon   RAdam's
    l2                      coupled penalty: l2 / 2 times the squared norm of all weights, in the loss
    clip_norm               bound on the global norm of the gradient, L2 term included
    dropout                 rates of the four kinds
    dropout_samples         D: each row is read D times under different masks, probabilities averaged
    reset_probability       chance that a row's state is zeroed before a window
    chrono_max              T_max of the Chrono initialisation, in tokens
    evaluate_every          steps between validations
    validation_tokens       tokens of each source's validation text that are scored
    checkpoint_every        steps between checkpoints
    seed                    of initial weights, masks and resets
    """

    name: str
    model: ModelConfig
    vocab: VocabKind
    sources: tuple[Source, ...]
    window: int
    steps: int
    learning_rate: float
    decay: Literal["constant", "linear"] = "constant"
    beta1: float = 0.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    l2: float = 0.0
    clip_norm: float = 1.0
    dropout: DropoutRates = field(default_factory=DropoutRates)
    dropout_samples: int = 1
    reset_probability: float = 0.01
    chrono_max: float = 50.0
    evaluate_every: int = 1000
    validation_tokens: int = 60_000
    checkpoint_every: int = 250
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources must name at least one corpus")
        for name in ("window", "steps", "dropout_samples", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")
        if not 0 <= self.reset_probability <= 1:
            raise ValueError(f"reset_probability must lie in [0, 1], not {self.reset_probability}")

    @property
    def rows(self) -> int:
        """B, the rows of a batch before dropout samples multiply them."""
        return sum(source.rows for source in self.sources)

    @property
    def tokens_per_step(self) -> int:
        """Target tokens in one optimiser step."""
        return self.rows * self.window

    def rate(self, step: int) -> float:
        """The learning rate of ``step`` (0 is the first)."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * (1.0 - step / self.steps)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that says all."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"format_version": FORMAT_VERSION, **data, "model": self.model.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Recipe":
        """The recipe in ``data``. Raises ValueError when it is of another format or incomplete."""
        if data.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"format_version must be {FORMAT_VERSION}, not {data.get('format_version')!r}")
        rest = {name: value for name, value in data.items() if name != "format_version"}
        try:
            rest["model"] = ModelConfig.from_json(rest["model"])
            rest["sources"] = tuple(Source(**source) for source in rest["sources"])
            rest["dropout"] = DropoutRates(**rest["dropout"])
            return cls(**rest)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recipe of this version: {error}") from error
