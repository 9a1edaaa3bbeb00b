"""The audit log: one line for each call that changes something, or tried to. Who, what, and what came of it.

It never holds text, metadata, names or keys: an API key and an idempotency key appear as the first digits of
their digests.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from rlstm_server.api.tracing import Trace, endpoint_of
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

logger = logging.getLogger(AUDIT)


def write_down(trace: Trace, scope: Scope) -> None:
    """Write the line of a finished request, if it is one that may change something."""
    endpoint = endpoint_of(scope)
    if endpoint is None or scope.get("method") in SAFE or endpoint in READING or not trace.changes:
        return
    before = trace.version - 1 if trace.version and endpoint in ONE_VERSION else None
    extra = {
        "request_id": trace.request_id,
        "tenant": trace.tenant,
        "key_id": trace.key_id,
        "endpoint": endpoint,
        "session_id": trace.session_id or trace.made,
        "made": trace.made,
        "version_before": before,
        "version": trace.version,
        "operation": _operation(Headers(scope=scope)),
        "status": trace.status,
        "outcome": trace.outcome,
        "code": trace.problem,
    }
    logger.info("change", extra=extra)


def _operation(headers: Headers) -> str | None:
    key = headers.get("idempotency-key")
    return None if key is None else hashlib.sha256(key.encode()).hexdigest()[:DIGEST_DIGITS]
