"""The audit log: one line for each call that changes something, or tried to. Who, what, and what came of it.

A call that was refused at the door is one too: what it asked for is read off its path. The log never holds
text, metadata, names or keys: an API key and an idempotency key appear as the first digits of their digests.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import Scope

from rlstm_server.api.tracing import WEBSOCKET, Trace, endpoint_of
from rlstm_server.logs import AUDIT

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

DIGEST_DIGITS: Final = 16
SESSION_ID: Final = re.compile(r"[a-z0-9]{1,64}")

logger = logging.getLogger(AUDIT)


class AuditLog:
    """The log of a server that has these endpoints, each `METHOD /template`."""

    def __init__(self, endpoints: Iterable[str]) -> None:
        # A path that is spelt out goes before one that also fits a template.
        split = sorted((endpoint.split(" ", 1) for endpoint in endpoints), key=lambda one: "{" in one[1])
        self._endpoints = [(method, template, compile_path(template)[0]) for method, template in split]

    def __call__(self, trace: Trace, scope: Scope) -> None:
        """Write the line of a finished request, if it is one that may change something."""
        endpoint, session = endpoint_of(scope), trace.session_id or trace.made
        if endpoint is None:
            endpoint, session = self._asked_for(scope)
        if endpoint is None or scope.get("method") in SAFE or endpoint in READING or not trace.changes:
            return
        before = trace.version - 1 if trace.version and endpoint in ONE_VERSION else None
        extra = {
            "request_id": trace.request_id,
            "tenant": trace.tenant,
            "key_id": trace.key_id,
            "endpoint": endpoint,
            "session_id": session,
            "made": trace.made,
            "version_before": before,
            "version": trace.version,
            "operation": _operation(Headers(scope=scope)),
            "status": trace.status,
            "outcome": trace.outcome,
            "code": trace.problem,
        }
        logger.info("change", extra=extra)

    def _asked_for(self, scope: Scope) -> tuple[str | None, str | None]:
        """Give endpoint and session of a request that reached no route; None where there is no such route."""
        asked, path = scope.get("method", WEBSOCKET), scope["path"]
        for method, template, pattern in self._endpoints:
            if method == asked and (found := pattern.fullmatch(path)):
                session = found.groupdict().get("session_id", "")
                return f"{method} {template}", session if SESSION_ID.fullmatch(session) else None
        return None, None


def _operation(headers: Headers) -> str | None:
    key = headers.get("idempotency-key")
    return None if key is None else hashlib.sha256(key.encode()).hexdigest()[:DIGEST_DIGITS]
