"""JSON in and out: strict bodies, encoded answers, both in a thread where they are long.

What a lax parser would let pass is refused. A body that is made to cost much is refused early: each part of
it becomes an object, and each part that is wrong could become an error of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Literal

import jiter
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel, Field

from rlstm_server.api.problems import MEDIA_TYPE, invalid_fields
from rlstm_server.engine.requests import off_loop
from rlstm_server.errors import InvalidJson, InvalidText, UnsupportedMediaType
from rlstm_server.schemas.text import Timings
from rlstm_server.schemas.wire import Answer, Unit, laid_out

JSON: Final = "application/json"

INLINE_BYTES: Final = 16_384
"""A smaller body is parsed at once; a larger one in a thread, so that other requests go on."""

MAX_PARTS: Final = 65_536
"""Objects, lists and fields of one body: what takes much more memory parsed than written."""

INLINE_TOKENS: Final = 512
"""An answer about fewer tokens is encoded at once; a larger one in a thread."""

_TO_NEXT_PART = re.compile(rb'(?s)(?:[^"\[{:]++|"(?:[^"\\]++|\\.)*+"?+)*+[\[{:]')
_PLACE = re.compile(r"at line (\d+) column (\d+)$")


class StrictRoute(APIRoute):
    """A route whose body, if it has one, is read by `parse_strictly`; an empty body counts as `{}`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler, which finds a body that is valid already."""
        handle, schema = super().get_route_handler(), self.body_field
        if schema is None:
            return handle

        def read(body: bytes) -> Any:
            value, faults = schema.validate(parse_strictly(body), loc=("body",))
            if faults:
                model: Any = schema.field_info.annotation
                raise invalid_fields(faults, model)
            return value

        async def handle_strictly(request: Request) -> Response:
            body = await request.body()
            if body:
                check_declared(request, JSON)
            found = ReadRequest(request.scope, request.receive)
            found.value = await off_loop(len(body), partial(read, body or b"{}"), INLINE_BYTES)
            return await handle(found)

        return handle_strictly


def strict_routes(tag: str, prefix: str = "") -> APIRouter:
    """Make what a module's routes are put into; a body that says nothing of its type is taken as JSON."""
    return APIRouter(prefix=prefix, route_class=StrictRoute, tags=[tag], strict_content_type=False)


class ReadRequest(Request):
    """A request whose body has been read already."""

    value: Any

    async def body(self) -> bytes:
        """Give what FastAPI takes for a body that is there."""
        return b"{}"

    async def json(self) -> Any:
        """Give what the body says."""
        return self.value


def check_declared(request: Request, media_type: str) -> None:
    """Raise UnsupportedMediaType unless a body is declared as this, by one header.

    The standard library's parsers take e-mail's extended parameters too, and fail on some that are none.
    """
    values = request.headers.getlist("content-type")
    said, *parameters = (values[0] if len(values) == 1 else "").lower().split(";")
    named = {name.strip(): value.strip(' \t"') for name, _, value in (p.partition("=") for p in parameters)}
    if said.strip() != media_type:
        raise UnsupportedMediaType(f"send the body with content-type: {media_type}")
    if named.get("charset", "utf-8") not in {"utf-8", "utf8"}:
        raise UnsupportedMediaType("send the body as UTF-8")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType("send the body as it is, without content-encoding")


def parse_strictly(body: bytes) -> Any:
    """Parse one JSON document (RFC 8259, UTF-8). Numbers beyond a double are the schemas' to refuse.

    Raises:
        InvalidJson: not JSON, NaN or Infinity, a key given twice, too deep, or of too many parts.
        InvalidText: a string holds a lone surrogate.
    """
    if sum(map(body.count, (b"[", b"{", b":"))) > MAX_PARTS:
        _count_parts(body)
    try:
        return jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _refusal(str(error)) from None


def _refusal(reason: str) -> InvalidJson | InvalidText:
    """Say in our words what the parser found: its own may quote the body."""
    if "hex escape" in reason:
        return InvalidText("a string holds a lone surrogate, which is not text")
    if "duplicate key" in reason:
        return InvalidJson("a key is given twice in one object")
    if "recursion limit" in reason:
        return InvalidJson("the body nests too deep")
    place = _PLACE.search(reason)
    where = f" (line {int(place[1]):,}, column {int(place[2]):,})" if place else ""
    kind = "UTF-8" if "unicode" in reason else "JSON"
    return InvalidJson(f"the body is not {kind}{where}")


def _count_parts(body: bytes) -> None:
    """Count what opens an object or a list, or ends a field's name, outside of strings; makes nothing yet."""
    at = 0
    for _ in range(MAX_PARTS + 1):
        part = _TO_NEXT_PART.match(body, at)
        if part is None:
            return
        at = part.end()
    raise InvalidJson(f"the body has more than {MAX_PARTS:,} objects, lists and fields")


# ---- answers ----------------------------------------------------------------------------------------------


async def respond(
    answer: Answer | Callable[[], Mapping[str, Any]],
    *,
    unit: Unit = "nats",
    tokens: int = 0,
    timings: Timings | None = None,
    version: int | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Write an answer about so many tokens, all its logarithms in this unit; or what a function makes."""
    if isinstance(answer, Answer):
        timings = getattr(answer, "timings", None)
        build: Callable[[], Mapping[str, Any]] = partial(laid_out, answer, unit)
    else:
        build = answer
    body = await off_loop(tokens, lambda: orjson.dumps(build()), INLINE_TOKENS)
    response = Response(body, status_code=status, headers=headers, media_type=JSON)
    if timings:
        told = (f"{name};dur={seconds * 1000:.3f}" for name, seconds in timings.items())
        response.headers["server-timing"] = ", ".join(told)
    if version is not None:
        response.headers["etag"] = f'"{version}"'
    return response


# ---- in the OpenAPI document ------------------------------------------------------------------------------


class Problem(BaseModel):
    """An error (RFC 9457). The last part of `type` names it for programs."""

    type: str
    title: str
    status: int
    detail: str
    applied: Literal["no", "yes", "unknown"] = Field(
        description="Whether the change took effect. Of a request with a key it is `no` only where no earlier"
        " one with that key can have done it; where it is `unknown`, a repeat with the same key tells."
    )
    request_id: str


SCHEMAS: Final = "#/components/schemas/"

PROBLEMS: Final[Mapping[int, str]] = {
    400: "Not strict JSON; text that is no text; ids outside the vocabulary.",
    401: "No key, or a wrong one.",
    403: "The key may not do this.",
    404: "Unknown, or somebody else's.",
    408: "The request did not arrive in time, or its answer was not read in time.",
    409: "The session, a name, a key or the server is in a state that forbids it; `type` says which.",
    410: "Deleted or expired within the last 24 hours.",
    412: "The session is at another version, which `version` tells.",
    413: "Over a limit; both numbers are named.",
    415: "The body is not declared as what the route reads.",
    422: "A field is wrong, or the idempotency key was used with another body.",
    426: "It is reached over a WebSocket, and this was none: a proxy may have made it a plain request.",
    429: "Your quota is used up.",
    500: "A fault of the server, logged with the request id; or the stored state cannot be used.",
    503: "Overloaded, draining, or the store is down or full; or committed less durably than asked.",
    504: "Whether it was applied is not known: repeat it with the same key.",
}
"""Every status of a problem document but that of a wrong method."""

ALWAYS: Final = (401, 403, 408, 413, 429, 500, 503)
BODY: Final = (400, 415, 422)
SESSION: Final = (404, 409, 410, 412, 422, 504)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route refuses with: these statuses, and those that any request may get.

    A reference, since FastAPI would make a validator of its own for each status of each route.
    """
    listed, schema = sorted({*ALWAYS, *statuses}), {"$ref": SCHEMAS + Problem.__name__}
    content = {MEDIA_TYPE: {"schema": schema}}
    return {status: {"content": content, "description": PROBLEMS[status]} for status in listed}


def answers(status: int, model: Any, *refusals: int) -> dict[int | str, dict[str, Any]]:
    """Document what a route answers, and the statuses that it refuses with."""
    return {status: {"model": model}, **problems(*refusals)}
