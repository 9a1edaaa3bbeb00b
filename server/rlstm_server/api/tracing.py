"""What is known of a request: it gets an id, its headers, a line in the log and a place in the metrics.

Of a change the line says who, what, and what came of it. A call that was refused at the door is a change too:
what it asked for is read off its path. Lines never hold text, metadata, names or keys: an API key and an
idempotency key appear as the first digits of their digests. Changes are lines of the audit log, which is part
of the other one unless it has a file of its own.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from opentelemetry.trace import format_trace_id, get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import compile_path
from starlette.types import Message, Scope

from rlstm_server.caller import NOBODY, Principal
from rlstm_server.errors import ServerError
from rlstm_server.logs import AUDIT, LOGGER
from rlstm_server.metrics import OTHER, Metrics, Outcome
from rlstm_server.telemetry import REQUEST_ID as SPAN_REQUEST_ID
from rlstm_server.telemetry import SESSION_ID as SPAN_SESSION_ID

TRACE = "rlstm.trace"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SESSION_ID = re.compile(r"[a-z0-9]{1,64}")
VERSION = re.compile(r'"([0-9]{1,18})"')
Face = Literal["native", "openai"]
"""In whose words a request is answered: our own, or those that clients of OpenAI's interface know."""

WEBSOCKET = "WS"
"""What stands for a method in the name of an endpoint that takes a WebSocket."""

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
READING: Final = frozenset(
    {
        "POST /score",
        "POST /generate",
        "POST /sessions/{session_id}/score",
        "POST /v1/engines/{model_id}/logprob",
        "POST /tokenize",
        "POST /detokenize",
    }
)
"""Routes that change nothing, though their method could. Any other is written down, new ones included."""

ONE_VERSION: Final = frozenset(
    {
        "PATCH /sessions/{session_id}",
        "POST /sessions/{session_id}/append",
        "POST /sessions/{session_id}/reset",
        "POST /sessions/{session_id}/restore",
        "POST /v1/completions",
    }
)
"""Routes that make exactly one version, so that the one before is known."""

QUIET: Final = frozenset({"GET /health/live", "GET /health/ready", "GET /metrics"})
"""Endpoints that machines poll: their successes are logged at debug level only."""

DIGEST_DIGITS: Final = 16

requests, audit = logging.getLogger(f"{LOGGER}.requests"), logging.getLogger(AUDIT)

SWITCHED = 101

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

    endpoint  of those that there are, the one that was asked for
    face      in whose words it is answered, errors above all
    keyed     it may be the repeat of one that took effect
    made      the id of a session that the request made
    version   of the session, as it was answered
    changes   false where a handler that could change something was asked not to
    error     what was answered in the end; a stream has a status of its own, sent before it was known
    """

    request_id: str
    endpoint: str = OTHER
    face: Face = "native"
    keyed: bool = False
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    principal: Principal = NOBODY
    session_id: str | None = None
    made: str | None = None
    version: int | None = None
    changes: bool = True
    error: ServerError | None = None
    fault: Exception | None = None
    cancelled: bool = False

    @property
    def outcome(self) -> Outcome:
        """The one outcome of the request."""
        if self.cancelled or self.status is None:
            return "cancelled"
        if self.fault is not None:
            return "server_error"
        if self.error is None:
            return "ok"
        if self.error.rejection is not None:
            return "rejected"
        return "client_error" if self.error.status < 500 else "server_error"


class Endpoints:
    """The endpoints of a server, each `METHOD /template`, found by a path alone."""

    def __init__(self, endpoints: Iterable[str]) -> None:
        # A path that is spelt out goes before one that also fits a template.
        split = sorted((endpoint.split(" ", 1) for endpoint in endpoints), key=lambda one: "{" in one[1])
        self._all = [(method, template, compile_path(template)[0]) for method, template in split]

    def begin(self, scope: Scope) -> Trace:
        """Begin the trace of a request, let in or not, which is found in its scope from now on."""
        given, asked = Headers(scope=scope), scope.get("method", WEBSOCKET)
        request_id = given.get("x-request-id", "")
        trace = scope[TRACE] = Trace(
            request_id=request_id if REQUEST_ID.fullmatch(request_id) else secrets.token_hex(16),
            face=face_of(scope["path"]),
            keyed="idempotency-key" in given,
        )
        for method, template, pattern in self._all:
            if method == asked and (found := pattern.fullmatch(scope["path"])):
                session = found.groupdict().get("session_id", "")
                trace.endpoint = f"{method} {template}"
                trace.session_id = session if SESSION_ID.fullmatch(session) else None
                break
        return trace

    def methods_of(self, path: str) -> list[str]:
        """List all methods that a path takes; a WebSocket is none."""
        found = [(method, template) for method, template, pattern in self._all if pattern.match(path)]
        return sorted(method for method, template in found if template == found[0][1] and method != WEBSOCKET)


def face_of(path: str) -> Face:
    """Say in whose words a path is answered, whether there is such a route or not."""
    return "openai" if path == "/v1" or path.startswith("/v1/") else "native"


def begin_answer(message: Message, trace: Trace) -> None:
    """Add headers to an answer, name the request in its span, and learn the version that it tells of."""
    trace.status = message.get("status", SWITCHED)
    span = get_current_span()
    span.set_attribute(SPAN_REQUEST_ID, trace.request_id)
    if trace.session_id is not None:
        span.set_attribute(SPAN_SESSION_ID, trace.session_id)
    headers = MutableHeaders(scope=message)
    if tag := VERSION.fullmatch(headers.get("etag", "")):
        trace.version = int(tag[1])
    headers["x-request-id"] = trace.request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)


def finish(trace: Trace, scope: Scope, metrics: Metrics) -> None:
    """Count a request that is over, and write its line."""
    seconds, outcome, error = time.perf_counter() - trace.started, trace.outcome, trace.error
    metrics.requests.labels(trace.endpoint, outcome).inc()
    metrics.request_seconds.labels(trace.endpoint).observe(seconds)
    if error is not None and error.rejection is not None:
        metrics.rejected.labels(error.rejection).inc()
    span = get_current_span().get_span_context()
    line = {
        "request_id": trace.request_id,
        "trace_id": format_trace_id(span.trace_id) if span.is_valid else None,
        "tenant": trace.principal.tenant or None,
        "endpoint": trace.endpoint,
        "session_id": trace.session_id or trace.made,
        "status": trace.status,
        "seconds": round(seconds, 6),
        "outcome": outcome,
        "code": None if error is None else error.code,
    }
    level = logging.DEBUG if trace.endpoint in QUIET and outcome == "ok" else logging.INFO
    level = logging.ERROR if trace.fault else level
    method = scope.get("method", WEBSOCKET)
    changes = trace.changes and trace.endpoint not in READING and trace.endpoint != OTHER
    if changes and method not in SAFE:
        key = Headers(scope=scope).get("idempotency-key")
        change = line | {
            "key_id": trace.principal.key_id,
            "made": trace.made,
            "version_before": trace.version - 1 if trace.version and trace.endpoint in ONE_VERSION else None,
            "version": trace.version,
            "operation": None if key is None else hashlib.sha256(key.encode()).hexdigest()[:DIGEST_DIGITS],
        }
        audit.log(max(level, logging.INFO), "change", extra=change, exc_info=trace.fault)
        if not audit.handlers:
            return
    requests.log(level, "request", extra=line, exc_info=trace.fault)
