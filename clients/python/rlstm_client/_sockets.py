"""WebSockets, by one library: what it is told, what its failures are called here, and what runs beside them.

What begins or ends with "async" is of the asyncio client; its other half is of the blocking one.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast

from websockets.asyncio import client as websockets_asyncio
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode
from websockets.sync import client as websockets_sync

from rlstm_client import errors
from rlstm_client._calls import Call
from rlstm_client.errors import Applied, ConnectionLostError, RLSTMError, UnreadableAnswerError

AsyncSocket = websockets_asyncio.ClientConnection
Socket = websockets_sync.ClientConnection

PROTOCOL: Final = "rlstm.v1"
FAILURES: Final = (WebSocketException, OSError, TimeoutError)
OPEN_SECONDS: Final = 10.0
REFUSED: Final = 4000
"""A closing code of the server's is this plus a status."""

_OPTIONS: Final[Mapping[str, Any]] = {
    "subprotocols": [PROTOCOL],
    "compression": None,
    "open_timeout": OPEN_SECONDS,
    "max_size": None,  # it is our own server, and an answer is as long as the frame that was asked about
}
ConnectT = TypeVar("ConnectT")


def _direct(connect: ConnectT) -> ConnectT:
    """Return a ``connect`` that follows no redirect: text goes to the server that was named, or nowhere.

    The library's classes follow them; in its older versions the blocking one is a function, and does not.
    """
    if not isinstance(connect, type):
        return connect
    own = type(connect.__name__, (connect,), {"process_redirect": lambda _, answer: answer})
    return cast("ConnectT", own)


_connect_asyncio = _direct(websockets_asyncio.connect)
_connect_sync = _direct(getattr(websockets_sync, "reconnect", websockets_sync.connect))


async def connect_async(arguments: Mapping[str, Any]) -> AsyncSocket:
    """Connect, of the asyncio client."""
    return await _connect_asyncio(**_OPTIONS, **arguments)


def connect_sync(arguments: Mapping[str, Any]) -> Socket:
    """Connect, of the blocking client."""
    socket: Socket = _connect_sync(**_OPTIONS, **arguments).__enter__()
    return socket


class AsyncFeeder:
    """Runs what sends beside what reads: a task of the asyncio client."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(work())

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Feeder:
    """Runs what sends beside what reads: a thread of the blocking client, for which no end waits.

    It may be waiting for a text of its caller's that never comes.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="rlstm-stream", daemon=True).start()

    def stop(self) -> None:
        """Leave it: it ends when it has its next text."""


def failure(error: Exception, call: Call[Any], *, under_way: bool) -> RLSTMError:
    """Return the error for a connection that did not come about, or ended."""
    applied: Applied = "unknown" if under_way else "no"
    if isinstance(error, InvalidStatus):
        return _refused(error, call, applied)
    if isinstance(error, ConnectionClosed):
        return _closed(error, call, applied)
    return errors.CannotConnectError(f"cannot connect: {_reason(error)}", applied=applied)


def _refused(error: InvalidStatus, call: Call[Any], applied: Applied) -> RLSTMError:
    answer = error.response
    if answer.status_code < HTTPStatus.BAD_REQUEST:
        return UnreadableAnswerError(
            "the answer is not the WebSocket it should be", applied=applied, status=answer.status_code
        )
    refusal = errors.from_answer(
        answer.status_code, answer.headers, bytes(answer.body or b""), call.request_id
    )
    if refusal.applied == "no":
        refusal.applied = applied  # who refuses a connection has not looked at what went over others
    return refusal


def _closed(error: ConnectionClosed, call: Call[Any], applied: Applied) -> RLSTMError:
    known = {"applied": applied, "request_id": call.request_id}
    code, reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (CloseCode.ABNORMAL_CLOSURE, "")
    if code == CloseCode.MESSAGE_TOO_BIG:
        detail = reason or "a frame was too large for the server, or for a proxy in between"
        return errors.from_problem({"detail": detail, **known}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    if 400 <= code - REFUSED <= 599:
        return errors.from_problem({"detail": reason, **known}, code - REFUSED)
    lost = f"the connection was lost: {_reason(error)}"
    return ConnectionLostError(lost, applied=applied, request_id=call.request_id)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
