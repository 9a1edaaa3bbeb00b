"""What the server answers, as frozen values.

Every class keeps members that this release does not know in ``extra``, so a newer server breaks nothing.
Per-token data are columns: sequences of the same length, one entry a token. Log-probabilities are in the
answer's ``unit`` (nats unless asked otherwise); ``starts`` and ``ends`` are offsets in Unicode code points.
Times are seconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["nats", "bits", "log10"]
Scores = Literal["none", "totals", "tokens"]
Kind = Literal["full", "subspace", "sparse", "output_bias"]


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a text is learned from: the fast weights' kind and size, and the experts that are mixed.

    ``rates`` are the experts' learning rates, 0 for the static one, in the order of a session's ``weights``.
    """

    kind: str
    num_fast_weights: int
    experts: int = 1
    rate_scale: float = 1.0
    static: bool = True
    rates: Sequence[float] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the tokens of a text; ``static_…`` and ``gain`` compare with the weights as loaded."""

    logprob: float
    tokens: int
    bytes: int
    words: int | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    unknown: int = 0
    static_logprob: float | None = None
    static_bits_per_byte: float | None = None
    gain: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """The most probable tokens in each token's place, best first: one row a token."""

    ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WordScore:
    """One word's sum over its ``tokens`` tokens. The white space before a word belongs to it."""

    start: int
    end: int
    tokens: int
    logprob: float
    static_logprob: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScoredItem:
    """One scored text; columns are empty where they were not asked for.

    ``first_token`` says what token 0 was scored against. ``bytes`` holds those of tokens that are no text by
    themselves, None for the others; it is empty where all are. ``updates`` and ``guards`` tell of learning.
    """

    totals: Totals
    first_token: str | None = None
    id: str | None = None
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    static_logprobs: Sequence[float] = ()
    ranks: Sequence[int] = ()
    entropies: Sequence[float] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    bytes: Sequence[Sequence[int] | None] = ()
    top: Alternatives | None = None
    words: Sequence[WordScore] = ()
    updates: int = 0
    guards: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The answer of `score`, and which numbers these are; ``adaptation`` says how the texts were learned."""

    items: Sequence[ScoredItem]
    model: str = ""
    fingerprint: str = ""
    adaptation_fingerprint: str | None = None
    numerics: str = ""
    unit: Unit = "nats"
    adaptation: Adaptation | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several continuations."""

    index: int
    text: str
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish_reason: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generated text. Of several continuations this is the first, and ``choices`` holds them all.

    ``seed`` gives the same text again; ``version`` and ``position`` are those of a session that keeps it.
    """

    text: str
    model: str = ""
    fingerprint: str = ""
    adaptation_fingerprint: str | None = None
    numerics: str = ""
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish_reason: str | None = None
    seed: int | None = None
    unit: Unit = "nats"
    usage: Mapping[str, Any] = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """The next token of choice ``index``, and the text it completes: none in the middle of a character."""

    text: str
    id: int
    index: int = 0
    step: int = 0
    logprob: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """The end of choice ``index`` of a stream; the other fields mean what they mean in `Generation`."""

    finish_reason: str
    index: int = 0
    seed: int | None = None
    unit: Unit = "nats"
    usage: Mapping[str, Any] = field(default_factory=dict)
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


Event = TokenEvent | EndEvent


@dataclass(frozen=True, kw_only=True)
class SessionTotals:
    """What a session has read so far, and what learning saved: ``gain`` is static minus adapted bits."""

    tokens: int = 0
    bytes: int = 0
    updates: int = 0
    guards: int = 0
    static_bits: float | None = None
    adapted_bits: float | None = None
    gain: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """Where the history of a fork or an import began; ``snapshot`` is that version's name, if it had one."""

    session: str
    version: int
    snapshot: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """A session as the server describes it; ``append`` answers the text given at create.

    ``weights`` say how much each expert counts in the next prediction, ``norm_ratio`` how large the fast
    weights are beside the loaded ones; ``learning`` says whether appends may learn. Of a session that is
    ``approx`` other numerics computed a part: its scores are the same to 1e-4 nats a token, not to the bit.
    ``model`` and the fingerprints say what computes it; ``numerics`` is told of a session that was just made.
    """

    id: str
    version: int
    position: int
    name: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    adaptation_fingerprint: str | None = None
    numerics: str | None = None
    created_at: float | None = None
    expires_at: float | None = None
    state_bytes: int | None = None
    pending: int = 0
    adaptation: Adaptation | None = None
    weights: Sequence[float] = ()
    norm_ratio: float | None = None
    totals: SessionTotals = field(default_factory=SessionTotals)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    forked_from: Ancestor | None = None
    approx: bool = False
    durability: str | None = None
    replayed: bool = False
    append: "AppendResult | None" = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A version of a session that was given a name, and where the session stood then."""

    name: str
    version: int
    position: int
    created_at: float | None = None
    state_bytes: int | None = None
    totals: SessionTotals = field(default_factory=SessionTotals)
    durability: str | None = None
    replayed: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SessionPage:
    """One page of sessions; ``cursor`` fetches the next, None at the end."""

    sessions: Sequence[SessionInfo]
    cursor: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AppendResult:
    """The text as the session foresaw it, scored before it was learned, and the session afterwards.

    ``learn`` says whether the text could be learned from: the session's learning may be off. ``updates``
    counts the segments learned from, ``guards`` what kept that in bounds, by name, ``pending``
    characters held back until their word is complete; ``durability`` says what the change survives, and
    ``weights`` and ``norm_ratio`` are the session's afterwards.
    """

    version: int
    position: int
    durability: str | None = None
    replayed: bool = False
    learn: bool = True
    updates: int = 0
    guards: Mapping[str, int] = field(default_factory=dict)
    weights: Sequence[float] = ()
    norm_ratio: float | None = None
    pending: int = 0
    totals: Totals | None = None
    unit: Unit = "nats"
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    static_logprobs: Sequence[float] = ()
    ranks: Sequence[int] = ()
    entropies: Sequence[float] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    expires_at: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One candidate of a session's ranking; rank 1 is the best.

    ``static_logprob``, ``static_score`` and ``static_rank`` are what the weights as loaded make of it, after
    the same text; None in a session that has no static row. ``gain`` is what learning saves.
    """

    logprob: float
    score: float
    rank: int
    tokens: int = 0
    id: str | None = None
    static_logprob: float | None = None
    gain: float | None = None
    static_score: float | None = None
    static_rank: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Candidates scored against one version of a session, in the order they were given."""

    version: int
    candidates: Sequence[Candidate]
    unit: Unit = "nats"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        """The candidate of rank 1."""
        return min(self.candidates, key=lambda candidate: candidate.rank)

    @property
    def static_best(self) -> Candidate | None:
        """The one that the weights as loaded would choose; None in a session that has no static row."""
        return next((one for one in self.candidates if one.static_rank == 1), None)


@dataclass(frozen=True, kw_only=True)
class Health:
    """Live or ready; the unready server is an `UnavailableError`."""

    status: str = "ok"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """What is to be known of a vocabulary; ``add_bos_token`` says whether bos is read before every text."""

    model: str
    kind: str
    vocab_size: int
    bos_token: str
    bos_token_id: int
    eos_token: str
    eos_token_id: int
    pad_token: str | None = None
    add_bos_token: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """What the server runs: the model card, limits and defaults stay as the server names them.

    ``models`` are all that can be asked for, ``model`` is the first of them. ``adaptation`` has the rules
    that a session of that one can ask for, the default first, with the bytes it takes.
    """

    model: Any = None
    fingerprint: str | None = None
    version: str | None = None
    models: Sequence[Mapping[str, Any]] = ()
    adaptation: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
