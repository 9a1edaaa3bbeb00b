"""Schemas that several routes share. Every field says its unit, its bounds and its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticKnownError

from rlstm_model.adaptation.adapted_state import EXPERT_RATES
from rlstm_model.adaptation.config import Kind
from rlstm_server.api.answers import Unit
from rlstm_server.schemas import DEFAULT_EXPERTS, AdaptationRequest, Passage

UnitField = Annotated[Unit, Field(description="Of every log-probability, entropy and gain in the answer.")]
ModelField = Annotated[
    str | None,
    Field(min_length=1, max_length=256, description="Of those that `/info` names; default: the first."),
]
PIECE = 16_384
"""Ids that are looked at in one call: others wait meanwhile."""


def _some(text: str) -> str:
    """Refuse an empty text. A length that pydantic looks at is counted in a copy of the text."""
    if not text:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return text


def _in_pieces(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Read ids. Many are looked at in pieces, and not copied."""
    if not isinstance(value, list) or len(value) <= PIECE:
        return read(value)
    for start in range(0, len(value), PIECE):
        piece = value[start : start + PIECE]
        if set(map(type, piece)) != {int}:
            index = next(index for index, token in enumerate(piece, start) if type(token) is not int)
            fault = InitErrorDetails(type="int_type", loc=(index,), input=None)
            raise ValidationError.from_exception_data("ids", [fault], hide_input=True)
    return value


TextField = Annotated[
    Annotated[str, AfterValidator(_some), Field(json_schema_extra={"minLength": 1})] | None,
    Field(description="Text. Give this or `tokens`."),
]
Ids = Annotated[list[int], Field(fail_fast=True), WrapValidator(_in_pieces)]
"""Of a million ids that are none the first is told: every list of a request is read so."""

TokensField = Annotated[
    Annotated[list[int], Field(min_length=1, fail_fast=True), WrapValidator(_in_pieces)] | None,
    Field(description="Ids of the model's vocabulary. Give this or `text`."),
]


class Strict(BaseModel):
    """A request: no conversion of types, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Shape(BaseModel):
    """An answer, as documented; handlers write it directly."""

    model_config = ConfigDict(extra="forbid")


class AdaptationIn(Strict):
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
        default=1.0, ge=0, le=10, description="Multiplies the calibrated rate; 0 never learns."
    )
    static: bool = Field(
        default=True, description="Carry the static reference, so that the gain is exact. Needed by experts."
    )

    @field_validator("experts")
    @classmethod
    def _check_experts(cls, experts: int | None) -> int | None:
        # A Literal would take 2.0 and true as well.
        if experts is not None and experts not in EXPERT_RATES:
            raise ValueError(f"must be one of {', '.join(map(str, EXPERT_RATES))}")
        return experts

    @model_validator(mode="after")
    def _check(self) -> AdaptationIn:
        if self.experts is not None and self.experts > 1 and not self.static:
            raise ValueError(f"experts: {self.experts} of them include the static one: static must be true")
        return self

    def request(self) -> AdaptationRequest:
        """Give the engine's form."""
        return AdaptationRequest(
            kind=self.kind,
            num_fast_weights=self.num_fast_weights,
            experts=self.experts,
            rate_scale=self.rate_scale,
            static=self.static,
        )


class AdaptationOut(Shape):
    """How a text is learned from."""

    kind: Kind
    num_fast_weights: int = Field(description="Numbers that each expert may change.")
    experts: int
    rate_scale: float
    static: bool
    rates: list[float] = Field(description="The learning rate of each expert; the static one's is 0.")


GuardsField = Annotated[
    dict[str, int],
    Field(
        description="What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` "
        "(once a row); `reset`, `frozen` (once a segment)."
    ),
]
WeightsField = Annotated[
    list[float], Field(description="How much each expert counts in the next prediction; they sum to 1.")
]
NormRatioField = Annotated[
    float, Field(description="Norm of the fast weights over that of the loaded ones: the greatest expert's.")
]


class TotalsOut(Shape):
    """Sums over the tokens of an answer."""

    logprob: float = Field(description="Sum, in the answer's unit.")
    static_logprob: float | None = Field(description="The same under the weights as loaded.")
    tokens: int
    bytes: int = Field(description="Of the text in UTF-8.")
    words: int
    unknown: int = Field(description="Words outside the vocabulary.")
    perplexity: float | None = Field(description="exp of the mean loss a token; null for no tokens.")
    bits_per_byte: float | None
    static_bits_per_byte: float | None
    gain: float | None = Field(description="logprob - static_logprob: what learning saved.")


class TopOut(Shape):
    """The most probable alternatives at each token, best first."""

    ids: list[list[int]]
    logprobs: list[list[float]]


class ColumnsOut(Shape):
    """Equally long arrays, one entry a token. Absent where `scores` did not ask for tokens."""

    ids: list[int] | None = None
    logprobs: list[float] | None = None
    static_logprobs: list[float] | None = Field(default=None, description="Under the weights as loaded.")
    ranks: list[int] | None = Field(default=None, description="1 is the most probable token.")
    entropies: list[float] | None = Field(default=None, description="Of the whole distribution at the token.")
    starts: list[int] | None = Field(default=None, description="First code point of the token's span.")
    ends: list[int] | None = Field(default=None, description="Code point after the span.")
    top: TopOut | None = None


class IdentityOut(Shape):
    """What the numbers depend on."""

    model: str
    fingerprint: str = Field(description="SHA-256 of weights and vocabulary.")
    adaptation_fingerprint: str | None = Field(description="SHA-256 of the calibration.")
    numerics: str = Field(description="Equal ids give equal bits.")


class ProblemOut(BaseModel):
    """An error (RFC 9457). The last part of `type` names it for programs."""

    type: str
    title: str
    status: int
    detail: str
    applied: Literal["no", "yes", "unknown"] = Field(
        description="Whether the change took effect. Of a request with a key it is `no` only where no earlier"
        " one with that key can have done it; where it is `unknown`, a repeat with the same key tells."
    )
    request_id: str


PROBLEMS: Mapping[int, str] = {
    400: "Not strict JSON; text that is no text; ids outside the vocabulary.",
    401: "No key, or a wrong one.",
    403: "The key may not do this.",
    404: "Unknown, or somebody else's.",
    408: "The request did not arrive in time, or its answer was not read in time.",
    409: "The session, a name, a key or the server is in a state that forbids it; `type` says which.",
    410: "Deleted or expired within the last 24 hours.",
    412: "The session is at another version, which `version` tells.",
    413: "Over a limit; both numbers are named.",
    415: "The body is not declared as what the route reads.",
    422: "A field is wrong, or the idempotency key was used with another body.",
    426: "It is reached over a WebSocket, and this was none: a proxy may have made it a plain request.",
    429: "Your quota is used up.",
    500: "A fault of the server, logged with the request id; or the stored state cannot be used.",
    503: "Overloaded, draining, or the store is down or full; or committed less durably than asked.",
    504: "Whether it was applied is not known: repeat it with the same key.",
}
"""Every status of a problem document but that of a wrong method."""

ALWAYS = (401, 403, 408, 413, 429, 500, 503)
BODY = (400, 415, 422)
SESSION = (404, 409, 410, 412, 422, 504)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route refuses with: these statuses, and those that any request may get."""
    listed = sorted({*ALWAYS, *statuses})
    return {status: {"model": ProblemOut, "description": PROBLEMS[status]} for status in listed}


def passage(text: str | None, tokens: list[int] | None) -> Passage:
    """Give the engine's form of a text or of ids, of which exactly one is there."""
    return Passage(text=text, tokens=None if tokens is None else tuple(tokens))


def one_of(text: str | None, tokens: list[int] | None) -> None:
    """Refuse both or neither of the two.

    Raises:
        ValueError: read by pydantic.
    """
    if (text is None) == (tokens is None):
        raise ValueError("give either text or tokens")
