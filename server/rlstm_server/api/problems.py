"""Errors to HTTP: RFC 9457 documents and, under `/v1`, OpenAI's envelope. What each says is in `errors`.

The last part of a document's `type` is the error's name. Documents hold our own sentences and numbers only:
nothing that a caller sent is ever repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Final, get_args

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rlstm_server import errors
from rlstm_server.api.tracing import TRACE, Face, Trace
from rlstm_server.faults import reason

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:rlstm:problem:"
HIDDEN_FACTS: Final = frozenset({"retry_after"})
OURS: Final = "the fault was logged with the request id"
TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""What OpenAI's envelope calls a status; any other is the request's fault, or the server's."""

FIELD_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
PARAM: Final = re.compile(rf"({FIELD_NAME.pattern})(?=$|[.\[])")
"""The field of a request in a place such as `prompt[1].text`; a limit's name is none."""
MAX_FAULTS: Final = 16
"""So many faults of a request are told."""

METADATA: Final = "metadata"
"""The field whose own fields are the caller's: none of their names is repeated."""


def document(error: errors.ServerError, request_id: str) -> dict[str, object]:
    """Build the problem document of `error`; a fault of ours says nothing but its request id."""
    ours = error.status == HTTPStatus.INTERNAL_SERVER_ERROR
    facts = {} if ours else {name: value for name, value in error.facts.items() if name not in HIDDEN_FACTS}
    return {
        **facts,
        "type": TYPE_PREFIX + error.code,
        "title": error.title,
        "status": error.status,
        "detail": OURS if ours else error.detail,
        "applied": error.applied,
        "request_id": request_id,
    }


def envelope(error: errors.ServerError) -> dict[str, object]:
    """Say the same in OpenAI's envelope; `param` is the field of the request that is at fault."""
    status = error.openai_status
    ours = status == HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    named = None if ours else PARAM.match(str(error.facts.get("field", "")))
    return {
        "error": {
            "message": OURS if ours else error.detail,
            "type": TYPES.get(status, kind),
            "param": named[1] if named else None,
            "code": error.code,
        }
    }


def respond(error: errors.ServerError, request_id: str, face: Face = "native") -> Response:
    """Answer with `error` in these words, `Retry-After` included where a repeat can help."""
    headers = _headers(error)
    if face == "openai":
        # Tells clients not to repeat what can only fail again.
        headers["x-should-retry"] = "true" if "retry-after" in headers else "false"
        body = orjson.dumps(envelope(error))
        return Response(body, error.openai_status, headers, media_type="application/json")
    body = orjson.dumps(document(error, request_id))
    return Response(body, error.status, headers, media_type=MEDIA_TYPE)


def answer(error: errors.ServerError, trace: Trace) -> Response:
    """Answer `error`, and note it in the request's trace."""
    note(error, trace)
    return respond(error, trace.request_id, trace.face)


def note(error: errors.ServerError, trace: Trace) -> None:
    """Write down what the request came to; of one with a key the error says only what is known of the key."""
    if trace.keyed and trace.changes:
        error.doubt()
    trace.error = error
    if isinstance(error, errors.InternalFault):
        trace.fault = error
    superseded = isinstance(error, errors.InFlight) and trace.status is not None
    if superseded or isinstance(error, errors.SlowConsumer):
        trace.cancelled = True  # whoever read the stream has left it, or stopped reading


def _headers(error: errors.ServerError) -> dict[str, str]:
    headers = {}
    if (seconds := error.retry_after_seconds) is not None:
        headers["retry-after"] = str(math.ceil(seconds))
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.UpgradeRequired):
        headers |= {"upgrade": "websocket", "connection": "upgrade"}
    if isinstance(error, errors.VersionMismatch):
        headers["etag"] = f'"{error.facts["version"]}"'
    if isinstance(error, errors.MethodNotAllowed):
        headers["allow"] = str(error.facts.get("allow", ""))
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


def invalid_fields(
    faults: Sequence[Mapping[str, Any]], schema: type[BaseModel] | None = None
) -> errors.InvalidField:
    """Say what pydantic found wrong, and where; `schema` is what the value was held against."""
    told: dict[str, str] = {}
    for fault in faults[:MAX_FAULTS]:  # a value of several types has a fault for each: the first is told
        told.setdefault(_path(fault["loc"] or ("body",)), _detail(fault, schema))
    field, detail = next(iter(told.items()))
    error = errors.InvalidField(field, f"{field}: {detail}")
    error.facts["errors"] = [{"field": field, "detail": detail} for field, detail in told.items()]
    return error


def _detail(fault: Mapping[str, Any], schema: type[BaseModel] | None) -> str:
    """Say what is wrong; of a field that is none also which one it is like."""
    *place, name = map(str, fault["loc"] or ("",))
    for part in place:
        if schema is not None and part in schema.model_fields:
            schema = _model_in(schema.model_fields[part].annotation)
    is_unknown = fault["type"] == "extra_forbidden" and FIELD_NAME.fullmatch(name)
    near = get_close_matches(name, schema.model_fields, n=1, cutoff=0.7) if schema and is_unknown else ()
    return reason(fault) + "".join(f"; {field} may be meant" for field in near)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model that a type is made of, such as a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


async def answer_error(request: Request, error: Any) -> Response:
    """Answer an error of our tree."""
    return answer(error, request.scope[TRACE])


async def answer_validation(request: Request, error: Any) -> Response:
    """Answer a parameter that does not fit its schema."""
    return await answer_error(request, invalid_fields(error.errors()))


async def answer_http(request: Request, error: Any) -> Response:
    """Answer what the router itself raises: an unknown route, or a wrong method."""
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
        return await answer_error(request, errors.NotFound("there is no such route"))
    methods = request.app.state.endpoints.methods_of(request.scope["path"])
    allow = ", ".join(methods) or (error.headers or {}).get("Allow", "")
    refused = errors.MethodNotAllowed(f"the route takes {allow}" if allow else "no method is taken here")
    refused.facts = {"allow": allow}
    return await answer_error(request, refused)


def install(app: FastAPI) -> None:
    """Make every answer that is not a success one of this module's."""
    app.add_exception_handler(errors.ServerError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_http)
