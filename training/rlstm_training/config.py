"""Recipe: everything that determines a training run, in one immutable value."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates

FORMAT_VERSION = 2

Form = Literal["as_is", "lf", "unwrapped"]
Precision = Literal["float32", "bfloat16"]
VocabKind = Literal["bytes", "characters", "words", "subwords"]
LossScale = Literal["mean_over_tokens", "sum_over_time"]
Batching = Literal["heads", "contiguous"]
AverageKind = Literal["none", "tail", "two_tailed"]
OptimizerKind = Literal["radam", "adam"]
Decay = Literal["constant", "linear"]


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
class Averaging:
    """Which average of the weights is evaluated and kept beside the raw ones.

    kind      "none"; "tail": one mean of all iterates from its start on; "two_tailed": two of
              adaptive lengths (Melis 2022, Two-Tailed Averaging; docs/mathematics.md §6)
    every     optimiser steps between two iterates that enter an average
    patience  evaluations without a better one after which an average stagnates (two_tailed),
              or the raw weights do and the average starts (tail)
    latest    the step at which the tail starts at the latest
    """

    kind: AverageKind = "none"
    every: int = 1
    patience: int = 3
    latest: int = 2**62

    def __post_init__(self) -> None:
        _refuse_unless_one_of(get_args(AverageKind), "averaging.kind", self.kind)
        for name in ("every", "patience", "latest"):
            if getattr(self, name) < 1:
                raise ValueError(f"averaging.{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete training run.

    ``clip_norm`` and ``l2`` belong to the loss as ``loss_scale`` has it: the mean over tokens, or, as in
    published settings, the mean over rows of the sum over a window's T tokens (docs/mathematics.md §2.7),
    where they are T times as large for the same run.

    model                   the model's shape
    vocab                   how text becomes ids
    sources                 what the rows of a batch read; their sum is the batch size B
    batching                "heads": each row runs through its whole source, rows start at equal
                            distances; "contiguous": each row has a piece of the source for ever
    jitter_lines            heads: after each of its rounds a head starts again up to so many lines off
    window                  T, tokens a row and step (truncated back-propagation)
    steps                   optimiser steps in all
    optimizer               "radam" (rectified Adam), or "adam"
    learning_rate           its rate at the first step
    decay                   "constant", or "linear": to zero at the last step
    beta1, beta2, epsilon   the optimiser's
    loss_scale              "mean_over_tokens", or "sum_over_time"
    l2                      coupled penalty: l2 / 2 times the squared norm of all weights, in the loss
    clip_norm               bound on the global norm of the gradient, L2 term included
    dropout                 rates of the four kinds
    dropout_samples         D: each row is read D times under different masks, probabilities averaged
    reset_probability       chance that a row's state is zeroed before a window
    chrono_max              T_max of the Chrono initialisation, in tokens; None: forget biases around 1
    averaging               of the weights
    evaluate_every          steps between validations
    validation_tokens       tokens of each source's validation text that are scored
    early_stopping          evaluations without a better one after which the run ends; 0: never
    divergence_margin       nats a token above the best evaluation at which a run counts as diverged
    divergence_resets       how often a run may go back to its best and on at 0.9 of its rate
    checkpoint_every        steps between checkpoints
    start_from              a checkpoint, by folder or name of a shipped one, whose weights the run
                            begins with; None: new weights
    precision               of the inputs of matrix products; weights, sums and all else stay float32
    seed                    of initial weights, masks and resets
    """

    name: str
    model: ModelConfig
    vocab: VocabKind
    sources: tuple[Source, ...]
    batching: Batching = "heads"
    jitter_lines: int = 0
    window: int
    steps: int
    optimizer: OptimizerKind = "radam"
    learning_rate: float
    decay: Decay = "constant"
    beta1: float = 0.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    loss_scale: LossScale = "mean_over_tokens"
    l2: float = 0.0
    clip_norm: float = 1.0
    dropout: DropoutRates = field(default_factory=DropoutRates)
    dropout_samples: int = 1
    reset_probability: float = 0.01
    chrono_max: float | None = 50.0
    averaging: Averaging = field(default_factory=Averaging)
    evaluate_every: int = 1000
    validation_tokens: int = 60_000
    early_stopping: int = 0
    divergence_margin: float = 0.5
    divergence_resets: int = 10
    checkpoint_every: int = 250
    start_from: str | None = None
    precision: Precision = "float32"
    seed: int = 1

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _refuse_unless_one_of(choices, name, getattr(self, name))
        if not self.sources:
            raise ValueError("sources must name at least one corpus")
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.batching == "contiguous" and self.jitter_lines:
            raise ValueError("jitter_lines must be 0 where batching is contiguous: only heads jitter")
        if not 0 <= self.reset_probability <= 1:
            raise ValueError(f"reset_probability must lie in [0, 1], not {self.reset_probability}")

    @property
    def rows(self) -> int:
        """B, the rows of a batch before dropout samples multiply them."""
        return sum(source.rows for source in self.sources)

    @property
    def corpora(self) -> list[str]:
        """What its sources read, each once."""
        return list(dict.fromkeys(source.corpus for source in self.sources))

    @property
    def tokens_per_step(self) -> int:
        """Target tokens in one optimiser step."""
        return self.rows * self.window

    def rate(self, step: int) -> float:
        """The learning rate of ``step`` (0 is the first)."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * (1.0 - step / self.steps)

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype of the inputs of matrix products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    @property
    def loss_factor(self) -> int:
        """What the mean loss over tokens is multiplied by before the gradient is taken."""
        return self.window if self.loss_scale == "sum_over_time" else 1

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
            rest["averaging"] = Averaging(**rest["averaging"])
            rest["dropout"] = DropoutRates(**rest["dropout"])
            return cls(**rest)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recipe of this version: {error}") from error


_LEAST = {
    **dict.fromkeys(("window", "steps", "dropout_samples", "validation_tokens"), 1),
    **dict.fromkeys(("evaluate_every", "checkpoint_every"), 1),
    **dict.fromkeys(("jitter_lines", "early_stopping", "divergence_resets", "l2", "divergence_margin"), 0),
}
_CHOICES = {
    "vocab": get_args(VocabKind),
    "batching": get_args(Batching),
    "optimizer": get_args(OptimizerKind),
    "decay": get_args(Decay),
    "loss_scale": get_args(LossScale),
    "precision": get_args(Precision),
}


def _refuse_unless_one_of(choices: tuple[str, ...], name: str, value: object) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
