"""POST /generate: continuations of a prompt, whole or as a stream of events. Sessions share what is here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from rlstm_model.sampling import SamplingConfig
from rlstm_server.api.answers import FACTORS, Unit, identity, json_response
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, HeldDep, Services, ServicesDep, TraceDep
from rlstm_server.api.event_shapes import UsageOut, event_schema
from rlstm_server.api.events import open_stream
from rlstm_server.api.shapes import BODY, IdentityOut, Ids, ModelField, Shape, Strict, UnitField, problems
from rlstm_server.api.tracing import Trace
from rlstm_server.errors import InternalError, ModelMismatch, TooLarge
from rlstm_server.schemas import (
    EndEvent,
    EngineIdentity,
    GenerateRequest,
    GenerationEvent,
    GenerationSettings,
    Passage,
    TokenEvent,
)

MAX_CHOICES = 16
MAX_STOPS = 16

StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True)]


class SamplingIn(Strict):
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
    stop: StopString | StopStrings = Field(
        default=[], description="Strings that end the text; up to 16; not part of it."
    )
    logprobs: bool = Field(default=True, description="Report log-probabilities of the raw distribution.")
    stream: bool = Field(default=False, description="Answer with server-sent events: token, end, error.")
    unit: UnitField = "nats"

    @model_validator(mode="after")
    def _check_stops(self) -> SamplingIn:
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOPS:
            raise ValueError(f"stop: at most {MAX_STOPS} strings")
        return self

    def settings(self, choices: int = 1) -> GenerationSettings:
        """Give the engine's form."""
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
            choices=choices,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
        )


class GenerateIn(SamplingIn):
    """A prompt and how to continue it. An empty prompt is the beginning of a text."""

    prompt: str = Field(default="", description="The text to continue.")
    tokens: Ids = Field(default=[], description="The prompt as ids; not together with `prompt`.")
    model: ModelField = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES, description="How many continuations.")

    @model_validator(mode="after")
    def _check_prompt(self) -> GenerateIn:
        if self.prompt and self.tokens:
            raise ValueError("give either prompt or tokens")
        return self

    def passage(self) -> Passage:
        """Give the engine's form of the prompt."""
        return Passage(tokens=tuple(self.tokens)) if self.tokens else Passage(text=self.prompt)


class ChoiceOut(Shape):
    """One continuation."""

    index: int
    text: str
    ids: list[int]
    logprobs: list[float] | None
    finish_reason: str


class ContinuationOut(IdentityOut):
    """The first continuation in the open, and all of them under `choices` where there are several."""

    unit: UnitField
    seed: int
    text: str
    ids: list[int]
    logprobs: list[float] | None = Field(description="Of the raw distribution; null where not asked for.")
    finish_reason: str = Field(description="`stop`: a stop string; `length`: max_tokens.")
    usage: UsageOut
    choices: list[ChoiceOut] | None = None
    version: int | None = Field(default=None, description="Of the session that keeps the text.")
    position: int | None = None
    durability: str | None = None
    replayed: bool | None = None


@dataclass
class _Choice:
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


async def generate(
    body: GenerateIn, services: ServicesDep, caller: CallerDep, held: HeldDep, trace: TraceDep
) -> Response:
    """Continue a prompt. The same seed gives the same text, whatever else the server does."""
    limit = services.settings.limits.generate_tokens
    if body.n * body.max_tokens > limit:
        raise TooLarge("n x max_tokens", body.n * body.max_tokens, limit)
    if not body.stream:
        held.expect(body.n * body.max_tokens)
    served = services.engine.models.named(body.model)
    request = GenerateRequest(
        caller=caller, model=served.name, prompt=body.passage(), settings=body.settings(body.n)
    )
    return await respond(services.engine.generate(request), body, services, trace, served.identity)


async def respond(
    events: AsyncIterator[GenerationEvent],
    body: SamplingIn,
    services: Services,
    trace: Trace,
    model: EngineIdentity | None = None,
) -> Response:
    """Answer with the events as a stream, or gathered in one document.

    The events of a session's text end with its model; that of a prompt's is given.
    """
    if body.stream:
        return await open_stream(
            events,
            lambda event: _event_fields(event, body),
            trace=trace,
            metrics=services.metrics,
            ping_seconds=services.settings.limits.ping_seconds,
        )
    return await _gathered(events, body, model)


async def _gathered(
    events: AsyncIterator[GenerationEvent], body: SamplingIn, model: EngineIdentity | None
) -> Response:
    choices: dict[int, _Choice] = {}
    ends: dict[int, EndEvent] = {}
    async with aclosing(_closable(events)) as source:
        async for event in source:
            if isinstance(event, EndEvent):
                ends[event.choice] = event
            else:
                _gather(choices.setdefault(event.choice, _Choice()), event)
    if 0 not in ends:
        raise InternalError
    if (model := model or ends[0].identity) is None:
        raise _of_another_model(ends[0])
    count = sum(end.completion_tokens for end in ends.values())
    return await json_response(
        lambda: identity(model) | _document(choices, ends, body),
        tokens=count,
        version=ends[0].version,
    )


async def _closable(events: AsyncIterator[GenerationEvent]) -> AsyncGenerator[GenerationEvent, None]:
    """Pass events on; closing this closes their source too, so that its work ends."""
    try:
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _of_another_model(end: EndEvent) -> ModelMismatch:
    """A text that was kept by a server that had its model: no answer can say what computed it."""
    error = ModelMismatch("the session's state belongs to another model; the text is kept")
    error.applied = "yes"
    error.facts["version"] = end.version
    return error


def _gather(choice: _Choice, event: TokenEvent) -> None:
    choice.texts.append(event.text)
    choice.ids.append(event.id)
    choice.logprobs.append(event.logprob)


def _document(choices: dict[int, _Choice], ends: dict[int, EndEvent], body: SamplingIn) -> dict[str, Any]:
    listed = [
        _choice_fields(index, choices.get(index, _Choice()), ends[index], body) for index in sorted(ends)
    ]
    first = {name: value for name, value in listed[0].items() if name != "index"}
    fields = {"unit": body.unit, "seed": ends[0].seed} | first | {"usage": _usage(ends.values())}
    if len(listed) > 1:
        fields["choices"] = listed
    return fields | _kept(ends[0])


def _choice_fields(index: int, choice: _Choice, end: EndEvent, body: SamplingIn) -> dict[str, Any]:
    factor = FACTORS[body.unit]
    return {
        "index": index,
        "text": "".join(choice.texts),
        "ids": choice.ids,
        "logprobs": [value * factor for value in choice.logprobs] if body.logprobs else None,
        "finish_reason": end.finish_reason,
    }


def _usage(ends: Iterable[EndEvent]) -> dict[str, int]:
    """Count the prompt once and every choice's new tokens."""
    listed = list(ends)
    prompt = listed[0].prompt_tokens
    completion = sum(end.completion_tokens for end in listed)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _kept(end: EndEvent) -> dict[str, Any]:
    """Say where a session stands that keeps the text."""
    if end.version is None:
        return {}
    return {
        "version": end.version,
        "position": end.position,
        "durability": end.durability,
        "replayed": end.replayed,
    }


def _event_fields(event: GenerationEvent, body: SamplingIn) -> dict[str, Any]:
    if isinstance(event, EndEvent):
        return {
            "index": event.choice,
            "finish_reason": event.finish_reason,
            "usage": _usage([event]),
            "seed": event.seed,
            "unit": body.unit,
        } | _kept(event)
    return _token_fields(event, body.unit, logprobs=body.logprobs)


def _token_fields(event: TokenEvent, unit: Unit, *, logprobs: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": event.choice,
        "step": event.index,
        "id": event.id,
        "text": event.text,
    }
    if logprobs:
        fields["logprob"] = event.logprob * FACTORS[unit]
    return fields


def streamed(*refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers that generates, and the statuses that it refuses with."""
    answered = {
        "model": ContinuationOut,
        "content": {"text/event-stream": {"schema": {"type": "string"}, "itemSchema": event_schema()}},
        "description": "One document; or, with `stream`, the events token, end (one a choice) and error.",
    }
    return {200: answered, **problems(*BODY, *refusals)}


def router() -> APIRouter:
    """Build the routes of this module."""
    routes = APIRouter(route_class=StrictRoute, tags=["generate"])
    routes.add_api_route(
        "/generate", generate, methods=["POST"], responses=streamed(404), summary="Continue a prompt"
    )
    return routes
