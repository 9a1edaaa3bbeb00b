"""What both clients tell httpx, and what its failures are called here."""

import ipaddress
from collections.abc import Mapping
from typing import Any

import httpx

from rlstm_client import _problems
from rlstm_client._call import Call, Reply
from rlstm_client.errors import (
    Applied,
    CannotConnectError,
    ConnectionLostError,
    NoAnswerError,
    RequestError,
    RLSTMError,
    TimedOutError,
    UnreadableAnswerError,
)

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)

_NOTHING_WAS_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def settings(url: str, api_key: str | None, timeout: float | httpx.Timeout) -> dict[str, Any]:
    """Return the arguments of `httpx.Client` and `httpx.AsyncClient`.

    Redirects are not followed, since they would carry the key to another host.
    """
    base_url = _checked(url)
    headers = {"User-Agent": "rlstm-client"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {_checked_key(api_key)}"
    return {
        "base_url": base_url,
        "headers": headers,
        "timeout": timeout,
        "trust_env": not _is_loopback(base_url.host),  # no proxy reaches this machine's own loopback
    }


def arguments(call: Call[Any]) -> Mapping[str, Any]:
    """Return the arguments of ``build_request``."""
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params) or None,
        "content": call.content,
        "headers": call.all_headers,
    }


def reply(response: httpx.Response) -> Reply:
    """Return a response that was read whole."""
    return Reply(status=response.status_code, headers=response.headers, content=response.content)


def is_stream(response: httpx.Response, media_type: str) -> bool:
    """Whether the body is the stream of this type, and not an error or somebody else's page."""
    content_type = response.headers.get("content-type", "")
    return response.is_success and content_type.partition(";")[0].strip() == media_type


def no_stream(call: Call[Any], reply: Reply, media_type: str) -> RLSTMError:
    """Return the error for an answer that is not the stream: a refusal, or somebody else's page."""
    if reply.status >= 400:
        return _problems.from_answer(reply.status, reply.headers, reply.content, call.request_id)
    detail = f"the answer is not {media_type}"
    return UnreadableAnswerError(detail, applied="unknown", status=reply.status, request_id=call.request_id)


def no_answer(
    error: httpx.HTTPError | httpx.StreamError, call: Call[Any], server: httpx.URL
) -> NoAnswerError:
    """Return the error for a call without an answer; one that reads cannot have changed anything."""
    where = f"{server.scheme}://{server.netloc.decode('ascii')}"
    sent = not isinstance(error, _NOTHING_WAS_SENT)
    applied: Applied = "unknown" if sent and call.changes else "no"
    reason = str(error) or type(error).__name__
    if not sent:
        return CannotConnectError(f"cannot connect to {where}: {reason}")
    if isinstance(error, httpx.TimeoutException):
        return TimedOutError(f"no answer from {where} in time", applied=applied, request_id=call.request_id)
    return ConnectionLostError(
        f"the connection to {where} was lost: {reason}", applied=applied, request_id=call.request_id
    )


def _checked(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise RequestError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(f"{url!r} is not a URL of the form http://host:port")
    return parsed


def _checked_key(api_key: str) -> str:
    if not api_key or not api_key.isascii() or not api_key.isprintable():
        raise RequestError("the API key is empty or holds characters that no header can carry")
    return api_key


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
