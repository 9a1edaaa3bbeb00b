"""Schemas of what the session routes take."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rlstm_server.api.answers import FACTORS, Unit
from rlstm_server.api.generate import SamplingIn
from rlstm_server.api.shapes import (
    AdaptationIn,
    ModelField,
    Strict,
    TextField,
    TokensField,
    UnitField,
    one_of,
    passage,
)
from rlstm_server.schemas import Candidate, CandidateWeights, ScoreDetail

MAX_TTL_SECONDS = 366 * 86_400
MAX_METADATA = 32
NAME = r"^[A-Za-z0-9_-]{1,64}$"
SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Weight = Annotated[float, Field(ge=-1e6, le=1e6)]
ScoresField = Annotated[ScoreDetail, Field(description="Per-token columns, sums only, or neither.")]


def _with_all_digits(value: Any) -> Any:
    """Refuse an integer beyond 64 bits, which the schema would take as the nearest double."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer is one of 64 bits; write a longer one as a string")
    return value


MetadataValue = Annotated[
    Annotated[str, Field(max_length=512)]
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | float
    | bool
    | None,
    BeforeValidator(_with_all_digits),
]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue], Field(max_length=MAX_METADATA)
]
Name = Annotated[str, Field(pattern=NAME)]
TTLSeconds = Annotated[float, Field(ge=1, le=MAX_TTL_SECONDS)]
MinVersionField = Annotated[int | None, Field(ge=0, lt=2**63, description="Refuse (412) an older session.")]


class CreateIn(Strict):
    """A new session; every field is optional."""

    model: ModelField = None
    name: Name | None = Field(default=None, description="Unique among your sessions.")
    adaptation: AdaptationIn = Field(default=AdaptationIn(), description="How the session learns.")
    ttl_seconds: TTLSeconds | None = Field(
        default=None, description="It expires this long after its last change."
    )
    metadata: Metadata = Field(default={}, description="Your own notes; at most 16 kB, not looked at.")
    text: TextField = None
    tokens: TokensField = None
    scores: ScoresField = "tokens"
    unit: UnitField = "nats"

    @model_validator(mode="after")
    def _check(self) -> CreateIn:
        if self.text is not None and self.tokens is not None:
            raise ValueError("give either text or tokens")
        return self


class AppendIn(Strict):
    """The next piece of the session's stream: scored with the weights as they are, then learnt from."""

    text: TextField = None
    tokens: TokensField = None
    learn: bool = Field(default=True, description="Learn from it after scoring it.")
    final: bool = Field(default=False, description="The text ends here: score the word in progress too.")
    scores: ScoresField = "tokens"
    unit: UnitField = "nats"

    @model_validator(mode="after")
    def _check(self) -> AppendIn:
        one_of(self.text, self.tokens)
        return self


class CandidateIn(Strict):
    """One continuation to rank."""

    id: str | None = Field(
        default=None, max_length=128, description="Comes back with the score; default: its index."
    )
    text: TextField = None
    tokens: TokensField = None
    given: Weight = Field(default=0.0, description="A score from elsewhere, such as an acoustic model's.")

    @model_validator(mode="after")
    def _check(self) -> CandidateIn:
        one_of(self.text, self.tokens)
        return self

    def candidate(self, index: int) -> Candidate:
        """Give the engine's form."""
        return Candidate(
            id=str(index) if self.id is None else self.id,
            passage=passage(self.text, self.tokens),
            given=self.given,
        )


class WeightsIn(Strict):
    """score = lm * logprob + length * tokens + given * given, with logprob in the answer's unit."""

    lm: Weight = 1.0
    length: Weight = 0.0
    given: Weight = 0.0

    def weights(self, unit: Unit) -> CandidateWeights:
        """Give the engine's form, which mixes nats."""
        return CandidateWeights(lm=self.lm * FACTORS[unit], length=self.length, given=self.given)


class CandidatesIn(Strict):
    """Continuations to rank against the session as it is; nothing changes."""

    candidates: list[CandidateIn] = Field(min_length=1, fail_fast=True)
    weights: WeightsIn = WeightsIn()
    unit: UnitField = "nats"
    min_version: MinVersionField = None


class ContinueIn(SamplingIn):
    """How to continue the session's text, and whether the session keeps it."""

    commit: bool = Field(default=False, description="The text becomes part of the session.")
    learn_from_output: bool = Field(default=False, description="Also learn from it; needs `commit`.")
    min_version: MinVersionField = None

    @model_validator(mode="after")
    def _check(self) -> ContinueIn:
        if self.learn_from_output and not self.commit:
            raise ValueError("learn_from_output needs commit")
        return self


class UpdateIn(Strict):
    """What to change; what is left out stays as it is. At least one field must be there."""

    ttl_seconds: TTLSeconds | None = Field(
        default=None, description="From now on it expires this long after its last change."
    )
    metadata: Metadata | None = Field(default=None, description="Your own notes, in place of the old ones.")
    learning: bool | None = Field(
        default=None, description="Whether appends may learn; off, they only read, whatever they ask for."
    )


class SnapshotIn(Strict):
    """The name for the present version."""

    name: Name = Field(description="Unique in the session.")


class RestoreIn(Strict):
    """Where to go back to."""

    snapshot: Name = Field(description="The name of a snapshot of this session.")


class ForkIn(Strict):
    """A copy of a session; what is left out is the source's, but for the name."""

    name: Name | None = Field(default=None, description="Unique among your sessions.")
    snapshot: Name | None = Field(default=None, description="Copy the session as it was then, not as it is.")
    ttl_seconds: TTLSeconds | None = Field(
        default=None, description="It expires this long after its last change."
    )
    metadata: Metadata | None = Field(default=None, description="Your own notes.")
    min_version: MinVersionField = None


class ResetIn(Strict):
    """What to forget; totals and position go on."""

    what: Literal["fast_weights", "recurrent", "both"] = "both"
