"""Schemas of texts: scored, learned from, and continued.

All log-probabilities are natural logarithms of the raw model distribution: finite, at most 0, at least -9999.
Sums are float64. Spans are offsets in Unicode code points: of the item's own text in a stateless request, of
the whole stream in a session. Columns are equally long tuples, one entry a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Final, Literal, NotRequired, TypeAlias, TypeVar, get_args

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator
from typing_extensions import TypedDict

from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.adaptation.state import EXPERT_RATES, Adapt, ExpertConfig
from rlstm_server.schemas.wire import (
    COLUMN,
    FLAT,
    HIDDEN,
    LOG,
    OPTIONAL,
    Answer,
    Ids,
    ModelField,
    Request,
    Strict,
    TextField,
    TokensField,
    UnitField,
)

FirstToken = Literal["bos", "context", "session", "unscored"]
ScoreDetail = Literal["none", "totals", "tokens", "parts"]

DEFAULT_ADAPT: Final[Adapt] = "both"
"""What adapts unless something else is asked for."""


def _one_sentence(adapt: object) -> object:
    """Refuse in one sentence what each of the two types would refuse in one of its own."""
    if not isinstance(adapt, bool) and adapt not in get_args(Adapt):
        raise ValueError(f"must be true, false, or one of {', '.join(get_args(Adapt))}")
    return adapt


AdaptField = Annotated[StrictBool | Adapt, BeforeValidator(_one_sentence)]

DEFAULT_EXPERTS: Final = 2
"""Experts of a client that names no number and keeps the static one: that one, and one that learns."""

MAX_TOP: Final = 100
MAX_RATE_SCALE: Final = 10

# ---- texts ------------------------------------------------------------------------------------------------


Passage: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


class Given(Strict):
    """A text, or its ids."""

    text: TextField = None
    tokens: TokensField = None

    @model_validator(mode="after")
    def _check_given(self) -> Given:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("give either text or tokens")
        return self

    @property
    def passage(self) -> Passage:
        """The one of the two that was given."""
        return self.tokens or () if self.text is None else self.text


class Named(Given):
    """A text, or its ids, by an id."""

    id: str | None = Field(
        default=None, max_length=128, description="Comes back with the score; default: its index."
    )


NamedText = TypeVar("NamedText", bound=Named)


def named(texts: Sequence[NamedText]) -> Sequence[NamedText]:
    """The same texts, each with an id."""
    return [
        text if text.id is not None else text.model_copy(update={"id": str(index)})
        for index, text in enumerate(texts)
    ]


Timings = Mapping[str, float]
"""Seconds of a request by what they were spent on: the queue for the device, computing, the store."""


Log = Annotated[float | None, LOG, OPTIONAL]
"""A logarithm that may be absent."""

Logs = Annotated[tuple[float, ...] | None, LOG, OPTIONAL]
"""A column of them that may be absent."""


@dataclass(frozen=True, kw_only=True)
class Alternatives(Answer):
    """The most probable alternatives at each token, best first."""

    ids: Annotated[Sequence[Sequence[int]], COLUMN]
    logprobs: Annotated[Sequence[Sequence[float]], LOG]


@dataclass(frozen=True, kw_only=True)
class Columns(Answer):
    """Equally long arrays, one entry a token. Absent where `scores` asked for no tokens."""

    ids: Annotated[tuple[int, ...], COLUMN]
    logprobs: Annotated[tuple[float, ...], LOG]
    static_logprobs: Annotated[Logs, Field(description="Under the weights as loaded.")]
    ranks: Annotated[tuple[int, ...], COLUMN, Field(description="1 is the most probable token.")]
    entropies: Annotated[tuple[float, ...], LOG, Field(description="Of the whole distribution at the token.")]
    starts: Annotated[tuple[int, ...], COLUMN, Field(description="First code point of the token's span.")]
    ends: Annotated[tuple[int, ...], COLUMN, Field(description="Code point after the span.")]
    weights_logprobs: Annotated[
        Logs, Field(description="Under the weights as adapted, without the memory. With `scores: parts`.")
    ] = None
    memory_logprobs: Annotated[
        Logs,
        Field(description="Of the expert that blends the weights with the memory. With `scores: parts`."),
    ] = None
    space_logprobs: Annotated[
        Logs,
        Field(description="Of white space in the token's place: of all tokens together that begin with it."),
    ] = None
    static_space_logprobs: Annotated[Logs, Field(description="The same under the weights as loaded.")] = None
    top: Annotated[
        Alternatives | None,
        OPTIONAL,
        Field(description="The most probable tokens at each place, where they were asked for."),
    ] = None

    def asked(self, scores: ScoreDetail) -> Columns | None:
        """What of them an answer has that was asked for these scores."""
        if scores == "tokens":
            return replace(self, weights_logprobs=None, memory_logprobs=None)
        return self if scores == "parts" else None


@dataclass(frozen=True, kw_only=True)
class Totals(Answer):
    """Sums over the tokens of an answer."""

    logprob: Annotated[float, LOG, Field(description="Sum, in the answer's unit.")]
    static_logprob: Annotated[float | None, LOG, Field(description="The same under the weights as loaded.")]
    weights_logprob: Annotated[
        Log, Field(description="The same under the weights as adapted, where there is a memory beside them.")
    ] = None
    memory_logprob: Annotated[
        Log, Field(description="The same for the expert that blends the weights with the memory.")
    ] = None
    tokens: int
    bytes: Annotated[int, Field(description="Of the text in UTF-8.")]
    words: int
    unknown: Annotated[int, Field(description="Words outside the vocabulary.")]

    perplexity: Annotated[
        float | None, Field(description="exp of the mean loss a token; null for no tokens.")
    ]
    bits_per_byte: Annotated[
        float | None, Field(description="Mean loss in bits a UTF-8 byte; None for no bytes.")
    ]
    static_bits_per_byte: Annotated[
        float | None, Field(description="The same for the weights as loaded; None where they were not run.")
    ]
    gain: Annotated[float | None, LOG, Field(description="logprob - static_logprob: what learning saved.")]

    @classmethod
    def of(cls, columns: Columns, *, bytes: int, words: int, unknown: int) -> Totals:  # noqa: A002
        """Sum over tokens. The perplexity is kept finite."""
        logprob, tokens = sum(columns.logprobs), len(columns.ids)
        parts = columns.static_logprobs, columns.weights_logprobs, columns.memory_logprobs
        static, weights, memory = [None if column is None else sum(column) for column in parts]
        return cls(
            logprob=logprob,
            static_logprob=static,
            weights_logprob=weights,
            memory_logprob=memory,
            tokens=tokens,
            bytes=bytes,
            words=words,
            unknown=unknown,
            perplexity=math.exp(min(-logprob / tokens, 700.0)) if tokens else None,
            bits_per_byte=-logprob / math.log(2) / bytes if bytes else None,
            static_bits_per_byte=-static / math.log(2) / bytes if bytes and static is not None else None,
            gain=None if static is None else logprob - static,
        )


@dataclass(frozen=True, kw_only=True)
class EngineIdentity(Answer):
    """What the numbers depend on."""

    model: str
    fingerprint: Annotated[str, Field(description="SHA-256 of weights and vocabulary.")]
    adaptation_fingerprint: Annotated[str | None, Field(description="SHA-256 of the calibration.")]
    numerics: Annotated[str, Field(description="Equal ids give equal bits.")]


# ---- learning ---------------------------------------------------------------------------------------------


class AdaptationRequest(Strict):
    """How to learn. Segment and reduction come from the checkpoint, as do kinds and sizes: see `/info`."""

    kind: Kind | None = Field(
        default=None, description="What may change: of the checkpoint's rules; default: its first that fits."
    )
    num_fast_weights: int | None = Field(
        default=None, ge=1, lt=2**53, description="How many numbers that is: likewise."
    )
    experts: int | None = Field(
        default=None,
        json_schema_extra={"enum": [*EXPERT_RATES, None]},
        description=f"Learning rates that are mixed, of several the first static: {DEFAULT_EXPERTS} unless "
        "`static` is false.",
    )
    rate_scale: float = Field(
        default=1.0, ge=0, le=MAX_RATE_SCALE, description="Multiplies the calibrated rate; 0 never learns."
    )
    static: bool = Field(
        default=True, description="Carry the static reference, so that the gain is exact. Needed by experts."
    )
    adapt: Adapt | None = Field(
        default=None,
        description="What adapts: fast `weights`, a `memory` of the newest tokens beside frozen weights, or "
        f"`both`: {DEFAULT_ADAPT}, unless a single expert is asked for.",
    )

    @field_validator("experts")
    @classmethod
    def _check_experts(cls, experts: int | None) -> int | None:
        # A Literal would take 2.0 and true as well.
        if experts is not None and experts not in EXPERT_RATES:
            raise ValueError(f"must be one of {', '.join(map(str, EXPERT_RATES))}")
        return experts

    @model_validator(mode="after")
    def _check(self) -> AdaptationRequest:
        return self._fitting()

    def _fitting(self) -> AdaptationRequest:
        if self.experts is not None and self.experts > 1 and not self.static:
            raise ValueError(f"experts: {self.experts} of them include the static one: static must be true")
        try:
            _ = self.expert_config
        except ValueError as error:
            raise ValueError(f"adapt: {error}") from None
        return self

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that this asks for."""
        default = DEFAULT_EXPERTS if self.static and self.adapt != "memory" else 1
        experts = default if self.experts is None else self.experts
        usual: Adapt = DEFAULT_ADAPT if experts > 1 else "weights"
        return ExpertConfig(experts=experts, static=self.static, adapt=self.adapt or usual)

    @classmethod
    def of(cls, adapt: bool | Adapt, adaptation: AdaptationRequest | None) -> AdaptationRequest | None:
        """What the short form and the long one ask for together; None for nothing that adapts.

        Raises ValueError where they do not fit.
        """
        if isinstance(adapt, bool):
            return adaptation or (cls() if adapt else None)
        return (adaptation or cls()).model_copy(update={"adapt": adapt})._fitting()


@dataclass(frozen=True, kw_only=True)
class AdaptationChoice(Answer):
    """How a text is learned from, with nothing left open."""

    kind: Kind
    num_fast_weights: Annotated[int, Field(description="Numbers that each expert may change.")]
    experts: int
    rate_scale: float
    static: bool
    adapt: Annotated[Adapt, Field(description="Fast weights, a memory of the newest tokens, or both.")]
    rates: Annotated[
        tuple[float, ...], Field(description="The learning rate of each expert; the static one's is 0.")
    ]

    @classmethod
    def of(cls, rule: AdaptationConfig, expert_config: ExpertConfig, rate_scale: float) -> AdaptationChoice:
        """Learning by a checkpoint's rule with these rows."""
        learning = [rule.rate * rate_scale * factor for factor in expert_config.rates]
        return cls(
            kind=rule.kind,
            num_fast_weights=rule.num_fast_weights,
            experts=expert_config.experts,
            rate_scale=rate_scale,
            static=expert_config.static,
            adapt=expert_config.adapt,
            rates=(*(0.0 for _ in range(expert_config.experts - len(learning))), *learning),
        )

    @property
    def expert_config(self) -> ExpertConfig:
        """The rows that read the text."""
        return ExpertConfig(experts=self.experts, static=self.static, adapt=self.adapt)


GuardsField = Annotated[
    Mapping[str, int],
    Field(
        description="What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` "
        "(once a row); `reset`, `frozen` (once a segment)."
    ),
]

# ---- scoring ----------------------------------------------------------------------------------------------

ContextField = Annotated[
    str,
    Field(
        description="Read before the text and scored against; not reported. Made into tokens apart from the "
        "text, whose `ids` may be others than those it has in the two joined."
    ),
]
ContextTokensField = Annotated[Ids, Field(description="The same as ids; not together with `context`.")]


SpacesField = Annotated[
    bool, Field(description="Also how probable white space was in each token's place: where a word ends.")
]


class ScoreItem(Named):
    """One text, or its ids."""

    context: ContextField = ""
    context_tokens: ContextTokensField = Field(default=[])

    @model_validator(mode="after")
    def _check_context(self) -> ScoreItem:
        if self.context and self.context_tokens:
            raise ValueError("give either context or context_tokens")
        return self

    @property
    def before(self) -> Passage:
        """What is read before the text; empty for nothing."""
        return self.context or self.context_tokens

    @property
    def most_tokens(self) -> int:
        """An upper bound of the tokens in text and context: no vocabulary has more tokens than bytes."""
        given = (self.text or "", self.context)
        texts = sum(len(text if text.isascii() else text.encode("utf-8")) for text in given)
        return texts + len(self.tokens or ()) + len(self.context_tokens)


class ScoreRequest(Request):
    """Up to 256 items; or, in short, the fields of one item in their place."""

    items: Annotated[list[ScoreItem], Field(fail_fast=True)] | None = Field(
        default=None, min_length=1, description="The texts to score."
    )
    text: TextField = None
    tokens: TokensField = None
    context: ContextField = ""
    context_tokens: ContextTokensField = Field(default=[])
    model: ModelField = None
    unit: UnitField = "nats"
    scores: Literal["totals", "tokens", "parts"] = Field(
        default="tokens",
        description="Per-token columns, or sums only; `parts`: those of weights and memory as well.",
    )
    words: bool = Field(
        default=False, description="Also sums over words. The white space before a word belongs to that word."
    )
    top: int = Field(
        default=0, ge=0, le=MAX_TOP, description="Most probable alternatives to report at each token."
    )
    spaces: SpacesField = False
    adapt: AdaptField = Field(default=False, description="Learn inside each item, from the base weights.")
    adaptation: AdaptationRequest | None = Field(default=None, description="How; implies `adapt`.")

    @model_validator(mode="after")
    def _check_items(self) -> ScoreRequest:
        if self.items is None:
            if (self.text is None) == (self.tokens is None):
                raise ValueError("give either text or tokens")
            _ = self.named_items  # checked here, beside the event loop
        elif self.text is not None or self.tokens is not None or self.context or self.context_tokens:
            raise ValueError("give either items, or text or tokens")
        _ = self.learning
        return self

    @cached_property
    def named_items(self) -> Sequence[ScoreItem]:
        """The items, one for the short form, each with an id."""
        items = self.items
        if items is None:
            short = ScoreItem(
                text=self.text,
                tokens=self.tokens,
                context=self.context,
                context_tokens=self.context_tokens,
            )
            items = [short]
        return named(items)

    @property
    def learning(self) -> AdaptationRequest | None:
        """How the items are learned from; None for not at all."""
        return AdaptationRequest.of(self.adapt, self.adaptation)


class WordScore(TypedDict):
    """One word's sum. The white space before a word belongs to it; trailing white space is an entry."""

    start: int
    end: int
    tokens: Annotated[int, Field(description="How many of them start in the word.")]
    logprob: float
    static_logprob: NotRequired[float]


@dataclass(frozen=True, kw_only=True)
class ItemScores(Answer):
    """One item's scores."""

    # `text` is the item's (decoded when tokens were given): spans refer to it.

    id: str
    first_token: Annotated[FirstToken, Field(description="What token 0 was scored against.")]
    text: Annotated[str, HIDDEN]
    columns: Annotated[Columns | None, FLAT, OPTIONAL]
    bytes: Annotated[
        Sequence[list[int] | None] | None,
        COLUMN,
        OPTIONAL,
        Field(description="Of each token that is not valid UTF-8 by itself; absent where all are."),
    ] = None
    words: Annotated[Sequence[WordScore] | None, COLUMN, OPTIONAL] = None
    totals: Totals
    updates: Annotated[int, Field(description="Segments learned from inside the item.")]
    guards: GuardsField


@dataclass(frozen=True, kw_only=True)
class ScoreAnswer(Answer):
    """The items in the order they were given, and how they were learned from, if they were."""

    identity: Annotated[EngineIdentity, FLAT]
    unit: UnitField = "nats"
    adaptation: Annotated[
        AdaptationChoice | None,
        OPTIONAL,
        Field(description="How the items were learned from; absent where they were not."),
    ]
    items: tuple[ItemScores, ...]
    timings: Annotated[Timings, HIDDEN]
