"""The outermost layer: each request gets an id, its headers, a line in the log and a place in the metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlstm_server.errors import InternalError, ServerError
from rlstm_server.logs import LOGGER
from rlstm_server.metrics import Metrics, Outcome, Rejection

KEY = "rlstm.trace"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MADE = re.compile(r"/sessions/([a-z0-9]{1,64})")
VERSION = re.compile(r'"([0-9]{1,18})"')
QUIET = frozenset({"GET /health/live", "GET /health/ready", "GET /metrics"})
"""Endpoints that machines poll: their successes are logged at debug level only."""

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(kw_only=True)
class Trace:
    """What is known of one request so far. The layers and handlers fill it in as it goes.

    made       the id of a session that the request made
    version    of the session, as it was answered
    changes    false where a handler that could change something was asked not to
    """

    request_id: str
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    tenant: str | None = None
    key_id: str | None = None
    session_id: str | None = None
    made: str | None = None
    version: int | None = None
    changes: bool = True
    problem: str | None = None
    rejection: Rejection | None = None
    fault: Exception | None = None
    cancelled: bool = False

    @property
    def outcome(self) -> Outcome:
        """The one outcome of the request."""
        if self.cancelled or self.status is None:
            return "cancelled"
        if self.fault is not None:
            return "server_error"
        if self.rejection is not None:
            return "rejected"
        if self.status < 400 and self.problem is None:
            return "ok"
        return "client_error" if 400 <= self.status < 500 else "server_error"


Respond = Callable[[ServerError, str], Response]
"""Writes an error as a response; the request id is its second argument."""

Finished = Callable[[Trace, Scope], None]
"""Is told of every request that is over."""


def trace_of(scope: Scope) -> Trace:
    """Give the trace of the request that `scope` belongs to."""
    trace = scope[KEY]
    if not isinstance(trace, Trace):
        raise TypeError("the request did not pass the tracing layer")
    return trace


def endpoint_of(scope: Scope) -> str | None:
    """Give the matched route as `METHOD /template`, None where nothing matched, or with another method.

    A method may be any word of the caller's.
    """
    route, method = scope.get("route"), scope["method"]
    return f"{method} {route.path}" if isinstance(route, Route) and method in (route.methods or ()) else None


class TracingLayer:
    """Traces every HTTP request; an exception that nobody answered becomes the fixed 500 document."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, respond: Respond, finished: Finished) -> None:
        self._app, self._metrics, self._respond, self._finished = app, metrics, respond, finished
        self._log = logging.getLogger(f"{LOGGER}.requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = scope[KEY] = Trace(request_id=_request_id(Headers(scope=scope)))

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                headers = MutableHeaders(scope=message)
                _read_headers(headers, trace)
                _add_headers(headers, trace)
            await send(message)

        try:
            await self._app(scope, receive, send_traced)
        except asyncio.CancelledError:
            trace.cancelled = True
            raise
        except Exception as error:
            trace.fault = error
            if trace.status is not None:
                raise
            await self._respond(InternalError(), trace.request_id)(scope, receive, send_traced)
        finally:
            self._finish(trace, scope)

    def _finish(self, trace: Trace, scope: Scope) -> None:
        seconds = time.perf_counter() - trace.started
        endpoint = self._metrics.endpoint(endpoint_of(scope))
        self._metrics.request_finished(endpoint, trace.outcome, seconds)
        if trace.rejection is not None:
            self._metrics.rejected.labels(trace.rejection).inc()
        self._write_line(trace, endpoint, seconds)
        self._finished(trace, scope)

    def _write_line(self, trace: Trace, endpoint: str, seconds: float) -> None:
        level = logging.DEBUG if endpoint in QUIET and trace.outcome == "ok" else logging.INFO
        extra = {
            "request_id": trace.request_id,
            "session_id": trace.session_id,
            "tenant": trace.tenant,
            "endpoint": endpoint,
            "status": trace.status,
            "outcome": trace.outcome,
            "code": trace.problem,
            "seconds": round(seconds, 6),
        }
        self._log.log(logging.ERROR if trace.fault else level, "request", extra=extra, exc_info=trace.fault)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _read_headers(headers: Headers, trace: Trace) -> None:
    """Learn from an answer which session it made, and which version of a session it tells of."""
    if made := MADE.fullmatch(headers.get("location", "")):
        trace.made = made[1]
    if tag := VERSION.fullmatch(headers.get("etag", "")):
        trace.version = int(tag[1])


def _add_headers(headers: MutableHeaders, trace: Trace) -> None:
    headers["x-request-id"] = trace.request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
