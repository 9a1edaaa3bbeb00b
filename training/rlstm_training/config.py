"""Recipe: everything that determines a training run, in one immutable value."""

import json
from dataclasses import asdict, field
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

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

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Source:
    """A corpus, the form its text is read in, and how many rows of the batch read it.

    ``form``: "as_is"; "lf" (CRLF becomes LF); "unwrapped" (also, hard-wrapped lines are joined).
    """

    corpus: str
    rows: Positive
    form: Form = "as_is"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
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
    every: Positive = 1
    patience: Positive = 3
    latest: Positive = 2**62


@dataclass(frozen=True, kw_only=True, config=_STRICT)
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
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    batching: Batching = "heads"
    jitter_lines: Count = 0
    window: Positive
    steps: Positive
    optimizer: OptimizerKind = "radam"
    learning_rate: Rate
    decay: Decay = "constant"
    beta1: float = 0.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    loss_scale: LossScale = "mean_over_tokens"
    l2: Weight = 0.0
    clip_norm: Rate = 1.0
    dropout: DropoutRates = field(default_factory=DropoutRates)
    dropout_samples: Positive = 1
    reset_probability: Share = 0.01
    chrono_max: float | None = 50.0
    averaging: Averaging = field(default_factory=Averaging)
    evaluate_every: Positive = 1000
    validation_tokens: Positive = 60_000
    early_stopping: Count = 0
    divergence_margin: Weight = 0.5
    divergence_resets: Count = 10
    checkpoint_every: Positive = 250
    start_from: str | None = None
    precision: Precision = "float32"
    seed: int = 1

    def __post_init__(self) -> None:
        if self.batching == "contiguous" and self.jitter_lines:
            raise ValueError("jitter_lines must be 0 where batching is contiguous: only heads jitter")

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
        rest = {name: value for name, value in data.items() if name not in ("format_version", "model")}
        try:
            return cls(model=ModelConfig.from_json(data["model"]), **rest)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            raise ValueError(f"not a recipe of this version: {'; '.join(faults)}") from error
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recipe of this version: {error}") from error
