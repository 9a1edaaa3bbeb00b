"""Schemas of the OpenAI-compatible face. A field that it does not know is told in a header, not refused.

Null stands for a field's default. What would change the answer and is not built is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from rlstm_model.sampling import SamplingConfig
from rlstm_server.api.bodies import ALWAYS, PROBLEMS
from rlstm_server.api.problems import FIELD_NAME
from rlstm_server.schemas.generation import (
    MAX_CHOICES,
    MAX_STOPS,
    GenerationSettings,
    Stops,
    Usage,
)
from rlstm_server.schemas.text import MAX_TOP, Passage
from rlstm_server.schemas.wire import Strict

MAX_TOKENS = 16
"""What is written where a request does not say how much."""

MAX_PROMPTS = 4_096

SESSION = "@"
"""Between the names of a model and of its session."""

NAMED = 16
"""So many ignored fields are named."""

_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPT_SCHEMA = {
    "title": "Prompt",
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": _IDS, "minItems": 1},
    ],
    "description": "A text, ids of the vocabulary, or a list of either. Ids are read as they are; an empty"
    " text is the beginning of all text.",
}


def _prompts(value: Any) -> tuple[Passage, ...]:
    """Read any of the four forms of a prompt. By hand: a union would try each form on a million ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, ids, or a list of texts or of ids, and not empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return (tuple(value),)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS:,} texts")
    if kinds == {str}:
        return tuple(value)
    if kinds == {list}:
        return tuple(_ids(place, ids) for place, ids in enumerate(value))
    raise ValueError("a list holds texts only, ids only, or lists of ids only")


def _ids(place: int, value: list[Any]) -> tuple[int, ...]:
    if set(map(type, value)) != {int}:
        raise ValueError(f"entry {place} must be a list of integers, and not empty")
    return tuple(value)


PromptField = Annotated[
    tuple[Passage, ...], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA, mode="validation")
]


class Documented(BaseModel):
    """An answer, as documented; handlers write it directly."""

    model_config = ConfigDict(extra="forbid")


class Lenient(Strict):
    """A request: no conversion of types; unknown fields are ignored, and told of."""

    model_config = ConfigDict(extra="allow")

    @property
    def warning(self) -> dict[str, str]:
        """A header that names what was ignored; none where nothing was."""
        names = list(islice(self._ignored(), NAMED))
        return {"warning": f'299 - "ignored fields: {", ".join(names)}"'} if names else {}

    def _ignored(self) -> Iterator[str]:
        yield from (name if FIELD_NAME.fullmatch(name) else "(unnamed)" for name in self.model_extra or ())
        for name in type(self).model_fields:
            inner = getattr(self, name)
            if isinstance(inner, Lenient):
                yield from (f"{name}.{ignored}" for ignored in inner._ignored())


class StreamOptions(Lenient):
    """What a stream tells besides."""

    include_usage: bool | None = Field(default=None, description="End with one chunk of usage.")


class CompletionIn(Lenient):
    """Prompts, and how to continue them."""

    model: str = Field(min_length=1, max_length=256, description="A name that `/v1/models` lists.")
    prompt: PromptField
    echo: bool | None = Field(default=None, description="Begin with the prompt, its log-probabilities too.")
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = Field(
        default=None,
        description="As vLLM's: of each token of the prompt, by id, that of the token and of so many others.",
    )
    store: bool | None = Field(
        default=None,
        description="With `NAME@SESSION`: the prompt becomes part of the session, which learns from it. A"
        " repeat with the same `Idempotency-Key` is learned from once.",
    )
    max_tokens: Annotated[int, Field(ge=0, le=65_536)] | None = Field(
        default=None,
        description=f"At most so many new tokens; default {MAX_TOKENS}; 0 only with `echo`, `prompt_logprobs`"
        " or `store`.",
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description="How many continuations of each prompt; default 1."
    )
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="Default 1; below 0.001: the most probable token."
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        default=None, description="Same seed, same text, whatever else is asked for; default: drawn."
    )
    stop: Stops | None = Field(
        default=None, description=f"Strings that end the text; up to {MAX_STOPS}; not part of it."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = Field(
        default=None,
        description="Report natural logarithms of the raw distribution, with so many alternatives; 0: of the"
        " chosen token only; null: none. At least -9999.",
    )
    add_special_tokens: bool | None = Field(
        default=None, description="Read bos before texts, and score their first token; default false."
    )
    return_token_ids: bool | None = Field(
        default=None, description="Also give the id and the bytes of each token of the answer's text."
    )
    best_of: int | None = Field(default=None, description="Not built: null, or what `n` is.")
    suffix: str | None = Field(default=None, description="Not built: null or empty.")
    frequency_penalty: float | None = Field(default=None, description="Not built: null or 0.")
    presence_penalty: float | None = Field(default=None, description="Not built: null or 0.")
    logit_bias: dict[str, float] | None = Field(default=None, description="Not built: null or empty.")

    # Each checks a field that was given against those that stand before it.

    @field_validator("max_tokens")
    @classmethod
    def _check_max_tokens(cls, value: int | None, info: ValidationInfo) -> int | None:
        asked = info.data
        if (
            value == 0
            and asked.get("prompt_logprobs") is None
            and not (asked.get("echo") or asked.get("store"))
        ):
            raise ValueError("0 leaves nothing to answer with, unless echo is true")
        return value

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        prompts = info.data.get("prompt", ())
        if value and (len(prompts) != 1 or not prompts[0]):
            raise ValueError("a session learns from one prompt at a time, and not from an empty one")
        if value and SESSION not in info.data.get("model", SESSION):
            raise ValueError("needs a session: NAME@SESSION as the model")
        return value

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("prompt_logprobs") is not None:
            raise ValueError("prompt_logprobs are not available in a stream")
        return value

    @field_validator("add_special_tokens")
    @classmethod
    def _check_special_tokens(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and SESSION in info.data.get("model", ""):
            raise ValueError("a session goes on with its text: nothing comes before a prompt")
        if value and any(not isinstance(prompt, str) for prompt in info.data.get("prompt", ())):
            raise ValueError("ids are read as they are: put bos among them")
        return value

    @field_validator("best_of")
    @classmethod
    def _check_best_of(cls, value: int | None, info: ValidationInfo) -> int | None:
        choices = info.data.get("n") or 1
        if value is not None and value < choices:
            raise ValueError(f"has to be n, {choices}, or more: the best n of them are answered")
        if value is not None and value > choices:
            raise ValueError("choosing among more texts than n is not built")
        return value

    @field_validator("suffix", "frequency_penalty", "presence_penalty", "logit_bias")
    @classmethod
    def _check_not_built(cls, value: Any) -> Any:
        if value:
            raise ValueError("is not built: leave it out")
        return value

    @property
    def choices(self) -> int:
        """How many continuations of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def top(self) -> int:
        """How many alternatives of each token are computed."""
        return max(self.logprobs or 0, self.prompt_logprobs or 0)

    @property
    def tells_prompts(self) -> int:
        """How often the prompts' tokens are reported of each choice."""
        return bool(self.echo) + (self.prompt_logprobs is not None)

    @property
    def scores_prompts(self) -> bool:
        """Whether the prompts' own log-probabilities are reported."""
        return self.prompt_logprobs is not None or (bool(self.echo) and self.logprobs is not None)

    @property
    def most_entries(self) -> int:
        """An upper bound of the tokens that the answer reports: no vocabulary has more tokens than bytes."""
        sizes = (len(prompt.encode() if isinstance(prompt, str) else prompt) for prompt in self.prompt)
        return self.choices * (self.tells_prompts * sum(sizes) + len(self.prompt) * self.settings.max_tokens)

    @property
    def settings(self) -> GenerationSettings:
        """How to continue, in the engine's form."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return GenerationSettings(
            max_tokens=MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            sampling=SamplingConfig(**{name: value for name, value in given.items() if value is not None}),
            seed=self.seed,
            choices=self.choices,
            stop=tuple(self.stop or ()),
        )


class LogprobsOut(Documented):
    """Equally long arrays, an entry a token of the text. Logarithms are natural, of the raw distribution."""

    tokens: list[str] = Field(description="Unique by id; one that is no text is written `bytes:\\x80`.")
    token_logprobs: list[float | None] = Field(description="Null for a token that nothing comes before.")
    top_logprobs: list[dict[str, float] | None] = Field(description="The chosen token is always among them.")
    text_offset: list[int] = Field(description="Code points of prompt and completion before the token.")


class RankedOut(Documented):
    """A token that could stand at a place."""

    logprob: float
    rank: int = Field(description="1 is the most probable token.")
    decoded_token: str


class ChoiceOut(Documented):
    """One continuation of one prompt; `index` is that of the prompt x n + that of the continuation."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: LogprobsOut | None
    prompt_logprobs: list[dict[str, RankedOut] | None] | None = Field(
        default=None,
        description="By ids; null for a token that nothing comes before. Absent if not asked for.",
    )
    first_token: Literal["bos", "unscored", "session"] | None = Field(
        default=None, description="What the prompt's first token is scored against."
    )
    token_ids: list[int] | None = None
    token_bytes: list[list[int]] | None = None


class CompletionOut(Documented):
    """All continuations of all prompts."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix seconds.")
    model: str
    system_fingerprint: str = Field(description="Another one where the numbers may be other ones.")
    logprobs_mode: Literal["raw"] = Field(description="Before temperature and every filter.")
    choices: list[ChoiceOut]
    usage: Usage | None = None


class ErrorOut(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = Field(description="The field of the request at fault.")
    code: str | None


class EnvelopeOut(BaseModel):
    """An error."""

    error: ErrorOut


def envelopes(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route refuses with: these statuses, and those that any request may get."""
    listed = sorted({400, *ALWAYS, *statuses})
    return {status: {"model": EnvelopeOut, "description": PROBLEMS[status]} for status in listed}
