"""The layer that receives: bodies are counted and timed as they arrive; work ends when its client leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlstm_server.api.bodies import BodyTimeout
from rlstm_server.api.problems import answer
from rlstm_server.api.tracing import Trace, trace_of
from rlstm_server.errors import RateLimited, ServerError, TooLarge
from rlstm_server.settings import Limits

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""Asked by machines that judge the server: they need no key and wait for nobody."""


class ReceivingLayer:
    """Holds the whole body before the application runs, and cancels the application on a disconnect."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._turnstile = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = trace_of(scope)
        try:
            body = await self._whole_body(Headers(scope=scope), receive)
        except ServerError as error:
            response = answer(error, trace)
            response.headers["connection"] = "close"  # the rest of the body is not read
            await response(scope, receive, send)
            return
        if body is None:
            trace.cancelled = True
            return
        if scope["path"] not in OPEN_PATHS:
            await self._pass_turnstile()
        await _Exchange(body, receive, send, trace).run(self._app, scope)

    async def _pass_turnstile(self) -> None:
        """Let one request in with each turn of the event loop.

        Requests that arrive together would otherwise all be parsed in one turn, and whoever only asks whether
        the server lives would wait for all of them.
        """
        async with self._turnstile:
            await asyncio.sleep(0)

    async def _whole_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Give the body; None where the client left before its end."""
        limit = self._limits.body_bytes
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise TooLarge("body bytes", int(declared), limit)
        parts = bytearray()
        try:
            async with asyncio.timeout(self._limits.receive_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts += message.get("body", b"")
                    if len(parts) > limit:
                        raise TooLarge("body bytes", len(parts), limit)
                    if not message.get("more_body", False):
                        return bytes(parts)
        except TimeoutError:
            raise BodyTimeout(f"the body took longer than {self._limits.receive_seconds:g} s") from None


class _Exchange:
    """One request whose body is here: its answer, and the watch over its client."""

    def __init__(self, body: bytes, receive: Receive, send: Send, trace: Trace) -> None:
        self._body: bytes | None = body
        self._receive, self._send, self._trace = receive, send, trace
        self._left = asyncio.Event()
        self._answered = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        work = asyncio.ensure_future(app(scope, self.receive, self.send))
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self._answered:
                self._trace.cancelled = True
                work.cancel()
            await asyncio.wait({work})
        finally:
            watch.cancel()
            work.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def receive(self) -> Message:
        if self._body is not None:
            message: Message = {"type": "http.request", "body": self._body, "more_body": False}
            self._body = None
            return message
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def _watch(self) -> None:
        """Return when the client has left; a server also says so after the whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._left.set()


class TokenBucket:
    """A quota of `rate` requests a second, of which one second's worth (at least one) may come at once."""

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._capacity = max(1.0, rate)
        self._level, self._filled_at = self._capacity, clock()

    def take(self) -> None:
        """Use one up.

        Raises:
            RateLimited: none is left; says when the next will be.
        """
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._level < 1.0:
            wait = (1.0 - self._level) / self._rate
            raise RateLimited(f"at most {self._rate:g} requests a second", retry_after=wait)
        self._level -= 1.0
