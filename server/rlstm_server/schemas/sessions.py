"""Schemas of sessions, of what is done to them, and of what they are copied to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlstm_server.engine.quotas import Caller
from rlstm_server.schemas.text import (
    AdaptationChoice,
    AdaptationRequest,
    Columns,
    EngineIdentity,
    GenerationSettings,
    Passage,
    Timings,
    Totals,
)

ScoreDetail = Literal["none", "totals", "tokens"]


@dataclass(frozen=True, kw_only=True)
class SessionTotals:
    """Sums over the life of a session, in nats. Static figures are None without a static reference."""

    tokens: int = 0
    bytes: int = 0
    adapted_nats: float = 0.0
    static_nats: float | None = 0.0
    updates: int = 0
    guards: int = 0

    @property
    def gain(self) -> float | None:
        """Nats saved by learning so far."""
        return None if self.static_nats is None else self.static_nats - self.adapted_nats


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """Where a session's history began: at a version, perhaps a named one, of another session."""

    session: str
    version: int
    snapshot: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """A session in the store. Times are seconds since 1970; ``pending`` counts held-back characters.

    model        as the server called it that wrote this; None for a session from before that was noted, as
                 are the fingerprints, of the model and of its calibration
    weights      of the mixture: how much each expert counts in the next prediction
    norm_ratio   of the fast weights to the slow ones, by their norms: the greatest of all experts
    learning     whether its appends may learn
    forked_from  of a fork, or of an import
    approx       some of it was computed by other numerics: the same to 1e-4 nats a token, not to the bit
    """

    id: str
    name: str | None
    version: int
    position: int
    created_at: float
    expires_at: float | None
    state_bytes: int
    adaptation: AdaptationChoice
    weights: tuple[float, ...]
    norm_ratio: float
    totals: SessionTotals
    pending: int
    metadata: Mapping[str, Any]
    learning: bool = True
    forked_from: Ancestor | None = None
    approx: bool = False
    model: str | None = None
    fingerprint: str | None = None
    adaptation_fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionPage:
    """A page of a tenant's sessions, oldest first; ``cursor`` fetches the next page, None at the end."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class CreateSession:
    """Make a session. ``first`` is appended at once.

    ``model`` None is the server's first, ``ttl_seconds`` None its default.
    """

    caller: Caller
    model: str | None = None
    name: str | None = None
    adaptation: AdaptationRequest = field(default_factory=AdaptationRequest)
    ttl_seconds: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    first: Passage | None = None
    scores: ScoreDetail = "tokens"
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class AppendRequest:
    """Score this text with the weights as they are, then learn from it.

    final      the text ends here: score the word in progress too
    key        the client's idempotency key
    if_match   refuse unless the session is at this version
    """

    caller: Caller
    session: str
    passage: Passage
    learn: bool = True
    final: bool = False
    scores: ScoreDetail = "tokens"
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class AppendAnswer:
    """What an append did. A replay older than the stored answers has totals but no columns.

    ``guards`` counts what was kept from happening, by name; ``weights`` and ``norm_ratio`` are those of the
    session afterwards, as in :class:`SessionInfo`. ``learn`` says whether the text could be learned from: it
    was to be, and the session's learning is on.
    """

    version: int
    position: int
    durability: str
    replayed: bool
    expires_at: float | None
    columns: Columns | None
    totals: Totals | None
    updates: int
    guards: Mapping[str, int]
    weights: tuple[float, ...]
    norm_ratio: float
    pending: int
    timings: Timings
    learn: bool = True


@dataclass(frozen=True, kw_only=True)
class CreatedSession:
    """A new session (or, replayed, the one the key made), and the answer to its first text.

    ``identity`` is None of a session that another server made with a model that is not served here.
    """

    info: SessionInfo
    identity: EngineIdentity | None
    append: AppendAnswer | None
    durability: str
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One continuation to rank; ``given`` is a score from elsewhere."""

    id: str
    passage: Passage
    given: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CandidateWeights:
    """score = lm * logprob + length * tokens + given * given."""

    lm: float = 1.0
    length: float = 0.0
    given: float = 0.0

    def score(self, logprob: float, tokens: int, given: float) -> float:
        """The mix."""
        return self.lm * logprob + self.length * tokens + self.given * given


@dataclass(frozen=True, kw_only=True)
class CandidatesRequest:
    """Rank continuations of a session; nothing changes. ``min_version`` refuses an older state."""

    caller: Caller
    session: str
    candidates: tuple[Candidate, ...]
    weights: CandidateWeights = field(default_factory=CandidateWeights)
    min_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankedCandidate:
    """One candidate's sums; rank 1 is the highest score, ties keep the order given.

    Static figures are what the weights as loaded would have made of it; None without a static reference.
    """

    id: str
    logprob: float
    static_logprob: float | None
    tokens: int
    score: float
    static_score: float | None
    rank: int
    static_rank: int | None

    @property
    def gain(self) -> float | None:
        """Nats saved by learning: adapted less static log-probability, as in :class:`Totals`."""
        return None if self.static_logprob is None else self.logprob - self.static_logprob


@dataclass(frozen=True, kw_only=True)
class CandidatesAnswer:
    """The candidates in the order they were given, and the version that was read."""

    version: int
    candidates: tuple[RankedCandidate, ...]
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class SessionGenerate:
    """Continue a session. ``commit`` keeps the text, ``learn_from_output`` also learns from it.

    ``after`` is the mark of the last event that the reader of a kept text has: he gets what comes after it.
    """

    caller: Caller
    session: str
    settings: GenerationSettings
    commit: bool = False
    learn_from_output: bool = False
    key: str | None = None
    if_match: int | None = None
    min_version: int | None = None
    after: str | None = None


ResetScope = Literal["fast_weights", "recurrent", "both"]


@dataclass(frozen=True, kw_only=True)
class ResetRequest:
    """Forget the fast weights, the recurrent state, or both; totals and position go on."""

    caller: Caller
    session: str
    scope: ResetScope
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """Change what was said of a session at its creation; None leaves a thing as it is."""

    caller: Caller
    session: str
    ttl_seconds: float | None = None
    metadata: Mapping[str, Any] | None = None
    learning: bool | None = None
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """Go back to a named snapshot: to its state, position and totals, under a new version."""

    caller: Caller
    session: str
    snapshot: str
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeAnswer:
    """The outcome of a change without scores."""

    info: SessionInfo
    durability: str
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Give the present version a name to go back to; no version is made."""

    caller: Caller
    session: str
    name: str
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class SessionSnapshot:
    """A named snapshot, and where the session stood when it was taken; seconds since 1970."""

    name: str
    version: int
    position: int
    created_at: float
    state_bytes: int
    totals: SessionTotals


@dataclass(frozen=True, kw_only=True)
class SnapshotAnswer:
    """A version that has a name now."""

    snapshot: SessionSnapshot
    durability: str
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """Copy a session, as it is or as it was at a snapshot. What is None is the source's, but for the name.

    ``min_version`` refuses an older state of the source.
    """

    caller: Caller
    session: str
    snapshot: str | None = None
    name: str | None = None
    ttl_seconds: float | None = None
    metadata: Mapping[str, Any] | None = None
    min_version: int | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Make a session of an exported one. ``ttl_seconds`` None uses the server's default."""

    caller: Caller
    data: bytes
    name: str | None = None
    ttl_seconds: float | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportedSession:
    """A session as a file: the version it shows, its size, and its bytes in pieces, to be read once."""

    session: str
    version: int
    size: int
    pieces: Iterator[bytes]
