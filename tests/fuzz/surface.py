"""All that a client can put something into, as the server's own OpenAPI document tells it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
OCTETS = "application/octet-stream"

LEAST = {
    "AppendIn": {"text": "a"},
    "CandidateIn": {"text": "a"},
    "CandidatesIn": {"candidates": [{"text": "a"}]},
    "CompletionIn": {"model": "tiny", "prompt": "a", "max_tokens": 1},
    "ContinueIn": {"max_tokens": 1},
    "DetokenizeIn": {"tokens": [97]},
    "GenerateIn": {"max_tokens": 1},
    "ItemIn": {"text": "a"},
    "LogprobIn": {"continuation": "a"},
    "RestoreIn": {"snapshot": "one"},
    "ScoreIn": {"text": "a"},
    "SnapshotIn": {"name": "two"},
    "TokenizeIn": {"prompt": "a"},
    "UpdateIn": {"learning": True},
}
"""What an object needs in order to be right, by its schema; an empty one is for all others."""

INSTEAD_OF = {
    "tokens": ("text", "prompt", "items"),
    "items": ("text", "tokens"),
    "context_tokens": ("context",),
    "text": ("tokens",),
}
"""Fields that cannot stand beside another one."""

Place = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method on a path.

    body      the schema of its JSON; None where it takes none
    file      whether it takes bytes
    query     names of parameters; headers as well
    statuses  all that are documented
    """

    method: str
    template: str
    body: dict[str, Any] | None
    file: bool
    query: tuple[str, ...]
    headers: tuple[str, ...]
    statuses: frozenset[int]

    @property
    def least(self) -> dict[str, Any]:
        """The smallest body that is right."""
        return {} if self.body is None else dict(LEAST.get(self.body["title"], {}))


class Surface:
    """An OpenAPI document, read for what can be put where."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.operations = [
            self._operation(method, template, described)
            for template, methods in document["paths"].items()
            for method, described in methods.items()
        ]

    def documented(self, method: str, template: str | None) -> frozenset[int] | None:
        """The statuses of an operation; None for what is none."""
        for operation in self.operations:
            if (operation.method, operation.template) == (method, template):
                return operation.statuses
        return None

    def places(self, schema: dict[str, Any], at: Place = ()) -> Iterator[Place]:
        """Every place in a body of this schema where a value can stand, lists' first entries included."""
        schema = self._resolved(schema)
        for choice in schema.get("anyOf", [schema]):
            choice = self._resolved(choice)
            for name, inner in choice.get("properties", {}).items():
                yield (*at, name)
                yield from self.places(inner, (*at, name))
            for name, key in (("items", 0), ("additionalProperties", "field")):
                if isinstance(inner := choice.get(name), dict):
                    yield (*at, key)
                    yield from self.places(inner, (*at, key))

    def with_value(self, operation: Operation, place: Place, value: Any) -> Any:
        """The least body of an operation with a value at a place, and what must be around it."""
        assert operation.body is not None
        body = operation.least
        self._put(body, operation.body, place, value)
        return body

    def _put(self, body: Any, schema: dict[str, Any], place: Place, value: Any) -> None:
        first, *rest = place
        if isinstance(first, str):
            for other in INSTEAD_OF.get(first, ()):
                body.pop(other, None)
        if not rest:
            _set(body, first, value)
            return
        inner = self._inner(schema, first)
        there = body.get(first) if isinstance(body, dict) else None
        if not isinstance(there, dict | list):
            there = [] if rest[0] == 0 else dict(LEAST.get(inner.get("title", ""), {}))
            _set(body, first, there)
        self._put(there, inner, tuple(rest), value)

    def _inner(self, schema: dict[str, Any], name: str | int) -> dict[str, Any]:
        schema = self._resolved(schema)
        for choice in map(self._resolved, schema.get("anyOf", [schema])):
            if name == 0 and "items" in choice:
                return self._resolved(choice["items"])
            if name in choice.get("properties", {}):
                inner = self._resolved(choice["properties"][name])
                options = [self._resolved(option) for option in inner.get("anyOf", [inner])]
                return next((one for one in options if {"items", "properties"} & set(one)), inner)
        return {}

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def _operation(self, method: str, template: str, described: dict[str, Any]) -> Operation:
        content = described.get("requestBody", {}).get("content", {})
        parameters = described.get("parameters", [])
        return Operation(
            method=method.upper(),
            template=template,
            body=self._resolved(content[JSON]["schema"]) if JSON in content else None,
            file=OCTETS in content,
            query=tuple(one["name"] for one in parameters if one["in"] == "query"),
            headers=tuple(one["name"] for one in parameters if one["in"] == "header"),
            statuses=frozenset(map(int, described["responses"])),
        )


def _set(body: Any, name: str | int, value: Any) -> None:
    if isinstance(body, list):
        body[:] = [value]
    else:
        body[name] = value
