"""Schemas of text that is continued: requests, the events of a stream, and whole answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, computed_field, model_validator

from rlstm_model.sampling import SamplingConfig
from rlstm_server.caller import Call
from rlstm_server.schemas.text import AdaptationRequest, EngineIdentity, FirstToken, Passage
from rlstm_server.schemas.wire import (
    COLUMN,
    FLAT,
    HIDDEN,
    LOG,
    OPTIONAL,
    Answer,
    Ids,
    MinVersionField,
    ModelField,
    Request,
    UnitField,
)

FinishReason = Literal["stop", "length"]

MAX_CHOICES: Final = 16
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256


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


_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[
    list[_StopString],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(
        lambda stop: [stop] if isinstance(stop, str) else stop,
        json_schema_input_type=_StopString | list[_StopString],
    ),
]
"""One string stands for a list of one."""


class Sampling(Request):
    """How to choose the next token, and when to stop."""

    max_tokens: int = Field(default=256, ge=1, le=65_536, description="At most so many new tokens a choice.")
    temperature: float = Field(default=1.0, ge=0, le=100, description="Below 0.001: the most probable token.")
    top_k: int = Field(default=0, ge=0, le=2**31, description="Keep the k most probable tokens; 0 keeps all.")
    top_p: float = Field(
        default=1.0, ge=0, le=1, description="Keep the fewest tokens with this much probability."
    )
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="Keep tokens this probable relative to the best."
    )
    repetition_penalty: float = Field(
        default=1.0, gt=0, le=100, description="On tokens seen before; 1 is none."
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="Same seed, same text; default: drawn, and told."
    )
    stop: Stops = Field(default=[], description="Strings that end the text; up to 16; not part of it.")
    logprobs: bool = Field(default=True, description="Report log-probabilities of the raw distribution.")
    stream: bool = Field(default=False, description="Answer with server-sent events: token, end, error.")
    unit: UnitField = "nats"

    @property
    def choices(self) -> int:
        """How many continuations."""
        return 1

    @cached_property
    def settings(self) -> GenerationSettings:
        """How to continue the text."""
        return GenerationSettings(
            max_tokens=self.max_tokens,
            sampling=SamplingConfig(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
            ),
            seed=self.seed,
            choices=self.choices,
            stop=tuple(self.stop),
        )


class GenerateRequest(Sampling):
    """A prompt and how to continue it. An empty prompt is the beginning of a text."""

    prompt: str = Field(default="", description="The text to continue.")
    tokens: Ids = Field(default=[], description="The prompt as ids; not together with `prompt`.")
    model: ModelField = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES, description="How many continuations.")

    @model_validator(mode="after")
    def _check_prompt(self) -> GenerateRequest:
        if self.prompt and self.tokens:
            raise ValueError("give either prompt or tokens")
        return self

    @property
    def choices(self) -> int:
        """How many continuations."""
        return self.n

    @property
    def passage(self) -> Passage:
        """The prompt, as text or as ids."""
        return self.tokens or self.prompt


class SessionGenerate(Sampling):
    """How to continue the session's text, and whether the session keeps it."""

    commit: bool = Field(default=False, description="The text becomes part of the session.")
    learn_from_output: bool = Field(default=False, description="Also learn from it; needs `commit`.")
    min_version: MinVersionField = None

    @model_validator(mode="after")
    def _check_commit(self) -> SessionGenerate:
        if self.learn_from_output and not self.commit:
            raise ValueError("learn_from_output needs commit")
        return self


@dataclass(frozen=True, kw_only=True)
class Usage(Answer):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int

    @computed_field
    @property
    def total_tokens(self) -> int:
        """Both."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(kw_only=True)
class TokenEvent(Answer):
    """The next token of a choice, and the text that it completes: none in the middle of a character."""

    # One is made for each token: it is not frozen, which would take three times as long.
    # `top`: the most probable ids at its place, best first, where they were asked for. `mark` names the event
    # to a reader that may want to go on after it; None where none can. `lost`: characters at the beginning of
    # its text that are not its own.

    choice: Annotated[int, Field(serialization_alias="index", description="Of the choice.")]
    index: Annotated[
        int, Field(serialization_alias="step", description="How many tokens of the choice came before.")
    ]
    id: int
    text: str
    logprob: Annotated[
        float | None, LOG, OPTIONAL, Field(description="Of the raw distribution; absent if not asked for.")
    ]
    top: Annotated[tuple[tuple[int, float], ...], HIDDEN] = ()
    lost: Annotated[int, HIDDEN] = 0
    mark: Annotated[str | None, HIDDEN] = None


VersionField = Annotated[int | None, OPTIONAL, Field(description="Of the session that keeps the text.")]


@dataclass(frozen=True, kw_only=True)
class EndEvent(Answer):
    """The end of a choice."""

    # `identity` is that of a session's model; None where the request names the model, and of a text that was
    # kept before with one that is not served here.

    choice: Annotated[int, Field(serialization_alias="index", description="Of the choice.")]
    finish_reason: Annotated[FinishReason, Field(description="`stop`: a stop string; `length`: max_tokens.")]
    prompt_tokens: Annotated[int, HIDDEN]
    completion_tokens: Annotated[int, HIDDEN]
    seed: int
    unit: UnitField = "nats"
    version: VersionField = None
    position: Annotated[int | None, OPTIONAL] = None
    durability: Annotated[str | None, OPTIONAL] = None
    replayed: Annotated[bool | None, OPTIONAL] = None
    identity: Annotated[EngineIdentity | None, HIDDEN] = None

    @computed_field
    @property
    def usage(self) -> Usage:
        """Tokens read and made."""
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens)


@dataclass(frozen=True, kw_only=True)
class Continuation(Answer):
    """One continuation."""

    index: int
    text: str
    ids: Annotated[Sequence[int], COLUMN]
    logprobs: Annotated[
        Sequence[float] | None,
        LOG,
        Field(description="Of the raw distribution; null where not asked for."),
    ]
    finish_reason: Annotated[FinishReason, Field(description="`stop`: a stop string; `length`: max_tokens.")]


@dataclass(frozen=True, kw_only=True)
class GenerateAnswer(Answer):
    """The first continuation in the open, and all of them under `choices` where there are several."""

    identity: Annotated[EngineIdentity, FLAT]
    end: Annotated[EndEvent, FLAT]
    first: Annotated[Continuation, FLAT]
    usage: Usage
    choices: Annotated[Sequence[Continuation] | None, OPTIONAL] = None


# ---- completions: what the OpenAI-compatible routes ask of the engine ------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """Read prompts, score them, and continue each, from the weights as loaded or in the session of `call`.

    prompts     an empty text is the beginning of all text
    bos         whether it comes before all others too; without it a prompt's first token is not scored
    top         how many alternatives are told of each token
    settings    `max_tokens` may be 0: nothing is written then
    adaptation  learns from each prompt as it is read, and not from what is written
    store       the session learns from its one prompt, which becomes part of its text
    stream      the reader shows events as they come
    """

    call: Call
    model: str | None = None
    prompts: tuple[Passage, ...]
    settings: GenerationSettings
    bos: bool = False
    top: int = 0
    adaptation: AdaptationRequest | None = None
    store: bool = False
    stream: bool = False


@dataclass(frozen=True, kw_only=True)
class PromptEvent:
    """A prompt was read. Its columns have an entry for each of its tokens.

    prompt      which one
    tokens      how many were read, bos included
    unfinished  what its last ids read as when nothing completes their character; not in ``text``
    starts      code points of ``text``
    logprobs    None for a first token that nothing is scored against, and so are ``ranks``
    version     of the session that it was read in
    """

    prompt: int
    tokens: int
    text: str
    unfinished: str
    first_token: FirstToken
    ids: tuple[int, ...]
    starts: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    ranks: tuple[int | None, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    version: int | None = None


GenerationEvent: TypeAlias = TokenEvent | EndEvent
CompletionEvent: TypeAlias = PromptEvent | GenerationEvent
"""Choice k of prompt p is numbered p x choices + k."""
