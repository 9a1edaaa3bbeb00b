"""The table of nasties put into every place of every route, one place at a time, and then two."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.asgi import Request
from tests.fuzz.nasties import (
    BODIES,
    CANARY,
    HEADER_VALUES,
    HEADERS,
    METHODS,
    PATH_VALUES,
    QUERY_VALUES,
    VALUES,
)
from tests.fuzz.surface import OCTETS, Operation, Place, Surface

_HERE = "\ue000here"
DECLARED = {"content-type": b"application/json"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request: an operation, and what is wrong with it. `name` says both."""

    operation: Operation
    name: str
    body: bytes = b""
    headers: tuple[tuple[str, bytes], ...] = ()
    path: tuple[tuple[str, str], ...] = ()
    query: str = ""

    def request(self, session: str, always: dict[str, bytes]) -> Request:
        """The request for a session, with headers that stand in all requests unless this one has its own."""
        path = self.operation.template
        for name, value in {
            "session_id": session,
            "snapshot": "one",
            "model_id": "tiny",
            **dict(self.path),
        }.items():
            path = path.replace(f"{{{name}}}", value)
        own = {name for name, _ in self.headers}
        headers = [(name, value) for name, value in always.items() if name not in own] + list(self.headers)
        return Request(
            method=self.operation.method,
            target=path + (f"?{self.query}" if self.query else ""),
            headers=tuple((name.encode(), value) for name, value in headers),
            body=self.body,
        )

    def beside(self, other: "Case") -> "Case":
        """Both at once; where they meet, the other's is sent."""
        headers = {**dict(self.headers), **dict(other.headers)}
        return replace(
            other,
            name=f"{self.name} + {other.name}",
            headers=tuple(headers.items()),
            body=other.body if other.touches_body else self.body,
            path=self.path + other.path,
            query="&".join(part for part in (self.query, other.query) if part),
        )

    @property
    def touches_body(self) -> bool:
        """Whether the body is what is wrong."""
        return self.name.startswith("body")


def all_cases(surface: Surface) -> list[Case]:
    """Every nasty in every place that it can stand in, one a case."""
    return [case for operation in surface.operations for case in _cases_of(surface, operation)]


def pairs(cases: list[Case], count: int, seed: int) -> Iterator[Case]:
    """So many cases of two nasties each, of the same operation."""
    draw, grouped = random.Random(seed), {}
    for case in cases:
        grouped.setdefault((case.operation.method, case.operation.template), []).append(case)
    groups = [group for group in grouped.values() if len(group) > 1]  # a wrong method is wrong enough
    for _ in range(count):
        one, other = draw.sample(draw.choice(groups), 2)
        yield one.beside(other)


def right(operation: Operation) -> Case:
    """A request that nothing is wrong with."""
    if operation.file:
        headers = {"content-type": OCTETS.encode()}
        return Case(operation=operation, name="right", body=b"no file", headers=tuple(headers.items()))
    if operation.body is None:
        return Case(operation=operation, name="right")
    body = json.dumps(operation.least).encode()
    return Case(operation=operation, name="right", body=body, headers=tuple(DECLARED.items()))


def _cases_of(surface: Surface, operation: Operation) -> Iterator[Case]:
    plain = right(operation)
    for method in METHODS:
        yield replace(plain, name=f"method {method}", operation=replace(operation, method=method))
    for place in sorted(set(_places(surface, operation)), key=str):
        for name, value in VALUES.items():
            yield replace(
                plain, name=f"body {_written(place)}: {name}", body=_filled(surface, operation, place, value)
            )
    for name, (body, kind) in BODIES.items():
        headers = () if kind is None else (("content-type", kind),)
        yield replace(plain, name=f"body: {name}", body=body, headers=headers)
    for header in sorted({*HEADERS, *operation.headers}):
        for name, value in HEADER_VALUES.items():
            # A request id that can be one comes back: it is no canary then.
            value = value.replace(CANARY.encode(), b"request-id") if header == "x-request-id" else value
            headers = {**dict(plain.headers), header: value}
            yield replace(plain, name=f"header {header}: {name}", headers=tuple(headers.items()))
    for part in ("session_id", "snapshot", "model_id"):
        if f"{{{part}}}" in operation.template:
            for name, text in PATH_VALUES.items():
                yield replace(plain, name=f"path {part}: {name}", path=((part, text),))
    for parameter in (*operation.query, f"{CANARY}"):
        for name, text in QUERY_VALUES.items():
            yield replace(plain, name=f"query {parameter}: {name}", query=f"{parameter}={text}")


def _places(surface: Surface, operation: Operation) -> Iterator[Place]:
    if operation.body is not None:
        yield ()
        yield from surface.places(operation.body)
        yield ("unknown",)


def _filled(surface: Surface, operation: Operation, place: Place, value: bytes) -> bytes:
    if not place:
        return value
    body: Any = surface.with_value(operation, place, _HERE)
    return json.dumps(body, ensure_ascii=False).encode().replace(f'"{_HERE}"'.encode(), value)


def _written(place: Place) -> str:
    return ".".join(map(str, place)) or "whole"
