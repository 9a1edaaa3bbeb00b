"""Schemas of sessions and of what is done to them. Times are seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, computed_field, model_validator

from rlstm_server.schemas.text import (
    AdaptationChoice,
    AdaptationRequest,
    AdaptField,
    Columns,
    EngineIdentity,
    Given,
    GuardsField,
    Named,
    Passage,
    ScoreDetail,
    SpacesField,
    Timings,
    Totals,
    named,
)
from rlstm_server.schemas.wire import (
    BITS,
    FACTORS,
    FLAT,
    HIDDEN,
    LOG,
    OPTIONAL,
    Answer,
    Metadata,
    MinVersionField,
    ModelField,
    Request,
    Strict,
    TextField,
    TokensField,
    UnitField,
)

MAX_TTL_SECONDS: Final = 366 * 86_400
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

NoteField = Annotated[
    str | None,
    Field(
        description="A text of your own that takes effect with the change, in place of the one before:"
        " `GET /sessions/{session_id}/note` gives it back. Forks, snapshots and exports have it."
    ),
]
Weight = Annotated[float, Field(ge=-1e6, le=1e6)]
ScoresField = Annotated[
    ScoreDetail,
    Field(description="Per-token columns, sums only, or neither; `parts`: also those of weights and memory."),
]
Name = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
TTLSeconds = Annotated[
    Annotated[float, Field(ge=1, le=MAX_TTL_SECONDS)] | None,
    Field(description="It expires this long after its last change."),
]
ResetScope = Literal["fast_weights", "recurrent", "both"]

# ---- what a session is ------------------------------------------------------------------------------------


Bits = Annotated[float | None, BITS, OPTIONAL]
"""A logarithm in bits that may be absent."""


@dataclass(frozen=True, kw_only=True)
class SessionTotals(Answer):
    """Sums over the session's life, in bits. Static figures are null without a frozen baseline."""

    tokens: int = 0
    bytes: int = 0
    adapted_nats: Annotated[
        float,
        BITS,
        Field(serialization_alias="adapted_bits", description="Under the session's own weights."),
    ] = 0.0
    static_nats: Annotated[
        float | None,
        BITS,
        Field(
            serialization_alias="static_bits",
            description="Under the weights as loaded; null without a frozen baseline.",
        ),
    ] = 0.0
    weights_nats: Annotated[
        Bits,
        Field(
            serialization_alias="weights_bits",
            description="Under the weights as adapted, where there is a memory beside them.",
        ),
    ] = None
    memory_nats: Annotated[
        Bits,
        Field(
            serialization_alias="memory_bits",
            description="Of the expert that blends the weights with the memory.",
        ),
    ] = None
    updates: Annotated[int, Field(description="Segments learned from.")] = 0
    guards: Annotated[int, Field(description="Times that a guard acted.")] = 0

    @computed_field(description="static_bits - adapted_bits: what learning saved.")
    @property
    def gain(self) -> Annotated[float | None, BITS]:
        """Nats saved by learning so far."""
        return None if self.static_nats is None else self.static_nats - self.adapted_nats


@dataclass(frozen=True, kw_only=True)
class Ancestor(Answer):
    """Where a session's history began."""

    session: str
    version: int
    snapshot: Annotated[
        str | None, Field(description="The name of that version, if the fork asked for it by name.")
    ] = None


WeightsField = Annotated[
    tuple[float, ...],
    Field(description="How much each expert counts in the next prediction; they sum to 1."),
]
NormRatioField = Annotated[
    float, Field(description="Norm of the fast weights over that of the loaded ones: the greatest expert's.")
]


@dataclass(frozen=True, kw_only=True)
class SessionInfo(Answer):
    """A session as the store has it."""

    id: str
    name: str | None
    version: int
    position: Annotated[int, Field(description="Tokens read.")]
    created_at: float
    expires_at: float | None
    state_bytes: int
    adaptation: AdaptationChoice
    weights: WeightsField
    norm_ratio: NormRatioField
    totals: SessionTotals
    pending: Annotated[
        int, Field(description="Characters held back until the word is complete; at most 4,096.")
    ]
    metadata: Mapping[str, JsonValue]
    learning: Annotated[bool, Field(description="Whether appends may learn.")] = True
    forked_from: Annotated[
        Ancestor | None, Field(description="Of a fork or an import: where its history began.")
    ] = None
    model: Annotated[
        str | None,
        Field(
            description="As it was called where the session was last changed; null, as are the fingerprints,"
            " for a session of an older server."
        ),
    ] = None
    fingerprint: Annotated[str | None, Field(description="Of the model's weights and vocabulary.")] = None
    adaptation_fingerprint: Annotated[str | None, Field(description="Of its calibration.")] = None


@dataclass(frozen=True, kw_only=True)
class SessionPage(Answer):
    """A page of your sessions, oldest first."""

    sessions: Sequence[SessionInfo]
    cursor: Annotated[str | None, Field(description="Fetches the next page; null at the end.")]


# ---- appending --------------------------------------------------------------------------------------------


class Continued(Given):
    """The next piece of the session's stream."""

    learn: bool = Field(default=True, description="Learn from it after scoring it.")
    final: bool = Field(default=False, description="The text ends here: score the word in progress too.")


class AppendRequest(Continued, Request):
    """The next piece of the session's stream: scored with the weights as they are, then learned from."""

    scores: ScoresField = "tokens"
    spaces: SpacesField = False
    unit: UnitField = "nats"
    note: NoteField = None


@dataclass(frozen=True, kw_only=True)
class AppendAnswer(Answer):
    """What an append did."""

    version: int
    position: int
    durability: Annotated[str, Field(description="What the change survives: fsync, replica or memory.")]
    replayed: Annotated[bool, Field(description="The key was seen before: this is what happened then.")]
    unit: UnitField = "nats"
    columns: Annotated[Columns | None, FLAT, OPTIONAL] = None
    learn: Annotated[
        bool, Field(description="Whether it could be learned from: asked for, and the session's is on.")
    ] = True
    updates: Annotated[int, Field(description="Segments learned from.")]
    guards: GuardsField
    weights: WeightsField
    norm_ratio: NormRatioField
    pending: int
    totals: Annotated[Totals | None, OPTIONAL] = None
    expires_at: float | None
    scores_stored: Annotated[
        bool,
        Field(description="False of a repeat whose columns are no longer stored; the text was applied."),
    ] = True
    timings: Annotated[Timings, HIDDEN] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoteAnswer(Answer):
    """The newest note, and the version that was read."""

    version: int
    note: Annotated[str, Field(description="Empty where there was none.")]


class Frame(Continued):
    """The next piece of the session's stream."""

    seq: int = Field(ge=1, lt=2**53, description="One more than the frame before.")


# ---- making and changing sessions -------------------------------------------------------------------------


class CreateSession(Request):
    """A new session; every field is optional."""

    model: ModelField = None
    name: Name | None = Field(default=None, description="Unique among your sessions.")
    adapt: AdaptField = Field(default=True, description="As in `adaptation`; `true`: its default.")
    adaptation: AdaptationRequest = Field(default=AdaptationRequest(), description="How the session learns.")
    ttl_seconds: TTLSeconds = None
    metadata: Metadata = Field(default={}, description="Your own notes; at most 16 kB, not looked at.")
    text: TextField = None
    tokens: TokensField = None
    scores: ScoresField = "tokens"
    unit: UnitField = "nats"

    @model_validator(mode="after")
    def _check(self) -> CreateSession:
        if self.text is not None and self.tokens is not None:
            raise ValueError("give either text or tokens")
        if self.adapt is False:
            raise ValueError(
                "adapt: a session adapts; append with `learn: false` what it is not to learn from"
            )
        _ = self.learning
        return self

    @property
    def learning(self) -> AdaptationRequest:
        """How it adapts, by the short form and the long one."""
        return AdaptationRequest.of(self.adapt, self.adaptation) or self.adaptation

    @property
    def first(self) -> Passage | None:
        """The text that is appended at once."""
        return self.tokens if self.text is None else self.text


@dataclass(frozen=True, kw_only=True)
class CreatedSession(Answer):
    """The new session (or, replayed, the one that the key made), with the answer to its first text."""

    # `identity` is None of a session that another server made with a model that is not served here.

    info: Annotated[SessionInfo, FLAT]
    identity: Annotated[EngineIdentity | None, HIDDEN]
    durability: str
    replayed: bool
    append: Annotated[AppendAnswer | None, OPTIONAL]

    @computed_field(
        description="Equal ids give equal bits. Null where another server made the session, with a model that"
        " is not served here."
    )
    @property
    def numerics(self) -> str | None:
        """What else the numbers depend on."""
        return None if self.identity is None else self.identity.numerics

    @property
    def timings(self) -> Timings | None:
        """Of the append."""
        return None if self.append is None else self.append.timings


class ResetRequest(Request):
    """What to forget; totals and position go on."""

    what: ResetScope = "both"


class UpdateRequest(Request):
    """What to change; what is left out stays as it is. At least one field must be there."""

    ttl_seconds: TTLSeconds = None
    metadata: Metadata | None = Field(default=None, description="Your own notes, in place of the old ones.")
    note: NoteField = None
    learning: bool | None = Field(
        default=None, description="Whether appends may learn; off, they only read, whatever they ask for."
    )


class RestoreRequest(Request):
    """Where to go back to."""

    snapshot: Name = Field(description="The name of a snapshot of this session.")


@dataclass(frozen=True, kw_only=True)
class ChangeAnswer(Answer):
    """A session after a change."""

    info: Annotated[SessionInfo, FLAT]
    durability: str
    replayed: bool


# ---- reading sessions -------------------------------------------------------------------------------------


class Candidate(Named):
    """One continuation to rank."""

    given: Weight = Field(default=0.0, description="A score from elsewhere, such as an acoustic model's.")


class CandidateWeights(Strict):
    """score = lm * logprob + length * tokens + given * given, with logprob in the answer's unit."""

    lm: Weight = 1.0
    length: Weight = 0.0
    given: Weight = 0.0

    def score(self, logprob: float, tokens: int, given: float) -> float:
        """The mix."""
        return self.lm * logprob + self.length * tokens + self.given * given


class CandidatesRequest(Request):
    """Continuations to rank against the session as it is; nothing changes."""

    candidates: list[Candidate] = Field(min_length=1, fail_fast=True)
    weights: CandidateWeights = CandidateWeights()
    unit: UnitField = "nats"
    min_version: MinVersionField = None

    @property
    def mix(self) -> CandidateWeights:
        """The weights of log-probabilities in nats."""
        return self.weights.model_copy(update={"lm": self.weights.lm * FACTORS[self.unit]})

    @property
    def named_candidates(self) -> Sequence[Candidate]:
        """The candidates, each with an id."""
        return named(self.candidates)


@dataclass(frozen=True, kw_only=True)
class RankedCandidate(Answer):
    """One candidate's sums; static figures are of the weights as loaded. Ties keep the order given."""

    id: str
    logprob: Annotated[float, LOG, Field(description="Sum, in the answer's unit.")]
    static_logprob: Annotated[float | None, LOG, Field(description="The same under the weights as loaded.")]
    tokens: int
    score: float
    static_score: Annotated[float | None, Field(description="The same mix with static_logprob.")]
    rank: Annotated[int, Field(description="1 is the highest score.")]
    static_rank: Annotated[int | None, Field(description="1 is the highest static_score.")]

    @computed_field(description="logprob - static_logprob: what learning saved.")
    @property
    def gain(self) -> Annotated[float | None, LOG]:
        """Nats saved by learning: adapted less static log-probability, as in :class:`Totals`."""
        return None if self.static_logprob is None else self.logprob - self.static_logprob


@dataclass(frozen=True, kw_only=True)
class CandidatesAnswer(Answer):
    """The candidates in the order they were given, and the version that was read."""

    version: int
    unit: UnitField = "nats"
    candidates: Sequence[RankedCandidate]
    timings: Annotated[Timings, HIDDEN]


# ---- snapshots, forks and files ---------------------------------------------------------------------------


class SnapshotRequest(Request):
    """The name for the present version."""

    name: Name = Field(description="Unique in the session.")


@dataclass(frozen=True, kw_only=True)
class SessionSnapshot(Answer):
    """A named snapshot, and where the session stood when it was taken."""

    name: str
    version: int
    position: int
    created_at: float
    state_bytes: int
    totals: SessionTotals


@dataclass(frozen=True, kw_only=True)
class SnapshotAnswer(Answer):
    """A version that has a name now."""

    snapshot: Annotated[SessionSnapshot, FLAT]
    durability: str
    replayed: Annotated[bool, Field(description="It had the name before.")]


@dataclass(frozen=True, kw_only=True)
class SnapshotPage(Answer):
    """A session's named snapshots, oldest version first."""

    snapshots: Sequence[SessionSnapshot]


class ForkRequest(Request):
    """A copy of a session; what is left out is the source's, but for the name."""

    name: Name | None = Field(default=None, description="Unique among your sessions.")
    snapshot: Name | None = Field(default=None, description="Copy the session as it was then, not as it is.")
    ttl_seconds: TTLSeconds = None
    metadata: Metadata | None = Field(default=None, description="Your own notes.")
    min_version: MinVersionField = None


class ImportRequest(Request):
    """Make a session of an exported one. ``ttl_seconds`` None uses the server's default."""

    data: bytes
    name: str | None = None
    ttl_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExportedSession:
    """A session as a file, and the version that it shows."""

    session: str
    version: int
    data: bytes
