"""POST /generate: continuations of a prompt, whole or as a stream of events. Sessions share what is here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Response

from rlstm_server.api.answers import BODY, problems
from rlstm_server.api.answers import respond as respond_whole
from rlstm_server.api.bodies import StrictRoute
from rlstm_server.api.dependencies import CallerDep, HeldDep, Services, ServicesDep, TraceDep
from rlstm_server.api.document import event_schema
from rlstm_server.api.events import open_stream
from rlstm_server.api.tracing import Trace
from rlstm_server.errors import InternalError, ModelMismatch, TooLarge
from rlstm_server.schemas.generation import (
    Continuation,
    EndEvent,
    GenerateAnswer,
    GenerateRequest,
    GenerationEvent,
    Sampling,
    Usage,
)
from rlstm_server.schemas.text import EngineIdentity
from rlstm_server.schemas.wire import Call, laid_out


async def generate(
    body: GenerateRequest, services: ServicesDep, caller: CallerDep, held: HeldDep, trace: TraceDep
) -> Response:
    """Continue a prompt. The same seed gives the same text, whatever else the server does."""
    limit = services.settings.limits.generate_tokens
    if body.n * body.max_tokens > limit:
        raise TooLarge("n x max_tokens", body.n * body.max_tokens, limit)
    if not body.stream:
        held.expect(body.n * body.max_tokens)
    identity = services.engine.models.named(body.model).identity
    events = services.engine.generate(body.by(Call(caller=caller)))
    return await respond(events, body, services, trace, identity)


async def respond(
    events: AsyncIterator[GenerationEvent],
    body: Sampling,
    services: Services,
    trace: Trace,
    identity: EngineIdentity | None = None,
) -> Response:
    """Answer with the events as a stream, or gathered in one document.

    The events of a session's text end with its model; that of a prompt's is given.
    """
    if body.stream:
        return await open_stream(
            events,
            lambda event: laid_out(_as_asked(event, body), body.unit),
            trace=trace,
            metrics=services.metrics,
            ping_seconds=services.settings.limits.ping_seconds,
        )
    return await _gathered(events, body, identity)


def _as_asked(event: GenerationEvent, body: Sampling) -> GenerationEvent:
    if isinstance(event, EndEvent) or body.logprobs:
        return event
    return replace(event, logprob=None)


@dataclass
class _Choice:
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: EndEvent | None = None

    def add(self, event: GenerationEvent) -> None:
        if isinstance(event, EndEvent):
            self.end = event
            return
        self.texts.append(event.text)
        self.ids.append(event.id)
        if event.logprob is not None:
            self.logprobs.append(event.logprob)


async def _gathered(
    events: AsyncIterator[GenerationEvent], body: Sampling, identity: EngineIdentity | None
) -> Response:
    choices: dict[int, _Choice] = {}
    async with aclosing(_closable(events)) as source:
        async for event in source:
            choices.setdefault(event.choice, _Choice()).add(event)
    answer = _answer(choices, body, identity)
    return await respond_whole(
        answer, unit=body.unit, tokens=answer.usage.completion_tokens, version=answer.version
    )


async def _closable(events: AsyncIterator[GenerationEvent]) -> AsyncGenerator[GenerationEvent, None]:
    """Pass events on; closing this closes their source too, so that its work ends."""
    try:
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _answer(choices: dict[int, _Choice], body: Sampling, identity: EngineIdentity | None) -> GenerateAnswer:
    ended = [(index, choice, choice.end) for index, choice in sorted(choices.items()) if choice.end]
    if not ended:
        raise InternalError
    told = [_continuation(index, choice, end, body) for index, choice, end in ended]
    first, end = told[0], ended[0][2]
    if (identity := identity or end.identity) is None:
        raise _of_another_model(end)
    return GenerateAnswer(
        identity=identity,
        seed=end.seed,
        text=first.text,
        ids=first.ids,
        logprobs=first.logprobs,
        finish_reason=first.finish_reason,
        usage=Usage(
            prompt_tokens=end.prompt_tokens,
            completion_tokens=sum(end.completion_tokens for _, _, end in ended),
        ),
        choices=told if len(told) > 1 else None,
        version=end.version,
        position=end.position,
        durability=end.durability,
        replayed=end.replayed,
    )


def _continuation(index: int, choice: _Choice, end: EndEvent, body: Sampling) -> Continuation:
    return Continuation(
        index=index,
        text="".join(choice.texts),
        ids=choice.ids,
        logprobs=choice.logprobs if body.logprobs else None,
        finish_reason=end.finish_reason,
    )


def _of_another_model(end: EndEvent) -> ModelMismatch:
    """A text that was kept by a server that had its model: no answer can say what computed it."""
    error = ModelMismatch("the session's state belongs to another model; the text is kept")
    error.applied = "yes"
    error.facts["version"] = end.version
    return error


def streamed(*refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers that generates, and the statuses that it refuses with."""
    answered = {
        "model": GenerateAnswer,
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
