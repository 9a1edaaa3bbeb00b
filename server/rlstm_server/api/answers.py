"""JSON answers, encoded off the event loop where they are large; what the OpenAPI document says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from rlstm_server.api.problems import MEDIA_TYPE
from rlstm_server.schemas.text import Timings
from rlstm_server.schemas.wire import Answer, Unit, laid_out

INLINE_TOKENS: Final = 512
"""An answer about fewer tokens is encoded at once; a larger one in a thread."""


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
        body = await encode(partial(laid_out, answer, unit), tokens)
    else:
        body = await encode(answer, tokens)
    response = Response(body, status_code=status, headers=headers, media_type="application/json")
    if timings is not None:
        response.headers["server-timing"] = server_timing(timings)
    if version is not None:
        response.headers["etag"] = f'"{version}"'
    return response


async def encode(build: Callable[[], Mapping[str, Any]], tokens: int) -> bytes:
    """Build an answer and encode it."""
    if tokens <= INLINE_TOKENS:
        return orjson.dumps(build())
    return await asyncio.to_thread(lambda: orjson.dumps(build()))


def server_timing(timings: Timings) -> str:
    """Write a Server-Timing header: milliseconds in the queue, on the device, at the store."""
    parts = (("queue", timings.queue), ("compute", timings.compute), ("store", timings.store))
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in parts)


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
