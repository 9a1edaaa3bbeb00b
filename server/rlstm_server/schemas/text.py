"""Schemas of texts: scored, learned from, and continued."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from rlstm_model.adaptation.adapted_state import ExpertConfig
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.sampling import SamplingConfig
from rlstm_server.engine.quotas import Caller


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Text or token ids, exactly one of the two."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("a passage has either text or tokens")


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


DEFAULT_EXPERTS: Final = 2
"""Experts of a client that names no number and keeps the static one: that one, and one that learns."""


@dataclass(frozen=True, kw_only=True)
class AdaptationRequest:
    """What a client may ask of learning; everything else comes from the checkpoint.

    kind         of the fast weights, and
    num_fast_weights  how many: of the rules that the checkpoint has; None takes its first that fits
    experts      how many learning rates are mixed, the static one included; None takes the default
    rate_scale   multiplies the calibrated learning rate, 0 to 10; 0 never learns
    static       carry the static reference, so that static log-probs and the gain are exact
    """

    kind: Kind | None = None
    num_fast_weights: int | None = None
    experts: int | None = None
    rate_scale: float = 1.0
    static: bool = True

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that this asks for. Raises ValueError for a number of experts that cannot be."""
        default = DEFAULT_EXPERTS if self.static else 1
        return ExpertConfig(experts=default if self.experts is None else self.experts, static=self.static)


@dataclass(frozen=True, kw_only=True)
class AdaptationChoice:
    """How a text is learned from, with nothing left open; see :class:`AdaptationRequest`.

    rates  the learning rate of each expert, in the order of their weights; the static one's is 0
    """

    kind: Kind
    num_fast_weights: int
    experts: int
    rate_scale: float
    static: bool
    rates: tuple[float, ...]

    @classmethod
    def of(cls, rule: AdaptationConfig, expert_config: ExpertConfig, rate_scale: float) -> "AdaptationChoice":
        """Learning by a checkpoint's rule with these rows."""
        learning = [rule.rate * rate_scale * factor for factor in expert_config.rates]
        return cls(
            kind=rule.kind,
            num_fast_weights=rule.num_fast_weights,
            experts=expert_config.experts,
            rate_scale=rate_scale,
            static=expert_config.static,
            rates=(*(0.0 for _ in range(expert_config.experts - len(learning))), *learning),
        )

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that read the text."""
        return ExpertConfig(experts=self.experts, static=self.static)


FirstToken = Literal["bos", "context", "session", "unscored"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class ScoreItem:
    """One text to score; the context comes before it and is not reported."""

    id: str
    passage: Passage
    context: Passage | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score items, each on its own. With ``adaptation`` each also learns, from the base weights.

    ``model`` None is the server's first, here as in all requests.
    """

    caller: Caller
    model: str | None = None
    items: tuple[ScoreItem, ...]
    top: int = 0
    adaptation: AdaptationRequest | None = None


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """One item's answer. ``text`` is the item's text (decoded when tokens were given): spans refer to it.

    ``guards`` counts what was kept from happening, by name.
    """

    id: str
    first_token: FirstToken
    text: str
    columns: Columns
    totals: Totals
    updates: int
    guards: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ScoreAnswer:
    """The items in the order they were given, and how they were learned from, if they were."""

    items: tuple[ItemScores, ...]
    adaptation: AdaptationChoice | None
    timings: Timings


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
    model: str | None = None
    prompt: Passage
    settings: GenerationSettings


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One new token. ``text`` is what it completes: empty in the middle of a character.

    ``top`` are the most probable ids at its place, best first, where they were asked for. ``mark`` names the
    event to a reader who may want to go on after it; None where nobody can.
    """

    choice: int
    index: int
    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    mark: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndEvent:
    """One choice is complete. ``version`` and ``position`` are set where the text was kept in a session.

    ``identity`` is that of a session's model; None where the request names the model, and of a text that was
    kept before with one that is not served here.
    """

    choice: int
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seed: int
    version: int | None = None
    position: int | None = None
    durability: str | None = None
    replayed: bool = False
    identity: EngineIdentity | None = None


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """Read prompts, score them, and continue each, from the weights as loaded.

    prompts     an empty text is the beginning of all text
    bos         whether it comes before all others too; without it a prompt's first token is not scored
    top         how many alternatives are told of each token
    settings    `max_tokens` may be 0: nothing is written then
    adaptation  learns from each prompt as it is read, and not from what is written
    """

    caller: Caller
    model: str | None = None
    prompts: tuple[Passage, ...]
    settings: GenerationSettings
    bos: bool = False
    top: int = 0
    adaptation: AdaptationRequest | None = None


@dataclass(frozen=True, kw_only=True)
class PromptEvent:
    """A prompt was read. Its columns have an entry for each of its tokens.

    prompt      which one
    tokens      how many were read, bos included
    unfinished  what its last ids read as when nothing completes their character; not in ``text``
    starts      code points of ``text``
    logprobs    None for a first token that nothing is scored against
    """

    prompt: int
    tokens: int
    text: str
    unfinished: str
    first_token: FirstToken
    ids: tuple[int, ...]
    starts: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


GenerationEvent: TypeAlias = TokenEvent | EndEvent
CompletionEvent: TypeAlias = PromptEvent | GenerationEvent
"""Choice k of prompt p is numbered p x choices + k."""
