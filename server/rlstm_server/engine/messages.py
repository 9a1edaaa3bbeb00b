"""The frozen nouns that travel between the HTTP layer and the engine.

All log-probabilities are natural logarithms of the raw model distribution: finite, at most 0, at least -9999.
Sums are float64. Spans are offsets in Unicode code points: of the item's own text in a stateless request, of
the whole stream in a session. Columns are equally long tuples, one entry a token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rlstm_model.sampling import SamplingConfig

ScoreDetail = Literal["none", "totals", "tokens"]
FirstToken = Literal["bos", "context", "session"]
FinishReason = Literal["stop", "length"]
ResetScope = Literal["fast_weights", "recurrent", "both"]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Text or token ids, exactly one of the two."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("a passage has either text or tokens")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the tenant that owns what is made, and the request's id for the log.

    ``endpoint`` is the route's template from a closed set; it labels the queue-time metric.
    """

    tenant: str
    request_id: str
    endpoint: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class AdaptationChoice:
    """What a client may choose about learning; everything else comes from the checkpoint.

    kind        the kind of fast weights
    rate_scale  multiplies the calibrated learning rate, 0 to 10; 0 never learns
    static      carry the static reference, so that static log-probs and the gain are exact
    """

    kind: Literal["full"] = "full"
    rate_scale: float = 1.0
    static: bool = True


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds spent waiting for the device, computing on it, and waiting for the store."""

    queue: float = 0.0
    compute: float = 0.0
    store: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Per-token data. ``static_logprobs`` is None without a static reference, ``top`` where not asked for."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    static_logprobs: tuple[float, ...] | None
    ranks: tuple[int, ...]
    entropies: tuple[float, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the tokens of one answer: nats, and counts of tokens, UTF-8 bytes and words."""

    logprob: float
    static_logprob: float | None
    tokens: int
    bytes: int
    words: int
    unknown: int

    @property
    def perplexity(self) -> float | None:
        """The exponential of the mean loss a token, kept finite; None for no tokens."""
        return math.exp(min(-self.logprob / self.tokens, 700.0)) if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Mean loss in bits a UTF-8 byte; None for no bytes."""
        return _bits_per_byte(self.logprob, self.bytes)

    @property
    def static_bits_per_byte(self) -> float | None:
        """The same for the weights as loaded; None where they were not run."""
        return None if self.static_logprob is None else _bits_per_byte(self.static_logprob, self.bytes)

    @property
    def gain(self) -> float | None:
        """Nats saved by learning: adapted less static log-probability; None without a static reference."""
        return None if self.static_logprob is None else self.logprob - self.static_logprob


def _bits_per_byte(logprob: float, count: int) -> float | None:
    return -logprob / math.log(2) / count if count else None


# ---- stateless scoring ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScoreItem:
    """One text to score; the context comes before it and is not reported."""

    id: str
    passage: Passage
    context: Passage | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score items, each on its own. With ``adaptation`` each also learns, from the base weights."""

    caller: Caller
    items: tuple[ScoreItem, ...]
    top: int = 0
    adaptation: AdaptationChoice | None = None


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """One item's answer. ``text`` is the item's text (decoded when tokens were given): spans refer to it."""

    id: str
    first_token: FirstToken
    text: str
    columns: Columns
    totals: Totals
    updates: int
    guards: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScoreAnswer:
    """The items in the order they were given."""

    items: tuple[ItemScores, ...]
    timings: Timings


# ---- generation -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to continue a text.

    max_tokens  at most so many new tokens a choice
    seed        None draws one; the same seed gives the same text
    choices     how many continuations (always 1 in a session)
    stop        strings that end the text; they are not part of it
    """

    max_tokens: int
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int | None = None
    choices: int = 1
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """Continue a prompt; an empty one means the beginning of a text."""

    caller: Caller
    prompt: Passage
    settings: GenerationSettings


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One new token. ``text`` is what it completes: empty in the middle of a character."""

    choice: int
    index: int
    id: int
    text: str
    logprob: float


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """One choice is complete. ``version`` and ``position`` are set where the text was kept in a session."""

    choice: int
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seed: int
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False


GenerationEvent: TypeAlias = TokenEvent | EndEvent


# ---- sessions ---------------------------------------------------------------------------------------------


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
class SessionInfo:
    """A session in the store. Times are seconds since 1970; ``pending`` counts held-back characters."""

    id: str
    name: str | None
    version: int
    position: int
    created_at: float
    expires_at: float | None
    state_bytes: int
    adaptation: AdaptationChoice
    totals: SessionTotals
    pending: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionPage:
    """A page of a tenant's sessions, newest first; ``cursor`` fetches the next page, None at the end."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class CreateSession:
    """Make a session. ``ttl_seconds`` None uses the server's default; ``first`` is appended at once."""

    caller: Caller
    name: str | None = None
    adaptation: AdaptationChoice = AdaptationChoice()
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
    """What an append did. A replay older than the stored answers has totals but no columns."""

    version: int
    position: int
    durability: str
    replayed: bool
    expires_at: float | None
    columns: Columns | None
    totals: Totals | None
    updates: int
    guards: tuple[str, ...]
    pending: int
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class CreatedSession:
    """A new session (or, replayed, the one the key made), and the answer to its first text."""

    info: SessionInfo
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


@dataclass(frozen=True, kw_only=True)
class CandidatesRequest:
    """Rank continuations of a session; nothing changes. ``min_version`` refuses an older state."""

    caller: Caller
    session: str
    candidates: tuple[Candidate, ...]
    weights: CandidateWeights = CandidateWeights()
    min_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankedCandidate:
    """One candidate's sums; rank 1 is the highest score, ties keep the order given."""

    id: str
    logprob: float
    tokens: int
    score: float
    rank: int


@dataclass(frozen=True, kw_only=True)
class CandidatesAnswer:
    """The candidates in the order they were given, and the version that was read."""

    version: int
    candidates: tuple[RankedCandidate, ...]
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class SessionGenerate:
    """Continue a session. ``commit`` keeps the text, ``learn_from_output`` also learns from it."""

    caller: Caller
    session: str
    settings: GenerationSettings
    commit: bool = False
    learn_from_output: bool = False
    key: str | None = None
    if_match: int | None = None
    min_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class ResetRequest:
    """Forget the fast weights, the recurrent state, or both; totals and position go on."""

    caller: Caller
    session: str
    scope: ResetScope
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeAnswer:
    """The outcome of a change without scores."""

    info: SessionInfo
    durability: str
    replayed: bool


# ---- the server -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Everything that multiplies has a limit; going over one is TooLarge, naming both numbers."""

    append_tokens: int = 65_536
    score_items: int = 256
    score_tokens: int = 4_194_304
    top: int = 100
    candidates: int = 256
    candidate_tokens: int = 65_536
    max_tokens: int = 65_536
    prompt_tokens: int = 65_536
    choices: int = 16
    stop_strings: int = 16
    stop_characters: int = 256
    queued_jobs: int = 1_024
    queued_operations_per_session: int = 64


@dataclass(frozen=True, kw_only=True)
class EngineIdentity:
    """What the numbers depend on."""

    model: str
    fingerprint: str
    adaptation_fingerprint: str | None
    numerics: str
