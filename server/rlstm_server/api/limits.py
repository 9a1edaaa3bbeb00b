"""The layer that receives: bodies are counted and timed as they arrive; work ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlstm_server.api.problems import answer
from rlstm_server.api.tracing import trace_of
from rlstm_server.errors import BodyTooLarge, InvalidField, Overloaded, ReceiveTimeout, ServerError
from rlstm_server.settings import MEMORY_SHARE, NUMBER_BYTES, Limits

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""Asked by machines that judge the server: they need no key and wait for nobody."""

IMPORT_PATH = "/sessions/import"
"""Takes files, which may be larger than any other body."""

HELD = "rlstm.held"
"""What the request holds of the memory for requests; a handler expects a large answer there."""

MOST_DIGITS = 18
"""Of a declared length that are read: more are no length of any body."""

PIECE_BYTES = 65_536
"""What is handed on at once of an answer: the rest waits here, and counts, until its reader took that."""

PASS_OVER_BODIES = 4
PASS_OVER_SECONDS = 1.0
"""How much more of a body that is refused is received: of so many largest bodies, for so long."""


class ReceivingLayer:
    """Holds the whole body before the application runs, and cancels the application on a disconnect.

    It counts the memory of all requests under way, from their first byte to the last one of the answer.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._taken_bytes = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = scope[HELD] = Exchange(self._limits, self._taken_bytes, scope, receive, send)
        try:
            await exchange.run(self._app)
        finally:  # nobody reads the body any more, and the answer is sent
            self._taken_bytes[exchange.tenant] -= exchange.taken_bytes
            self._taken_bytes += Counter()  # forgets tenants that hold nothing


class Exchange:
    """One request and its answer: the body, counted and timed, the watch over its client, and the memory.

    It holds the memory of its body, and what a handler takes for its answer, until it is over. Whoever is of
    no tenant gets none: what is open takes no body.
    """

    def __init__(
        self, limits: Limits, taken: Counter[str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._limits, self._taken, self._scope = limits, taken, scope
        self._receive, self._send, self._trace = receive, send, trace_of(scope)
        self.tenant, self.taken_bytes = self._trace.tenant or "", 0
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
        most, own = self._limits.requests_bytes, self._taken[self.tenant] + size
        if self._taken.total() + size > most or own > MEMORY_SHARE * most:
            raise Overloaded(
                "there is no memory for this request: too many large ones at once", retry_after=1
            )
        self._taken[self.tenant] = own
        self.taken_bytes += size

    async def run(self, app: ASGIApp) -> None:
        """Receive the body, and let the application answer as long as the client is there."""
        try:
            async with asyncio.timeout(self._limits.receive_seconds):
                self._body = await self._received()
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
        work = asyncio.ensure_future(app(self._scope, self._give_body, self._answer))
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

    async def _received(self) -> bytes | None:
        """Give the body; None where the client left before its end.

        Raises InvalidField, BodyTooLarge, Overloaded.
        """
        largest = self._limits.body_bytes if self.tenant else 0
        if self._scope["path"] == IMPORT_PATH:
            largest = self._limits.import_bytes
        headers = Headers(scope=self._scope)
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
        response, send = answer(error, self._trace), self._send
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

    async def _answer(self, message: Message) -> None:
        """Send on what the application sends, a large body in pieces."""
        if message["type"] == "http.response.body":
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
