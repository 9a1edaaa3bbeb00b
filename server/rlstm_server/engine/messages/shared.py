"""Nouns of every request and answer: passages, callers, columns, sums, limits."""

import math
from dataclasses import dataclass

from rlstm_server.engine.quotas import UNLIMITED, Allowance


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

    ``endpoint`` is the route's template from a closed set; it labels the queue-time metric. ``allowance`` is
    what the caller's key may use up.
    """

    tenant: str
    request_id: str
    endpoint: str = "unknown"
    allowance: Allowance = UNLIMITED


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


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Everything that multiplies has a limit; going over one is TooLarge, naming both numbers.

    `state_bytes` are those that a session may come to: now and then its state is written whole. One tenant
    may fill three quarters of `queued_jobs`: those of a thousand sessions fit. When `reader_events` or
    `reader_bytes` wait for the reader of a stream, no more are made before he has taken them all, for which
    he has `reader_seconds`.
    """

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
    state_bytes: int = 256 * 2**20
    queued_jobs: int = 2_048
    queued_operations_per_session: int = 64
    reader_events: int = 256
    reader_bytes: int = 2**20
    reader_seconds: float = 10.0


@dataclass(frozen=True, kw_only=True)
class EngineIdentity:
    """What the numbers depend on."""

    model: str
    fingerprint: str
    adaptation_fingerprint: str | None
    numerics: str
