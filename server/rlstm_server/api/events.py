"""Server-sent events: tokens as they come, comments in a silence, and an error as an event of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import orjson
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rlstm_server.api import problems
from rlstm_server.api.tracing import Trace
from rlstm_server.engine.messages import EndEvent, GenerationEvent, TokenEvent
from rlstm_server.errors import InternalError, ServerError
from rlstm_server.metrics import Metrics

HEADERS = {"x-accel-buffering": "no"}  # keeps nginx from holding events back

Describe = Callable[[GenerationEvent], dict[str, Any]]


async def open_stream(
    events: AsyncIterator[GenerationEvent],
    describe: Describe,
    *,
    trace: Trace,
    metrics: Metrics,
    ping_seconds: float,
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
    return EventStream(_frames(timed, describe, trace))


async def _pinged(
    pull: asyncio.Future[GenerationEvent], events: AsyncIterator[GenerationEvent], ping_seconds: float
) -> AsyncGenerator[GenerationEvent | None, None]:
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


async def _stop(pull: asyncio.Future[GenerationEvent], events: AsyncIterator[GenerationEvent]) -> None:
    """Cancel the step under way, then close the generator: its work ends with its reader."""
    pull.cancel()
    await asyncio.gather(pull, return_exceptions=True)
    if isinstance(events, AsyncGenerator):
        await events.aclose()


async def _timed(
    events: AsyncGenerator[GenerationEvent | None, None], trace: Trace, metrics: Metrics
) -> AsyncGenerator[GenerationEvent | None, None]:
    """Measure the time to the first token, then between two."""
    last: float | None = None
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TokenEvent):
                now = time.perf_counter()
                if last is None:
                    metrics.first_token_seconds.observe(now - trace.started)
                else:
                    metrics.inter_token_seconds.observe(now - last)
                last = now
            elif isinstance(event, EndEvent):
                trace.version = event.version
            yield event


async def _frames(
    events: AsyncGenerator[GenerationEvent | None, None], describe: Describe, trace: Trace
) -> AsyncGenerator[bytes, None]:
    last: GenerationEvent | None = None
    try:
        async with aclosing(events):
            async for event in events:
                yield KEEPALIVE_COMMENT if event is None else _event_frame(event, describe)
                last = event or last
        if not isinstance(last, EndEvent):
            raise InternalError("the events ended before the text did")
    except ServerError as error:
        problems.note(error, trace)
        yield _frame("error", problems.document(error, trace.request_id))
    except Exception as error:
        trace.fault = error  # logged with the request id; the reader learns that the stream is not complete
        yield _frame("error", problems.document(InternalError(), trace.request_id))


def _event_frame(event: GenerationEvent, describe: Describe) -> bytes:
    if isinstance(event, EndEvent):
        return _frame("end", describe(event))
    return _frame("token", describe(event), event.mark)


def _frame(event: str, data: dict[str, Any], mark: str | None = None) -> bytes:
    return format_sse_event(event=event, data_str=orjson.dumps(data).decode(), id=mark)


class EventStream(Response):
    """Sends frames as they come and closes their source whatever happens."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self.init_headers(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
