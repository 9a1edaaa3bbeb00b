"""Errors to HTTP: one table, and what is made from it: RFC 9457 documents, and OpenAI's envelope under `/v1`.

The last part of a document's `type` is the slug that the client mirrors. Documents hold our own sentences and
numbers only: nothing that a caller sent is ever repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from rlstm_server import errors
from rlstm_server.api import bodies
from rlstm_server.api.tracing import Face, Trace, trace_of
from rlstm_server.metrics import OTHER, Rejection

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:rlstm:problem:"


class Kind(NamedTuple):
    """How one class of error is answered.

    rejection  names it in the metrics where nothing was worked on
    openai     the status under `/v1`, where that is another one
    """

    status: int
    slug: str
    title: str
    rejection: Rejection | None = None
    openai: int | None = None

    def status_for(self, face: Face) -> int:
        """Give the status in these words."""
        return self.openai or self.status if face == "openai" else self.status


KINDS: Mapping[type[errors.ServerError], Kind] = {
    bodies.InvalidJson: Kind(400, "invalid_json", "The body is not strict JSON"),
    errors.InvalidText: Kind(400, "invalid_text", "The text is not text"),
    errors.InvalidTokens: Kind(400, "invalid_token", "A token id is outside the vocabulary"),
    bodies.BodyTimeout: Kind(408, "receive_timeout", "The body did not arrive in time"),
    bodies.UnsupportedMediaType: Kind(415, "unsupported_media_type", "The content type is not supported"),
    errors.InvalidField: Kind(422, "invalid_field", "A field is wrong", openai=400),
    errors.IdempotencyMismatch: Kind(422, "idempotency_mismatch", "The key was used with another body"),
    errors.ImportRejected: Kind(422, "import_rejected", "The file cannot be imported"),
    errors.UpgradeRequired: Kind(426, "upgrade_required", "This is reached over a WebSocket"),
    errors.InputError: Kind(422, "invalid_field", "The request is wrong", openai=400),
    errors.BodyTooLarge: Kind(413, "too_large", "Over a limit", "too_large"),
    errors.TooLarge: Kind(413, "too_large", "Over a limit", "too_large", openai=400),
    errors.Unauthorized: Kind(401, "unauthorized", "A key is needed", "auth"),
    errors.Forbidden: Kind(403, "forbidden", "This key may not do this", "auth"),
    errors.RateLimited: Kind(429, "quota", "Your quota is used up", "rate"),
    errors.AccessError: Kind(403, "forbidden", "This is not allowed", "auth"),
    errors.NotFound: Kind(404, "not_found", "There is no such thing"),
    errors.ModelNotFound: Kind(404, "model_not_found", "There is no such model"),
    errors.Gone: Kind(410, "session_deleted", "The session is gone"),
    errors.Conflict: Kind(409, "conflict", "The session kept changing", "conflict"),
    errors.InFlight: Kind(409, "in_flight", "The same key is being worked on", "conflict"),
    errors.SessionExists: Kind(409, "session_exists", "The name is taken"),
    errors.SnapshotExists: Kind(409, "snapshot_exists", "The snapshot's name is taken"),
    errors.ModelMismatch: Kind(409, "model_mismatch", "The session belongs to another model"),
    errors.VersionMoved: Kind(412, "version_mismatch", "The session is at another version", "conflict"),
    errors.SessionError: Kind(409, "conflict", "The session cannot do this"),
    errors.Overloaded: Kind(503, "overloaded", "The server is busy", "queue_full"),
    errors.Draining: Kind(503, "draining", "The server is going down", "drain"),
    errors.StoreUnavailable: Kind(503, "store_unavailable", "The store does not answer", "store_down"),
    errors.StoreFull: Kind(503, "store_full", "The store is full", "store_down"),
    errors.DurabilityNotReached: Kind(
        503, "durability_not_reached", "Committed, but not as durably as asked"
    ),
    errors.Unavailable: Kind(503, "overloaded", "The server cannot take this now", "queue_full"),
    errors.SlowConsumer: Kind(408, "slow_consumer", "The reader did not keep up"),
    errors.OutcomeUnknown: Kind(504, "outcome_unknown", "Whether it was applied is not known"),
    errors.StateCorrupt: Kind(500, "state_corrupt", "The stored state cannot be used"),
    errors.InternalFault: Kind(500, "internal", "A fault of the server"),
    errors.InternalError: Kind(500, "internal", "A fault of the server"),
    errors.ServerError: Kind(500, "internal", "A fault of the server"),
}
"""Every class of error, by its nearest ancestor in this table."""

METHOD_NOT_ALLOWED = Kind(405, "method_not_allowed", "The route does not take this method")
EXPIRED = Kind(410, "session_expired", "The session has expired")
RETRY_SECONDS = {429: 1.0, 503: 1.0, 504: 1.0}
HIDDEN_FACTS = frozenset({"retry_after"})
OURS = "the fault was logged with the request id"
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""What OpenAI's envelope calls a status; any other is the request's fault, or the server's."""

FIELD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PARAM = re.compile(rf"({FIELD_NAME.pattern})(?=$|[.\[])")
"""The field of a request in a place such as `prompt[1].text`; a limit's name is none."""
METADATA = "metadata"
"""The field whose own fields are the caller's: none of their names is repeated."""


def kind_of(error: errors.ServerError) -> Kind:
    """Find how `error` is answered."""
    if isinstance(error, errors.Gone) and "expired" in error.reason:
        return EXPIRED
    return next(KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in KINDS)


def document(error: errors.ServerError, request_id: str) -> dict[str, object]:
    """Build the problem document of `error`; a fault of ours says nothing but its request id."""
    kind = kind_of(error)
    ours = kind.status == HTTPStatus.INTERNAL_SERVER_ERROR
    facts = {} if ours else {name: value for name, value in error.facts.items() if name not in HIDDEN_FACTS}
    return {
        **facts,
        "type": TYPE_PREFIX + kind.slug,
        "title": kind.title,
        "status": kind.status,
        "detail": OURS if ours else error.detail,
        "applied": error.applied,
        "request_id": request_id,
    }


def envelope(error: errors.ServerError) -> dict[str, object]:
    """Say the same in OpenAI's envelope; `param` is the field of the request that is at fault."""
    status = kind_of(error).status_for("openai")
    ours = status == HTTPStatus.INTERNAL_SERVER_ERROR
    return _envelope(status, OURS if ours else error.detail, None if ours else _param(error), error.code)


def _envelope(status: int, message: str, param: str | None, code: str) -> dict[str, object]:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"error": {"message": message, "type": TYPES.get(status, kind), "param": param, "code": code}}


def _param(error: errors.ServerError) -> str | None:
    named = PARAM.match(str(error.facts.get("field", "")))
    return named[1] if named else None


def respond(error: errors.ServerError, request_id: str, face: Face = "native") -> Response:
    """Answer with `error` in these words, `Retry-After` included where a repeat can help."""
    kind = kind_of(error)
    headers = _headers(kind, error)
    if face == "openai":
        return _in_envelope(envelope(error), kind.status_for(face), headers)
    return _respond(document(error, request_id), headers)


def _in_envelope(body: dict[str, object], status: int, headers: Mapping[str, str]) -> Response:
    """Answer; the header tells clients not to repeat what can only fail again."""
    again = {"x-should-retry": "true" if "retry-after" in headers else "false"}
    return Response(orjson.dumps(body), status, {**headers, **again}, media_type="application/json")


def answer(error: errors.ServerError, trace: Trace) -> Response:
    """Answer `error`, and note it in the request's trace."""
    note(error, trace)
    return respond(error, trace.request_id, trace.face)


def note(error: errors.ServerError, trace: Trace) -> None:
    """Write down what the request came to; of one with a key the error says only what is known of the key."""
    if trace.keyed and trace.changes:
        error.doubt()
    kind = kind_of(error)
    trace.problem, trace.problem_status, trace.rejection = kind.slug, kind.status, kind.rejection
    if isinstance(error, errors.InternalFault):
        trace.fault = error
    superseded = isinstance(error, errors.InFlight) and trace.status is not None
    if superseded or isinstance(error, errors.SlowConsumer):
        trace.cancelled = True  # whoever read the stream has left it, or stopped reading


def _headers(kind: Kind, error: errors.ServerError) -> dict[str, str]:
    headers = {}
    seconds = error.retry_after_seconds or RETRY_SECONDS.get(kind.status)
    if kind.slug == "in_flight":
        seconds = seconds or 1.0
    if seconds is not None:
        headers["retry-after"] = str(math.ceil(seconds))
    if kind.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if kind.status == HTTPStatus.UPGRADE_REQUIRED:
        headers |= {"upgrade": "websocket", "connection": "upgrade"}
    if isinstance(error, errors.VersionMoved):
        headers["etag"] = f'"{error.current}"'
    return headers


def _path(location: Sequence[str | int]) -> str:
    """Write a place in the body as `items[0].text`. A name that is not like ours is not repeated."""
    written = ""
    for part in location[1:] if location[0] in {"body", "query", "header", "path"} else location:
        if isinstance(part, int):
            written += f"[{part}]"
        else:
            written += f".{part if FIELD_NAME.fullmatch(part) else '(unnamed)'}"
        if part == METADATA:
            break
    return written.removeprefix(".") or "body"


def invalid_field(fault: Mapping[str, Any]) -> errors.InvalidField:
    """Say what pydantic found wrong, and where, without what was sent."""
    field = _path(fault["loc"] or ("body",))
    return errors.InvalidField(field, f"{field}: {_reason(fault)}")


def _reason(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "there is no such field"
    return str(fault["msg"]).removeprefix("Value error, ")


def _respond(body: dict[str, object], headers: Mapping[str, str]) -> Response:
    status = body["status"]
    if not isinstance(status, int):
        raise TypeError("a problem document carries its status as a number")
    return Response(orjson.dumps(body), status_code=status, headers=dict(headers), media_type=MEDIA_TYPE)


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of our tree."""
    if not isinstance(error, errors.ServerError):
        raise error
    return answer(error, trace_of(request.scope))


async def answer_validation(request: Request, error: Exception) -> Response:
    """Answer a body or parameter that does not fit its schema: all faulty fields, by name."""
    if not isinstance(error, RequestValidationError):
        raise error
    found = error.errors()[:16]
    faults = [{"field": _path(fault["loc"]), "detail": _reason(fault)} for fault in found]
    first = invalid_field(found[0])
    trace = trace_of(request.scope)
    trace.problem = "invalid_field"
    if trace.face == "openai":
        return respond(first, trace.request_id, trace.face)
    return _respond(document(first, trace.request_id) | {"errors": faults}, {})


async def answer_http(request: Request, error: Exception) -> Response:
    """Answer what the router itself raises: an unknown route, or a wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
        return await answer_error(request, errors.NotFound("there is no such route"))
    trace = trace_of(request.scope)
    trace.problem = METHOD_NOT_ALLOWED.slug
    allow = {"allow": _methods_of(request) or (error.headers or {}).get("Allow", "")}
    if trace.face == "openai":
        kind = METHOD_NOT_ALLOWED
        return _in_envelope(_envelope(kind.status, kind.title, None, kind.slug), kind.status, allow)
    body = document(errors.InputError("the route does not take this method"), trace.request_id)
    body |= {
        "type": TYPE_PREFIX + METHOD_NOT_ALLOWED.slug,
        "title": METHOD_NOT_ALLOWED.title,
        "status": METHOD_NOT_ALLOWED.status,
    }
    return _respond(body, allow)


def _methods_of(request: Request) -> str:
    """List all methods that a path takes: the router tells those of the first route only."""
    methods: dict[str, list[str]] = {}
    for endpoint in request.app.state.metrics.endpoints - {OTHER}:
        method, template = endpoint.split(" ", 1)
        if compile_path(template)[0].match(request.scope["path"]):
            methods.setdefault(template, []).append(method)
    # A path that is spelt out goes before one that also fits a template.
    return ", ".join(sorted(methods[min(methods, key=lambda template: "{" in template)])) if methods else ""


def install(app: FastAPI) -> None:
    """Make every answer that is not a success one of this module's."""
    app.add_exception_handler(errors.ServerError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_http)
