"""POST /generate: continuations of a prompt, whole or as a stream of events. Sessions share what is here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from fastapi import Response

from rlstm_server.api.bodies import BODY, problems, strict_routes
from rlstm_server.api.bodies import respond as respond_whole
from rlstm_server.api.dependencies import ContextDep, RequestContext
from rlstm_server.api.document import event_schema
from rlstm_server.api.events import TOKEN_NUMBERS, NamedEvents, Texts, open_stream, take_in
from rlstm_server.errors import ModelMismatch, TooLarge
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
from rlstm_server.schemas.wire import laid_out


def streamed(*refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers that generates, and the statuses that it refuses with."""
    answered = {
        "model": GenerateAnswer,
        "content": {"text/event-stream": {"schema": {"type": "string"}, "itemSchema": event_schema()}},
        "description": "One document; or, with `stream`, the events token, end (one a choice) and error.",
    }
    return {200: answered, **problems(*BODY, *refusals)}


routes = strict_routes("generate")


@routes.post("/generate", responses=streamed(404), summary="Continue a prompt")
async def generate(body: GenerateRequest, context: ContextDep) -> Response:
    """Continue a prompt. The same seed gives the same text, whatever else the server does."""
    tokens, limit = body.n * body.max_tokens, context.limits.generate_tokens
    if tokens > limit:
        raise TooLarge("n x max_tokens", tokens, limit)
    if not body.stream:
        context.held.expect((1 + TOKEN_NUMBERS) * tokens)
    identity = context.engine.models.named(body.model).identity
    events = context.engine.generate(body.by(context.call))
    return await respond(events, body, context, identity)


async def respond(
    events: AsyncGenerator[GenerationEvent, None],
    body: Sampling,
    context: RequestContext,
    identity: EngineIdentity | None = None,
) -> Response:
    """Answer with the events as a stream, or gathered in one document.

    The events of a session's text end with its model; that of a prompt's is given.
    """
    if body.stream:
        return await open_stream(
            events,
            NamedEvents(lambda event: laid_out(_as_asked(event, body), body.unit)),
            trace=context.trace,
            metrics=context.metrics,
            ping_seconds=context.limits.ping_seconds,
        )
    texts = await take_in(events, body.choices)
    end = texts.ends[0]
    identity = identity or end.identity
    if identity is None:  # kept by a server that had the text's model: no answer can say what computed it
        error = ModelMismatch("the session's state belongs to another model; the text is kept")
        error.applied = "yes"
        error.facts["version"] = end.version
        raise error
    told = [_continuation(texts, choice, body) for choice in sorted(texts.ends)]
    answer = GenerateAnswer(
        identity=identity,
        end=end,
        first=told[0],
        usage=Usage(prompt_tokens=end.prompt_tokens, completion_tokens=texts.completion_tokens),
        choices=told if len(told) > 1 else None,
    )
    return await respond_whole(answer, unit=body.unit, tokens=texts.completion_tokens, version=end.version)


def _as_asked(event: GenerationEvent, body: Sampling) -> GenerationEvent:
    if isinstance(event, EndEvent) or body.logprobs:
        return event
    return replace(event, logprob=None)


def _continuation(texts: Texts, choice: int, body: Sampling) -> Continuation:
    tokens = texts.tokens[choice]
    return Continuation(
        index=choice,
        text="".join(token.text for token in tokens),
        ids=[token.id for token in tokens],
        logprobs=[token.logprob for token in tokens if token.logprob is not None] if body.logprobs else None,
        finish_reason=texts.ends[choice].finish_reason,
    )
