"""What both clients tell the WebSocket library, and what its failures are called here."""

from collections.abc import Mapping
from typing import Any, Final

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rlstm_client import _problems
from rlstm_client._call import Call
from rlstm_client.errors import CannotConnectError, ConnectionLostError, RLSTMError

PROTOCOL: Final = "rlstm.v1"
FAILURES: Final = (WebSocketException, OSError, TimeoutError)
OPEN_SECONDS: Final = 10.0


def arguments(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> Mapping[str, Any]:
    """Return the arguments of ``connect``, for a server that is spoken to by `client` too."""
    url = client.base_url.join(call.path)
    given: dict[str, Any] = {
        "uri": str(url.copy_with(scheme="wss" if url.scheme == "https" else "ws")),
        "subprotocols": [PROTOCOL],
        "additional_headers": {
            name: client.headers[name] for name in ("authorization",) if name in client.headers
        },
        "user_agent_header": client.headers["user-agent"],
        "compression": None,
        "open_timeout": OPEN_SECONDS,
        "max_size": None,  # it is our own server, and an answer is as long as the frame that was asked about
    }
    return given if client.trust_env else given | {"proxy": None}


def failure(error: Exception, call: Call[Any], *, under_way: bool) -> RLSTMError:
    """Return the error for a connection that did not come about, or ended."""
    if isinstance(error, InvalidStatus):
        answer = error.response
        return _problems.from_answer(
            answer.status_code, answer.headers, bytes(answer.body or b""), call.request_id
        )
    reason = str(error) or type(error).__name__
    if isinstance(error, ConnectionClosed):
        return ConnectionLostError(
            f"the connection was lost: {reason}",
            applied="unknown" if under_way else "no",
            request_id=call.request_id,
        )
    return CannotConnectError(f"cannot connect: {reason}")
