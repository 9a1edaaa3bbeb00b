"""Server-sent events: tokens as they come, comments in a silence, and an error as an event of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rlstm_server.api import problems
from rlstm_server.api.tracing import Trace
from rlstm_server.errors import InternalError, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import CompletionEvent, EndEvent, GenerationEvent, TokenEvent

HEADERS = {"x-accel-buffering": "no"}  # keeps nginx from holding events back

Describe = Callable[[GenerationEvent], dict[str, Any]]
EventT = TypeVar("EventT", bound=CompletionEvent)
WrittenT = TypeVar("WrittenT", bound=CompletionEvent, contravariant=True)


class Script(Protocol[WrittenT]):
    """How one stream is written."""

    def event(self, event: WrittenT) -> Iterable[bytes]:
        """Write an event."""

    def end(self) -> Iterable[bytes]:
        """Write what comes after the last one."""

    def failure(self, error: ServerError, request_id: str) -> Iterable[bytes]:
        """Write what broke the stream off, so that no reader takes it for complete."""


async def open_stream(
    events: AsyncIterator[GenerationEvent],
    describe: Describe,
    *,
    trace: Trace,
    metrics: Metrics,
    ping_seconds: float,
) -> Response:
    """Start a stream of named events: token, end and error, with problem documents."""
    script = _Named(describe)
    return await open_script(events, script, trace=trace, metrics=metrics, ping_seconds=ping_seconds)


async def open_script(
    events: AsyncIterator[EventT],
    script: Script[EventT],
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
    timed = _timed(_pinged(pull, events, ping_seconds), trace, metrics)
    return EventStream(_frames(timed, script, trace), headers)


async def _pinged(
    pull: asyncio.Future[EventT], events: AsyncIterator[EventT], ping_seconds: float
) -> AsyncGenerator[EventT | None, None]:
    """Pass events on; None stands for a silence of `ping_seconds`."""
    try:
        while True:
            done, _ = await asyncio.wait({pull}, timeout=ping_seconds)
            if not done:
                yield None
                continue
            try:
                event = pull.result()
            except StopAsyncIteration:
                return
            pull = asyncio.ensure_future(anext(events))
            yield event
    finally:
        await _stop(pull, events)


async def _stop(pull: asyncio.Future[EventT], events: AsyncIterator[EventT]) -> None:
    """Cancel the step under way, then close the generator: its work ends with its reader."""
    pull.cancel()
    await asyncio.gather(pull, return_exceptions=True)
    if isinstance(events, AsyncGenerator):
        await events.aclose()


async def _timed(
    events: AsyncGenerator[EventT | None, None], trace: Trace, metrics: Metrics
) -> AsyncGenerator[EventT | None, None]:
    """Measure the time to the first token, then between two of the same choice."""
    last: dict[int, float] = {}
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TokenEvent):
                now = time.perf_counter()
                if not last:
                    metrics.first_token_seconds.observe(now - trace.started)
                elif event.choice in last:
                    metrics.inter_token_seconds.observe(now - last[event.choice])
                last[event.choice] = now
            elif isinstance(event, EndEvent):
                trace.version = event.version
            yield event


async def _frames(
    events: AsyncGenerator[EventT | None, None], script: Script[EventT], trace: Trace
) -> AsyncGenerator[bytes, None]:
    last: EventT | None = None
    try:
        async with aclosing(events):
            async for event in events:
                for written in (KEEPALIVE_COMMENT,) if event is None else script.event(event):
                    yield written
                last = event or last
        if not isinstance(last, EndEvent):
            raise InternalError("the events ended before the text did")
        closing = script.end()
    except ServerError as error:
        problems.note(error, trace)
        closing = script.failure(error, trace.request_id)
    except Exception as error:
        trace.fault = error  # logged with the request id; the reader learns that the stream is not complete
        closing = script.failure(InternalError(), trace.request_id)
    for written in closing:
        yield written


@dataclass(frozen=True)
class _Named:
    """Events by name, each with what `describe` says of it."""

    describe: Describe

    def event(self, event: GenerationEvent) -> Iterable[bytes]:
        if isinstance(event, EndEvent):
            yield frame(self.describe(event), "end")
        else:
            yield frame(self.describe(event), "token", event.mark)

    def end(self) -> Iterable[bytes]:
        return ()

    def failure(self, error: ServerError, request_id: str) -> Iterable[bytes]:
        yield frame(problems.document(error, request_id), "error")


def frame(data: Mapping[str, Any], event: str | None = None, mark: str | None = None) -> bytes:
    """Write one event, with a name or without."""
    return format_sse_event(event=event, data_str=orjson.dumps(data).decode(), id=mark)


class EventStream(Response):
    """Sends frames as they come and closes their source whatever happens."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self.init_headers({**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
