"""POST /generate: continuations of a prompt, whole or as server-sent events, an error as one of its own.

Sessions and completions share what is here.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rlstm_server.api.bodies import BODY, JSON, SCHEMAS, Problem, problems, strict_routes
from rlstm_server.api.bodies import respond as respond_whole
from rlstm_server.api.dependencies import ContextDep, RequestContext
from rlstm_server.api.problems import document, note
from rlstm_server.errors import InternalError, ModelMismatch, ServerError, TooLarge
from rlstm_server.schemas.generation import (
    CompletionEvent,
    Continuation,
    EndEvent,
    GenerateAnswer,
    GenerateRequest,
    GenerationEvent,
    PromptEvent,
    Sampling,
    TokenEvent,
    Usage,
)
from rlstm_server.schemas.text import EngineIdentity
from rlstm_server.schemas.wire import laid_out

TOKEN_NUMBERS = 3
"""So many numbers' memory a token takes, beside what is asked of it, while its text is taken in."""

HEADERS = {"x-accel-buffering": "no"}  # keeps nginx from holding events back

Events = AsyncGenerator[Sequence[CompletionEvent], None]
"""Those that are there at once, at least one."""


EVENTS: Final[Mapping[str, type]] = {"token": TokenEvent, "end": EndEvent, "error": Problem}
"""The data of each kind of event of a stream of generated text."""


def event_schema() -> dict[str, Any]:
    """Document one event of a stream."""
    return {"oneOf": [_event_schema(event, schema.__name__) for event, schema in EVENTS.items()]}


def _event_schema(event: str, schema: str) -> dict[str, Any]:
    content = {"$ref": SCHEMAS + schema}
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": content}
    return {"type": "object", "properties": {"event": {"const": event}, "data": data}}


def streamed(*refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers that generates, and the statuses that it refuses with."""
    answered = {
        "model": GenerateAnswer,
        "content": {"text/event-stream": {"itemSchema": event_schema()}},
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
    events: Events,
    body: Sampling,
    context: RequestContext,
    identity: EngineIdentity | None = None,
) -> Response:
    """Answer with the events as a stream, or gathered in one document.

    The events of a session's text end with its model; that of a prompt's is given.
    """
    if body.stream:
        script = NamedEvents(lambda event: laid_out(_as_asked(event, body), body.unit))
        return await open_stream(events, script, context)
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


# ---- events, taken in or sent ------------------------------------------------------------------------------


@dataclass
class Texts:
    """What events said: of each prompt, and of each choice its tokens and its end."""

    prompts: dict[int, PromptEvent] = field(default_factory=dict)
    tokens: defaultdict[int, list[TokenEvent]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, EndEvent] = field(default_factory=dict)

    @property
    def completion_tokens(self) -> int:
        """Tokens that were generated."""
        return sum(end.completion_tokens for end in self.ends.values())


async def take_in(events: Events, choices: int) -> Texts:
    """Take in all events of so many choices. Raises InternalError where one has no end."""
    texts = Texts()
    async with aclosing(events):
        async for batch in events:
            for event in batch:
                if isinstance(event, TokenEvent):
                    texts.tokens[event.choice].append(event)
                elif isinstance(event, PromptEvent):
                    texts.prompts[event.prompt] = event
                else:
                    texts.ends[event.choice] = event
    if sorted(texts.ends) != list(range(choices)):
        raise InternalError("the events ended before the texts did")
    return texts


# ---- a stream ---------------------------------------------------------------------------------------------


class Script(Protocol):
    """How one stream is written."""

    def event(self, event: Any) -> Iterable[bytes]:
        """Write an event."""

    def end(self) -> Iterable[bytes]:
        """Write what comes after the last one."""

    def failure(self, error: ServerError, request_id: str) -> Iterable[bytes]:
        """Write what broke the stream off, so that no reader takes it for complete."""


@dataclass(frozen=True)
class NamedEvents:
    """Events by name (token, end, error), each with what `describe` says of it, or a problem document."""

    describe: Callable[[Any], Mapping[str, Any]]

    def event(self, event: TokenEvent | EndEvent) -> Iterable[bytes]:
        """Write an event."""
        if isinstance(event, EndEvent):
            yield frame(self.describe(event), "end")
        else:
            yield frame(self.describe(event), "token", event.mark)

    def end(self) -> Iterable[bytes]:
        """Write nothing more."""
        return ()

    def failure(self, error: ServerError, request_id: str) -> Iterable[bytes]:
        """Write an event that says why there are no more."""
        yield frame(document(error, request_id), "error")


def frame(data: Mapping[str, Any], event: str | None = None, mark: str | None = None) -> bytes:
    """Write one event, with a name or without."""
    return format_sse_event(event=event, data_str=orjson.dumps(data).decode(), id=mark)


async def open_stream(
    events: Events, script: Script, context: RequestContext, headers: Mapping[str, str] | None = None
) -> Response:
    """Start a stream. What fails before the first event (or ping) still gets a status of its own."""
    pull = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait({pull}, timeout=context.limits.ping_seconds)
        if pull.done() and (error := pull.exception()) is not None:
            raise error
    except BaseException:
        await _stop(pull, events)
        raise
    return EventStream(_frames(pull, events, script, context), headers=HEADERS | dict(headers or {}))


async def _stop(pull: asyncio.Future[Sequence[CompletionEvent]], events: Events) -> None:
    """Cancel the step under way, then close the generator: its work ends with its reader."""
    pull.cancel()
    await asyncio.gather(pull, return_exceptions=True)
    await events.aclose()


async def _frames(
    pull: asyncio.Future[Sequence[CompletionEvent]], events: Events, script: Script, context: RequestContext
) -> AsyncGenerator[bytes, None]:
    """Write the events, those that are there at once in one chunk of the body."""
    trace, last = context.trace, None
    times: dict[int, float] = {}
    try:
        while True:
            done, _ = await asyncio.wait({pull}, timeout=context.limits.ping_seconds)
            if not done:
                yield KEEPALIVE_COMMENT
                continue
            try:
                batch = pull.result()
            except StopAsyncIteration:
                break
            pull, last = asyncio.ensure_future(anext(events)), batch[-1]
            for event in batch:
                if isinstance(event, TokenEvent):
                    _measure(event, times, context)
                elif event.version is not None:
                    trace.version = event.version
            yield b"".join(written for event in batch for written in script.event(event))
        if not isinstance(last, EndEvent):
            raise InternalError("the events ended before the text did")
        closing = script.end()
    except ServerError as error:
        note(error, trace)
        closing = script.failure(error, trace.request_id)
    except Exception as error:
        trace.fault = error  # logged with the request id; the reader learns that the stream is not complete
        closing = script.failure(InternalError(), trace.request_id)
    finally:
        await _stop(pull, events)
    yield b"".join(closing)


def _measure(event: TokenEvent, times: dict[int, float], context: RequestContext) -> None:
    """Measure the time to the first token, then between two of the same choice."""
    now = time.perf_counter()
    if not times:
        context.metrics.first_token_seconds.observe(now - context.trace.started)
    elif event.choice in times:
        context.metrics.inter_token_seconds.observe(now - times[event.choice])
    times[event.choice] = now


class EventStream(StreamingResponse):
    """Sends frames as they come and closes their source whatever happens."""

    media_type = "text/event-stream"
    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; that its reader has left is noticed elsewhere."""
        async with aclosing(self.body_iterator):
            await self.stream_response(send)
