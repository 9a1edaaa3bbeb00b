"""What both clients tell the WebSocket library, and what its failures are called here."""

import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from rlstm_client import _problems
from rlstm_client._call import Call
from rlstm_client.errors import (
    Applied,
    CannotConnectError,
    ConnectionLostError,
    RLSTMError,
    TimedOutError,
    UnreadableAnswerError,
)

PROTOCOL: Final = "rlstm.v1"
FAILURES: Final = (WebSocketException, OSError, TimeoutError)
OPEN_SECONDS: Final = 10.0
REFUSED: Final = 4000
"""A closing code of the server's is this plus a status."""


ConnectT = TypeVar("ConnectT")


def direct(connect: ConnectT) -> ConnectT:
    """Return a ``connect`` that follows no redirect: text goes to the server that was named, or nowhere.

    The library's classes follow them; in its older versions the blocking one is a function, and does not.
    """
    if not isinstance(connect, type):
        return connect
    own = type(connect.__name__, (connect,), {"process_redirect": lambda _, answer: answer})
    return cast("ConnectT", own)


def arguments(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> Mapping[str, Any]:
    """Return the arguments of ``connect``, for a server that is spoken to by `client` too."""
    base = client.base_url
    url = base.copy_with(
        scheme="wss" if base.scheme == "https" else "ws",
        raw_path=base.raw_path.rstrip(b"/") + call.path.encode("ascii"),
    )
    key = {name: client.headers[name] for name in ("authorization",) if name in client.headers}
    given: dict[str, Any] = {
        "uri": str(url),
        "subprotocols": [PROTOCOL],
        "additional_headers": {**key, "x-request-id": call.request_id},
        "user_agent_header": client.headers["user-agent"],
        "compression": None,
        "open_timeout": OPEN_SECONDS,
        "max_size": None,  # it is our own server, and an answer is as long as the frame that was asked about
    }
    return given if client.trust_env else given | {"proxy": None}


def failure(error: Exception, call: Call[Any], *, under_way: bool) -> RLSTMError:
    """Return the error for a connection that did not come about, or ended."""
    applied: Applied = "unknown" if under_way else "no"
    if isinstance(error, InvalidStatus):
        return _refused(error, call, applied)
    if isinstance(error, ConnectionClosed):
        return _closed(error, call, applied)
    return CannotConnectError(f"cannot connect: {_reason(error)}", applied=applied)


def _refused(error: InvalidStatus, call: Call[Any], applied: Applied) -> RLSTMError:
    answer = error.response
    if answer.status_code < httpx.codes.BAD_REQUEST:
        return UnreadableAnswerError(
            "the answer is not the WebSocket it should be", applied=applied, status=answer.status_code
        )
    refusal = _problems.from_answer(
        answer.status_code, answer.headers, bytes(answer.body or b""), call.request_id
    )
    if refusal.applied == "no":
        refusal.applied = applied  # whoever refuses a connection has not looked at what went over others
    return refusal


def _closed(error: ConnectionClosed, call: Call[Any], applied: Applied) -> RLSTMError:
    known = {"applied": applied, "request_id": call.request_id}
    code, reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (CloseCode.ABNORMAL_CLOSURE, "")
    if code == CloseCode.MESSAGE_TOO_BIG:
        detail = reason or "a frame was too large for the server, or for a proxy in between"
        return _problems.from_problem(httpx.codes.REQUEST_ENTITY_TOO_LARGE, {"detail": detail, **known})
    if httpx.codes.is_error(code - REFUSED):
        return _problems.from_problem(code - REFUSED, {"detail": reason, **known})
    return ConnectionLostError(
        f"the connection was lost: {_reason(error)}", applied=applied, request_id=call.request_id
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class Silence:
    """How long nothing was heard of frames under way. After ``seconds`` it is too long; None: never."""

    def __init__(self, client: httpx.Client | httpx.AsyncClient) -> None:
        self.seconds = client.timeout.read
        self._since = time.monotonic()

    def end(self) -> None:
        """Call this when something is heard, or the first frame sent."""
        self._since = time.monotonic()

    def check(self, call: Call[Any], *, under_way: bool) -> None:
        """Call this when nothing was heard for a while. Raises TimedOutError where it is too long."""
        if under_way and self.seconds is not None and time.monotonic() - self._since >= self.seconds:
            raise TimedOutError("no answer in time", applied="unknown", request_id=call.request_id)
