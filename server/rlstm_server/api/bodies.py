"""Strict JSON bodies: what Python's parser would let pass is refused before a schema sees it.

A large one is parsed and held against its schema in a thread, a long one in pieces. One that is made to
cost much is refused early: each part of a body becomes an object, and each part that is wrong could become an
error of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from rlstm_server.api.long_bodies import Skeleton
from rlstm_server.errors import InputError, InvalidText

MAX_DEPTH = 32
INLINE_BYTES = 16_384
"""A smaller body is parsed at once; a larger one in a thread, so that other requests go on."""

MAX_PARTS = 65_536
"""Objects, lists and fields of one body: what takes much more memory parsed than written."""

MAX_FIELDS = 1_024
"""Fields of one object: a schema finds a fault with each that it does not know."""

PIECE = 65_536
"""Characters of a long text that are looked at in one call: others wait meanwhile."""

_TO_NEXT_PART = re.compile(rb'(?s)(?:[^"\[{:]++|"(?:[^"\\]++|\\.)*+"?+)*+[\[{:]')


class InvalidJson(InputError):
    """The body is not strict JSON."""

    code = "invalid_json"


class UnsupportedMediaType(InputError):
    """The body is not declared as what the route reads."""

    code = "unsupported_media_type"


class BodyTimeout(InputError):
    """The body did not arrive in time."""

    code = "receive_timeout"
    settled = False


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
                raise RequestValidationError(faults)
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
    """Parse one JSON document (RFC 8259, UTF-8).

    Raises:
        InvalidJson: not JSON, NaN or Infinity, a number beyond a double, a key given twice, too deep, or of
            too many parts.
        InvalidText: a string holds a lone surrogate.
    """
    skeleton = Skeleton(body)
    _check_parts(skeleton.written)
    try:
        value = json.loads(
            skeleton.written.decode("utf-8"),
            object_pairs_hook=lambda pairs: _unique_keys([(skeleton.text(key), of) for key, of in pairs]),
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except InvalidJson:
        raise
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8 (byte {skeleton.place(error.start):,})") from None
    except json.JSONDecodeError as error:
        before = body[: skeleton.place(len(error.doc[: error.pos].encode()))].decode()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InvalidJson(f"the body is not JSON (line {line:,}, column {column:,})") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise InvalidJson("an integer has too many digits") from None
    value = skeleton.whole(value)
    _check_tree(value)
    return value


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


def _check_tree(root: Any) -> None:
    """Walk level by level: no lone surrogate in a string, at most `MAX_DEPTH` containers in each other."""
    level: list[Any] = [[root]]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for container in level for inner in _containers_in(container)]
        if not level:
            return
    raise _too_deep()


def _containers_in(container: list[Any] | dict[str, Any]) -> list[Any]:
    """Check the strings right inside, and give the containers there."""
    if isinstance(container, dict):
        for key in container:
            _check_text(key)
        container = list(container.values())
    inner = [value for value in container if isinstance(value, (str, list, dict))]
    for value in inner:
        if isinstance(value, str):
            _check_text(value)
    return [value for value in inner if not isinstance(value, str)]


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        for start in range(0, len(text), PIECE):
            text[start : start + PIECE].encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidText("a string holds a lone surrogate, which is not text") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_FIELDS:
        raise InvalidJson(f"an object has more than {MAX_FIELDS:,} fields")
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidJson("a key is given twice in one object")
    return made


def _refuse_constant(_name: str) -> NoReturn:
    raise InvalidJson("NaN and Infinity are not JSON numbers")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidJson("a number is too large for a double")
    return number


def _too_deep() -> InvalidJson:
    return InvalidJson(f"the body nests deeper than {MAX_DEPTH} levels")
