"""Schemas of what the session routes answer."""

from __future__ import annotations

from pydantic import Field, JsonValue

from rlstm_server.api.shapes import (
    AdaptationOut,
    ColumnsOut,
    GuardsField,
    NormRatioField,
    Shape,
    TotalsOut,
    UnitField,
    WeightsField,
)


class SessionTotalsOut(Shape):
    """Sums over the session's life, in bits."""

    tokens: int
    bytes: int
    static_bits: float | None = Field(description="Under the weights as loaded; null without a static row.")
    adapted_bits: float = Field(description="Under the session's own weights.")
    gain: float | None = Field(description="static_bits - adapted_bits: what learning saved.")
    updates: int = Field(description="Segments learned from.")
    guards: int = Field(description="Times that a guard acted.")


class AncestorOut(Shape):
    """Where a session's history began."""

    session: str
    version: int
    snapshot: str | None = Field(description="The name of that version, if the fork asked for it by name.")


class SnapshotOut(Shape):
    """A named snapshot, and where the session stood when it was taken. Times are seconds since 1970."""

    name: str
    version: int
    position: int
    created_at: float
    state_bytes: int
    totals: SessionTotalsOut


class TakenOut(SnapshotOut):
    """A version that has a name now."""

    durability: str
    replayed: bool = Field(description="It had the name before.")


class SnapshotsOut(Shape):
    """A session's named snapshots, oldest version first."""

    snapshots: list[SnapshotOut]


class SessionOut(Shape):
    """A session as the store has it. Times are seconds since 1970."""

    id: str
    name: str | None
    model: str | None = Field(
        description="As it was called where the session was last changed; null, as are the fingerprints, for"
        " a session of an older server."
    )
    fingerprint: str | None = Field(description="Of the model's weights and vocabulary.")
    adaptation_fingerprint: str | None = Field(description="Of its calibration.")
    version: int
    position: int = Field(description="Tokens read.")
    pending: int = Field(description="Characters held back until the word is complete; at most 4,096.")
    created_at: float
    expires_at: float | None
    state_bytes: int
    adaptation: AdaptationOut
    weights: WeightsField
    norm_ratio: NormRatioField
    totals: SessionTotalsOut
    metadata: dict[str, JsonValue]
    learning: bool = Field(description="Whether appends may learn.")
    forked_from: AncestorOut | None = Field(description="Of a fork or an import: where its history began.")


class AppendOut(ColumnsOut):
    """What an append did."""

    version: int
    position: int
    durability: str = Field(description="What the change survives: fsync, replica or memory.")
    replayed: bool = Field(description="The key was seen before: this is what happened then.")
    scores_stored: bool = Field(
        description="False of a repeat whose columns are no longer stored: the text was applied all the same."
    )
    unit: UnitField
    learn: bool = Field(description="Whether it could be learned from: asked for, and the session's is on.")
    updates: int = Field(description="Segments learned from.")
    guards: GuardsField
    weights: WeightsField
    norm_ratio: NormRatioField
    pending: int
    totals: TotalsOut | None = None
    expires_at: float | None


class CreatedOut(SessionOut):
    """The new session, with the answer to its first text."""

    numerics: str | None = Field(
        description="Equal ids give equal bits. Null where another server made the session, with a model that"
        " is not served here."
    )
    durability: str
    replayed: bool
    append: AppendOut | None = None


class SessionsOut(Shape):
    """A page of your sessions, oldest first."""

    sessions: list[SessionOut]
    cursor: str | None = Field(description="Fetches the next page; null at the end.")


class RankedOut(Shape):
    """One candidate's sums."""

    id: str
    logprob: float
    static_logprob: float | None = Field(
        description="Under the weights as loaded; null without a static row."
    )
    gain: float | None = Field(description="logprob - static_logprob: what learning saves.")
    tokens: int
    score: float
    static_score: float | None = Field(description="The same mix with static_logprob.")
    rank: int = Field(description="1 is the highest score.")
    static_rank: int | None = Field(description="1 is the highest static_score.")


class CandidatesOut(Shape):
    """The candidates in the order they were given."""

    version: int
    unit: UnitField
    candidates: list[RankedOut]


class ChangedOut(SessionOut):
    """A session after a change."""

    durability: str
    replayed: bool
