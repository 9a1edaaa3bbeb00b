"""The layer that receives: bodies are counted and timed as they arrive; work ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlstm_server.api.problems import answer
from rlstm_server.api.tracing import Trace, trace_of
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


class Memory:
    """Memory for all requests under way, from their first byte to the last one of the answer."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._taken_bytes = size_bytes, 0
        self._tenants: dict[str, int] = {}

    def take(self, tenant: str, count: int) -> None:
        """Take some more. Raises Overloaded where there is none."""
        own = self._tenants.get(tenant, 0) + count
        if self._taken_bytes + count > self._size_bytes or own > MEMORY_SHARE * self._size_bytes:
            raise Overloaded(
                "there is no memory for this request: too many large ones at once", retry_after=1
            )
        self._taken_bytes += count
        self._tenants[tenant] = own

    def give(self, tenant: str, count: int) -> None:
        """Give some back."""
        self._taken_bytes -= count
        self._tenants[tenant] -= count
        if not self._tenants[tenant]:
            del self._tenants[tenant]


class ReceivingLayer:
    """Holds the whole body before the application runs, and cancels the application on a disconnect."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._memory = Memory(limits.requests_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = scope[HELD] = Held(self._limits, self._memory, trace_of(scope).tenant)
        try:
            await self._take_in(body, scope, receive, send)
        finally:
            body.release()

    async def _take_in(self, body: Held, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        try:
            content = await body.receive(scope, receive)
        except ServerError as error:
            late = isinstance(error, ReceiveTimeout)
            await self._refuse(answer(error, trace), receive, send, seconds=0 if late else PASS_OVER_SECONDS)
            return
        if content is None:
            trace.cancelled = True
            return
        await _Exchange(content, receive, send, trace).run(self._app, scope)

    async def _refuse(self, response: Response, receive: Receive, send: Send, *, seconds: float) -> None:
        """Answer, pass over some more of the body, and close.

        Most clients read an answer when they have sent all; closed before, they would hear of a broken
        connection only.
        """
        response.headers["connection"] = "close"
        headers = response.raw_headers
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _pass_over(receive, PASS_OVER_BODIES * self._limits.body_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_over(receive: Receive, count: int) -> None:
    """Receive so many bytes and forget them, if there are so many."""
    while count > 0:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        count -= len(message.get("body", b""))


class Held:
    """The memory that one request holds until it is released: its body, counted and timed, and its answer.

    Whoever is of no tenant gets none: what is open takes no body.
    """

    def __init__(self, limits: Limits, memory: Memory, tenant: str | None) -> None:
        self._limits, self._memory, self._tenant = limits, memory, tenant or ""
        self._largest_bytes = limits.body_bytes if tenant else 0
        self._taken_bytes = 0

    async def receive(self, scope: Scope, receive: Receive) -> bytes | None:
        """Give the body; None where the client left before its end.

        Raises InvalidField, TooLarge, Overloaded, ReceiveTimeout.
        """
        if scope["path"] == IMPORT_PATH:
            self._largest_bytes = self._limits.import_bytes
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may believe the other
            raise InvalidField("content-length", "content-length: not beside transfer-encoding")
        if declared.isdecimal():
            self._check_size(int(declared[:MOST_DIGITS]))
        try:
            async with asyncio.timeout(self._limits.receive_seconds):
                return await self._whole(receive)
        except TimeoutError:
            raise ReceiveTimeout(
                f"the request took longer than {self._limits.receive_seconds:g} s to arrive"
            ) from None

    def expect(self, numbers: int) -> None:
        """Take memory for an answer of so many numbers. Raises Overloaded."""
        self.take(numbers * NUMBER_BYTES)

    def take(self, size: int) -> None:
        """Take memory of so many bytes. Raises Overloaded."""
        self._memory.take(self._tenant, size)
        self._taken_bytes += size

    def expect_file(self, size: int) -> None:
        """Take memory for a file that is read from memory, at most all that one tenant may have.

        Raises Overloaded.
        """
        self.take(min(size, int(MEMORY_SHARE * self._limits.requests_bytes) - self._taken_bytes))

    def release(self) -> None:
        """Give everything back: nobody reads the body any more, and the answer is sent."""
        if self._taken_bytes:
            self._memory.give(self._tenant, self._taken_bytes)
            self._taken_bytes = 0

    async def _whole(self, receive: Receive) -> bytes | None:
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            self._check_size(len(parts) + len(part))
            if part:
                self.take(len(part))
                parts += part
            if not message.get("more_body", False):
                return bytes(parts)

    def _check_size(self, size: int) -> None:
        if size > self._largest_bytes:
            raise BodyTooLarge(size, self._largest_bytes)


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
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body = message.get("body", b"")
        while len(body) > PIECE_BYTES:
            await self._send({**message, "body": bytes(body[:PIECE_BYTES]), "more_body": True})
            body = memoryview(body)[PIECE_BYTES:]
        if not message.get("more_body", False):
            self._answered = True
        await self._send({**message, "body": bytes(body)})

    async def _watch(self) -> None:
        """Return when the client has left; a server also says so after the whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._left.set()
