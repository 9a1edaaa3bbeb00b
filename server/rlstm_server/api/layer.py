"""The one layer around all routes: requests are let in and received, their answers sent and written down.

Bodies are counted and timed as they arrive; work ends when its client leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlstm_server.api.auth import Access
from rlstm_server.api.problems import answer, respond
from rlstm_server.api.tracing import Endpoints, Trace, begin_answer, finish
from rlstm_server.errors import (
    BodyTooLarge,
    InternalError,
    InvalidField,
    NotFound,
    Overloaded,
    ReceiveTimeout,
    ServerError,
)
from rlstm_server.metrics import Metrics
from rlstm_server.settings import MEMORY_SHARE, NUMBER_BYTES, Limits

IMPORT_PATH = "/sessions/import"
"""Takes files, which may be larger than any other body."""

EXCHANGE = "rlstm.exchange"
"""Where a handler takes the memory for a large answer."""

STARTS = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})

MOST_DIGITS = 18
"""Of a declared length that are read: more are no length of any body."""

PIECE_BYTES = 65_536
"""What is handed on at once of an answer: the rest waits here, and counts, until its reader took that."""

PASS_OVER_BODIES = 4
PASS_OVER_SECONDS = 1.0
"""How much more of a body that is refused is received: of so many largest bodies, for so long."""


class RequestLayer:
    """Around all routes: a request is let in, its body received, its answer sent, and it is written down.

    An exception that nobody answered becomes a fixed 500. The memory of all requests under way is counted,
    from their first byte to the last one of the answer.
    """

    def __init__(
        self, app: ASGIApp, *, access: Access, endpoints: Endpoints, limits: Limits, metrics: Metrics
    ) -> None:
        self._app, self._access, self._endpoints = app, access, endpoints
        self._limits, self._metrics = limits, metrics
        self._taken_bytes = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, a WebSocket to its end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        trace = self._endpoints.begin(scope)
        exchange = scope[EXCHANGE] = Exchange(self._limits, self._taken_bytes, trace, receive, send)
        try:
            trace.principal = self._access.admit(scope)
            if not scope["path"].isprintable():  # with a line end behind it a path would match
                raise NotFound("there is no such route")
            await exchange.run(self._app, scope)
        except asyncio.CancelledError:
            trace.cancelled = True
            raise
        except ServerError as error:
            await answer(error, trace)(scope, receive, exchange.send)
        except Exception as error:
            trace.fault = error
            if trace.status is not None:
                raise
            await respond(InternalError(), trace.request_id, trace.face)(scope, receive, exchange.send)
        finally:  # nobody reads the body any more, and the answer is sent
            self._taken_bytes[trace.principal.tenant] -= exchange.taken_bytes
            self._taken_bytes += Counter()  # forgets tenants that hold nothing
            finish(trace, scope, self._metrics)


class Exchange:
    """One request and its answer: the body, counted and timed, the watch over its client, and the memory.

    It holds the memory of its body, and what a handler takes for its answer, until it is over. Whoever is of
    no tenant gets none: what is open takes no body.
    """

    def __init__(
        self, limits: Limits, taken: Counter[str], trace: Trace, receive: Receive, send: Send
    ) -> None:
        self._limits, self._taken, self._trace = limits, taken, trace
        self._receive, self._send = receive, send
        self.taken_bytes = 0
        self._body: bytes | None = None
        self._left = asyncio.Event()
        self._answered = False

    def expect(self, numbers: int) -> None:
        """Take memory for an answer of so many numbers. Raises Overloaded."""
        self.take(numbers * NUMBER_BYTES)

    def expect_file(self, size: int) -> None:
        """Take memory for a file that is read from memory, at most all that one tenant may have.

        Raises Overloaded.
        """
        self.take(min(size, int(MEMORY_SHARE * self._limits.requests_bytes) - self.taken_bytes))

    def take(self, size: int) -> None:
        """Take memory of so many bytes. Raises Overloaded where there is none, or not for one tenant."""
        most, tenant = self._limits.requests_bytes, self._trace.principal.tenant
        own = self._taken[tenant] + size
        if self._taken.total() + size > most or own > MEMORY_SHARE * most:
            raise Overloaded(
                "there is no memory for this request: too many large ones at once", retry_after=1
            )
        self._taken[tenant] = own
        self.taken_bytes += size

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Receive the body, and let the application answer as long as the client is there."""
        if scope["type"] != "http":
            await app(scope, self._receive, self.send)
            return
        try:
            async with asyncio.timeout(self._limits.receive_seconds):
                self._body = await self._received(scope)
        except TimeoutError:
            seconds = self._limits.receive_seconds
            late = ReceiveTimeout(f"the request took longer than {seconds:g} s to arrive")
            await self._refuse(late, seconds=0)
            return
        except ServerError as error:
            await self._refuse(error, seconds=PASS_OVER_SECONDS)
            return
        if self._body is None:
            self._trace.cancelled = True
            return
        work = asyncio.ensure_future(app(scope, self._give_body, self.send))
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

    async def _received(self, scope: Scope) -> bytes | None:
        """Give the body; None where the client left before its end.

        Raises InvalidField, BodyTooLarge, Overloaded.
        """
        largest = self._limits.body_bytes if self._trace.principal.tenant else 0
        if scope["path"] == IMPORT_PATH:
            largest = self._limits.import_bytes
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may believe the other
            raise InvalidField("content-length", "content-length: not beside transfer-encoding")
        if declared.isdecimal() and (size := int(declared[:MOST_DIGITS])) > largest:
            raise BodyTooLarge(size, largest)
        parts = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            if (size := len(parts) + len(part)) > largest:
                raise BodyTooLarge(size, largest)
            if part:
                self.take(len(part))
                parts += part
            if not message.get("more_body", False):
                return bytes(parts)

    async def _refuse(self, error: ServerError, *, seconds: float) -> None:
        """Answer, pass over some more of the body, and close.

        Most clients read an answer when they have sent all; closed before, they would hear of a broken
        connection only.
        """
        response, send = answer(error, self._trace), self.send
        response.headers["connection"] = "close"
        headers = response.raw_headers
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _pass_over(self._receive, PASS_OVER_BODIES * self._limits.body_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _give_body(self) -> Message:
        """What the application receives: the body at once, and then that the client has left."""
        if self._body is not None:
            message: Message = {"type": "http.request", "body": self._body, "more_body": False}
            self._body = None
            return message
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send on what the application sends, which is noted; a large body goes in pieces."""
        if message["type"] in STARTS:
            begin_answer(message, self._trace)
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            while len(body) > PIECE_BYTES:
                await self._send({**message, "body": bytes(body[:PIECE_BYTES]), "more_body": True})
                body = memoryview(body)[PIECE_BYTES:]
            self._answered = self._answered or not message.get("more_body", False)
            message = {**message, "body": bytes(body)}
        await self._send(message)

    async def _watch(self) -> None:
        """Return when the client has left; a server also says so after the whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._left.set()


async def _pass_over(receive: Receive, count: int) -> None:
    """Receive so many bytes and forget them, if there are so many."""
    while count > 0:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        count -= len(message.get("body", b""))
