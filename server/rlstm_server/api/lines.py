"""Lines of the log: one for each request that is over, and of a change who, what, and what came of it.

A call that was refused at the door is a change too: what it asked for is read off its path. Lines never hold
text, metadata, names or keys: an API key and an idempotency key appear as the first digits of their digests.
Changes are lines of the audit log, which is part of the other one unless it has a file of its own.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any, Final

from opentelemetry.trace import format_trace_id, get_current_span
from starlette.datastructures import Headers
from starlette.types import Scope

from rlstm_server.api.tracing import Endpoints, Trace, endpoint_of
from rlstm_server.logs import AUDIT, LOGGER
from rlstm_server.metrics import OTHER

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
READING: Final = frozenset(
    {
        "POST /score",
        "POST /generate",
        "POST /sessions/{session_id}/score",
        "POST /v1/completions",
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
    }
)
"""Routes that make exactly one version, so that the one before is known."""

QUIET: Final = frozenset({"GET /health/live", "GET /health/ready", "GET /metrics"})
"""Endpoints that machines poll: their successes are logged at debug level only."""

DIGEST_DIGITS: Final = 16

requests, audit = logging.getLogger(f"{LOGGER}.requests"), logging.getLogger(AUDIT)


class RequestLog:
    """The log of a server that has these endpoints."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def __call__(self, trace: Trace, scope: Scope, seconds: float) -> None:
        """Write the line of a request that is over."""
        endpoint = endpoint_of(scope)
        line = {
            "request_id": trace.request_id,
            "trace_id": _trace_id(),
            "tenant": trace.tenant,
            "endpoint": endpoint or OTHER,
            "session_id": trace.session_id,
            "status": trace.status,
            "seconds": round(seconds, 6),
            "outcome": trace.outcome,
            "code": trace.problem,
        }
        level = logging.DEBUG if endpoint in QUIET and trace.outcome == "ok" else logging.INFO
        level = logging.ERROR if trace.fault else level
        change = self._change(trace, scope, endpoint)
        if change is not None:
            audit.log(max(level, logging.INFO), "change", extra=line | change, exc_info=trace.fault)
        if change is None or audit.handlers:
            requests.log(level, "request", extra=line, exc_info=trace.fault)

    def _change(self, trace: Trace, scope: Scope, endpoint: str | None) -> dict[str, Any] | None:
        """What is said besides of a call that may change something; None of any other."""
        session = trace.session_id or trace.made
        if endpoint is None:
            endpoint, session = self._endpoints.asked_for(scope)
        if endpoint is None or scope.get("method") in SAFE or endpoint in READING or not trace.changes:
            return None
        key = Headers(scope=scope).get("idempotency-key")
        return {
            "endpoint": endpoint,
            "session_id": session,
            "key_id": trace.key_id,
            "made": trace.made,
            "version_before": trace.version - 1 if trace.version and endpoint in ONE_VERSION else None,
            "version": trace.version,
            "operation": None if key is None else hashlib.sha256(key.encode()).hexdigest()[:DIGEST_DIGITS],
        }


def _trace_id() -> str | None:
    context = get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None
