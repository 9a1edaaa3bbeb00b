"""Connections: how many there may be, how long each may take to ask, and how long to take its answer.

uvicorn speaks HTTP here, by h11; what it leaves open is closed in a subclass. Reading stops while a request
is being answered, so that what a client sends ahead waits in the system's buffers and not in ours.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

import h11
import orjson
from starlette.responses import Response
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from rlstm_server.api import problems
from rlstm_server.api.bodies import BodyTimeout
from rlstm_server.api.failed_logins import caller_of
from rlstm_server.api.limits import ARRIVED
from rlstm_server.api.tracing import SECURITY_HEADERS
from rlstm_server.errors import Overloaded, ServerError
from rlstm_server.metrics import Cut, Metrics
from rlstm_server.settings import Limits

LINGER_SECONDS: Final = 1.0
"""How long a connection that was refused passes over what is still sent."""

ANSWER_SECONDS: Final = 1.0
"""What the application gets to say itself that a body took too long."""

HEADER_BYTES: Final = 65_536
WAITING_BYTES: Final = 16_384
"""What of a stream of events waits in our buffer before the stream does."""

AT_ONCE: Final = struct.pack("ii", 1, 0)

PROGRESS_BYTES: Final = 16_384
"""What a reader takes at least, in the time that it may be silent, of an answer that waits for it."""


class Census:
    """The connections that are open, in total and by the address they come from."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._open = 0
        self._callers: Counter[str] = Counter()

    def enter(self, caller: str) -> bool:
        """Count a connection, if there may be one more."""
        limits = self.limits
        if self._open >= limits.connections or self._callers[caller] >= limits.connections_per_address:
            return False
        self._open += 1
        self._callers[caller] += 1
        self.metrics.connections.set(self._open)
        return True

    def leave(self, caller: str) -> None:
        """Count a connection no more."""
        self._open -= 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
        self.metrics.connections.set(self._open)


class _OneLength(h11.Connection):
    """HTTP as h11 reads it, but for a body with two lengths, of which a proxy might believe the other."""

    def next_event(self) -> object:  # type: ignore[override]
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("content-length and transfer-encoding")
        return event


class _Socket(WebSocketsSansIOProtocol):
    """A connection that speaks WebSocket now, and says when it is lost."""

    def __init__(self, *, on_lost: Callable[[], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._on_lost()

    async def send(self, message: Any) -> None:
        """Send; a handshake that was answered by a refusal is over, which uvicorn does not note."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


class Connection(H11Protocol):
    """One connection: counted, and cut where it is too slow. `protocol` makes the class that servers use."""

    census: ClassVar[Census]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, whose first request is due from now on."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        self.conn = _OneLength(h11.SERVER, HEADER_BYTES)
        self._caller = caller_of(self.client[0]) if self.client else ""
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._late = self._refused = False
        self._counted = self.census.enter(self._caller)
        if self._counted:
            self._expect_request()
        else:
            self._cut("full")
            self._refuse(_unread(Overloaded("too many connections", retry_after=1)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._arriving, self._reading):
            if timer is not None:
                timer.cancel()
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to who speaks WebSocket; it stays counted until it is lost.

        A handshake that is wrong is refused here, without a word of it.
        """
        asked = Request("/", Headers([(n.decode("latin-1"), v.decode("latin-1")) for n, v in self.headers]))
        answer = ServerProtocol().accept(asked)
        if event.method != b"GET" or answer.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self.send_400_response("the WebSocket handshake is wrong")
            return
        self._expect_nothing()
        self.ws_protocol_class = functools.partial(_Socket, on_lost=self._leave)  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)

    def _leave(self) -> None:
        if self._counted:
            self._counted = False
            self.census.leave(self._caller)

    # ---- asking -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in bytes; whoever began a request must end it in time."""
        if self._refused:
            return
        if self.conn.their_state is h11.IDLE:
            self._expect_request()
        super().data_received(data)

    def handle_events(self) -> None:
        """Start what has arrived, and tell it when its first byte did."""
        super().handle_events()
        if self.scope is None or self._arriving is None:
            return
        cast("dict[str, object]", self.scope).setdefault(ARRIVED, self._began)
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._expect_nothing()
            self._stay_open()  # a body that nobody wanted has ended after its answer
        elif self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._expect_nothing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._cut("malformed")
        document = {
            "type": "about:blank",
            "title": "Bad Request",
            "status": 400,
            "applied": "no",
            "detail": msg,
        }
        body = orjson.dumps(document | {"request_id": _request_id()})
        self._refuse(Response(body, HTTPStatus.BAD_REQUEST, media_type=problems.MEDIA_TYPE))

    def _expect_request(self) -> None:
        if self._arriving is None:
            self._began = self.loop.time()
            self._arriving = self.loop.call_later(self.census.limits.receive_seconds, self._took_too_long)

    def _expect_nothing(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _stay_open(self) -> None:
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _took_too_long(self) -> None:
        self._arriving = None
        if self.conn.their_state is h11.SEND_BODY and not self.cycle.response_complete and not self._late:
            self._late = True
            self._arriving = self.loop.call_later(ANSWER_SECONDS, self._took_too_long)
            return
        self._cut("slow_request")
        seconds = self.census.limits.receive_seconds
        error = BodyTimeout(f"the request took longer than {seconds:g} s to arrive")
        self._refuse(_unread(error))

    def _refuse(self, response: Response) -> None:
        """Answer what never became a request, unless an answer is on its way already, and close."""
        self._refused = True
        self._expect_nothing()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # or the application would answer what has been answered
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self.transport.is_closing():
            self.transport.close()
            self._watch_reader()
            return
        named = ((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())
        start = h11.Response(
            status_code=response.status_code,
            reason=HTTPStatus(response.status_code).phrase.encode(),
            headers=[*response.raw_headers, *named, CLOSE_HEADER],
        )
        for event in (start, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._linger()

    def _linger(self) -> None:
        """Close when the other side has seen that nothing more comes, or soon.

        Closed at once, with bytes of his unread, the connection would be reset, and the answer be lost.
        """
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._arriving = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    # ---- answering ----------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Go on to the next request; part of it may be here already."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._expect_request()
        self._watch_reader()

    def pause_writing(self) -> None:
        """Wait for the reader, but not for ever."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that asks for nothing more."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _watch_reader(self) -> None:
        """See to it that what waits in our buffer gets less."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if waiting := self.transport.get_write_buffer_size():
            self._reading = self.loop.call_later(self.census.limits.send_seconds, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        self._reading = None
        left = self.transport.get_write_buffer_size()
        complete = self.cycle is None or self.cycle.response_complete
        if not left or not (self.flow.write_paused or complete or self.transport.is_closing()):
            return  # it was read, or there is more to write, which will pause when it is not read
        if before - left >= min(before, PROGRESS_BYTES):
            self._watch_reader()
            return
        self._cut("slow_reader")
        # What he did not take goes at once, instead of waiting for him in the system for minutes more.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def _cut(self, reason: Cut) -> None:
        self.census.metrics.connections_cut.labels(reason).inc()


def protocol(limits: Limits, metrics: Metrics) -> type[Connection]:
    """Make the protocol of one server: its connections are counted together."""

    class Counted(Connection):
        census = Census(limits, metrics)

    return Counted


def _unread(error: ServerError) -> Response:
    """Answer a request whose headers nobody has read: it may have a key."""
    error.doubt()
    return problems.respond(error, _request_id())


def _request_id() -> str:
    return secrets.token_hex(16)
