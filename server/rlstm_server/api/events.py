"""Texts as they are generated: server-sent events, an error as an event of its own; or taken in whole."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rlstm_server.api import problems
from rlstm_server.api.tracing import Trace
from rlstm_server.errors import InternalError, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import CompletionEvent, EndEvent, PromptEvent, TokenEvent

TOKEN_NUMBERS = 3
"""So many numbers' memory a token takes, beside what is asked of it, while its text is taken in."""

HEADERS = {"x-accel-buffering": "no"}  # keeps nginx from holding events back

Events = AsyncGenerator[CompletionEvent, None]


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
        async for event in events:
            if isinstance(event, PromptEvent):
                texts.prompts[event.prompt] = event
            elif isinstance(event, TokenEvent):
                texts.tokens[event.choice].append(event)
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
        yield frame(problems.document(error, request_id), "error")


def frame(data: Mapping[str, Any], event: str | None = None, mark: str | None = None) -> bytes:
    """Write one event, with a name or without."""
    return format_sse_event(event=event, data_str=orjson.dumps(data).decode(), id=mark)


async def open_stream(
    events: Events,
    script: Script,
    *,
    trace: Trace,
    metrics: Metrics,
    ping_seconds: float,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Start a stream. What fails before the first event (or ping) still gets a status of its own."""
    pull = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait({pull}, timeout=ping_seconds)
        if pull.done() and (error := pull.exception()) is not None:
            raise error
    except BaseException:
        await _stop(pull, events)
        raise
    return EventStream(
        _frames(pull, events, script, trace, metrics, ping_seconds), headers=HEADERS | dict(headers or {})
    )


async def _stop(pull: asyncio.Future[CompletionEvent], events: Events) -> None:
    """Cancel the step under way, then close the generator: its work ends with its reader."""
    pull.cancel()
    await asyncio.gather(pull, return_exceptions=True)
    await events.aclose()


async def _frames(
    pull: asyncio.Future[CompletionEvent],
    events: Events,
    script: Script,
    trace: Trace,
    metrics: Metrics,
    ping_seconds: float,
) -> AsyncGenerator[bytes, None]:
    last: CompletionEvent | None = None
    times: dict[int, float] = {}
    try:
        while True:
            done, _ = await asyncio.wait({pull}, timeout=ping_seconds)
            if not done:
                yield KEEPALIVE_COMMENT
                continue
            try:
                last = event = pull.result()
            except StopAsyncIteration:
                break
            pull = asyncio.ensure_future(anext(events))
            if isinstance(event, TokenEvent):
                _measure(event, times, trace, metrics)
            elif event.version is not None:
                trace.version = event.version
            for written in script.event(event):
                yield written
        if not isinstance(last, EndEvent):
            raise InternalError("the events ended before the text did")
        closing = script.end()
    except ServerError as error:
        problems.note(error, trace)
        closing = script.failure(error, trace.request_id)
    except Exception as error:
        trace.fault = error  # logged with the request id; the reader learns that the stream is not complete
        closing = script.failure(InternalError(), trace.request_id)
    finally:
        await _stop(pull, events)
    for written in closing:
        yield written


def _measure(event: TokenEvent, times: dict[int, float], trace: Trace, metrics: Metrics) -> None:
    """Measure the time to the first token, then between two of the same choice."""
    now = time.perf_counter()
    if not times:
        metrics.first_token_seconds.observe(now - trace.started)
    elif event.choice in times:
        metrics.inter_token_seconds.observe(now - times[event.choice])
    times[event.choice] = now


class EventStream(StreamingResponse):
    """Sends frames as they come and closes their source whatever happens."""

    media_type = "text/event-stream"
    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; that its reader has left is noticed elsewhere."""
        async with aclosing(self.body_iterator):
            await self.stream_response(send)
