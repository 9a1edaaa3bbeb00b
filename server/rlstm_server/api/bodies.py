"""Strict JSON bodies: what a lax parser would let pass is refused, and a long one is read in a thread.

One that is made to cost much is refused early: each part of a body becomes an object, and each part that is
wrong could become an error of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import jiter
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from rlstm_server.errors import InvalidJson, InvalidText, UnsupportedMediaType

INLINE_BYTES: Final = 16_384
"""A smaller body is parsed at once; a larger one in a thread, so that other requests go on."""

MAX_PARTS: Final = 65_536
"""Objects, lists and fields of one body: what takes much more memory parsed than written."""

MAX_FAULTS: Final = 16
"""So many faults of a body are told."""

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
                raise RequestValidationError(faults[:MAX_FAULTS])
            return value

        async def handle_strictly(request: Request) -> Response:
            return await handle(await _read(request, read))

        return handle_strictly


class ReadRequest(Request):
    """A request whose body has been read already."""

    value: Any

    async def json(self) -> Any:
        """Give what the body says."""
        return self.value


async def _read(request: Request, read: Callable[[bytes], Any]) -> ReadRequest:
    body = await request.body()
    if body:
        _check_media_type(request.headers.getlist("content-type"))
        if request.headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedMediaType("send the body as it is, without content-encoding")
    found = ReadRequest(_declared_as_json(request), request.receive)
    found._body = body or b"{}"
    if len(body) <= INLINE_BYTES:
        found.value = read(found._body)
    else:
        found.value = await asyncio.to_thread(read, body)
    return found


def _declared_as_json(request: Request) -> Any:
    """Give the request's scope; one that sent no body at all is treated as having sent JSON."""
    if "content-type" in request.headers:
        return request.scope
    headers = [*request.scope["headers"], (b"content-type", b"application/json")]
    return {**request.scope, "headers": headers}


def _check_media_type(values: list[str]) -> None:
    media_type, charset = _declared(values)
    if media_type != "application/json":
        raise UnsupportedMediaType("send the body with content-type: application/json")
    if charset not in {"utf-8", "utf8"}:
        raise UnsupportedMediaType("send the body as UTF-8")


def check_octets(values: list[str]) -> None:
    """Raise UnsupportedMediaType unless a body is declared as plain bytes."""
    if _declared(values)[0] != "application/octet-stream":
        raise UnsupportedMediaType("send the file with content-type: application/octet-stream")


def _declared(values: list[str]) -> tuple[str, str]:
    """Give media type and character set of a body, in lower case; nothing for more than one header.

    The standard library's parsers take e-mail's extended parameters too, and fail on some that are none.
    """
    media_type, *parameters = (values[0] if len(values) == 1 else "").lower().split(";")
    named = {name.strip(): value.strip(' \t"') for name, _, value in (p.partition("=") for p in parameters)}
    return media_type.strip(), named.get("charset", "utf-8")


def parse_strictly(body: bytes) -> Any:
    """Parse one JSON document (RFC 8259, UTF-8). Numbers beyond a double are the schemas' to refuse.

    Raises:
        InvalidJson: not JSON, NaN or Infinity, a key given twice, too deep, or of too many parts.
        InvalidText: a string holds a lone surrogate.
    """
    _check_parts(body)
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


def _check_parts(body: bytes) -> None:
    """Count what opens an object or a list, or ends a field's name, outside of strings; makes nothing yet."""
    if sum(map(body.count, (b"[", b"{", b":"))) <= MAX_PARTS:
        return
    at = 0
    for _ in range(MAX_PARTS + 1):
        part = _TO_NEXT_PART.match(body, at)
        if part is None:
            return
        at = part.end()
    raise InvalidJson(f"the body has more than {MAX_PARTS:,} objects, lists and fields")
