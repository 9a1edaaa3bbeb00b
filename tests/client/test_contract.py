"""What both clients send and read is what the server's document says: neither side moves alone.

The routes under ``/v1`` are left out on purpose: OpenAI's own package is their client.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import pytest

from rlstm_client import AsyncClient, Client, errors, models
from rlstm_server.app import create_app
from rlstm_server.errors import TABLE
from rlstm_server.settings import Settings

ELSEWHERE = "/v1/"
ONE = "a" * 32
BY_THEMSELVES = {"last_event_id", "stream"}
"""What no caller gives: a stream that goes on sends it."""


METHODS: dict[str, tuple[str, Any]] = {
    "POST /score": ("score", models.ScoreResult),
    "POST /generate": ("generate", models.Generation),
    "POST /tokenize": ("tokenize", None),
    "POST /detokenize": ("detokenize", None),
    "GET /tokenizer_info": ("tokenizer_info", models.TokenizerInfo),
    "GET /info": ("info", None),
    "GET /metrics": ("metrics", None),
    "GET /health/live": ("live", None),
    "GET /health/ready": ("ready", None),
    "POST /sessions": ("sessions.create", models.SessionInfo),
    "GET /sessions": ("sessions.page", models.SessionPage),
    "POST /sessions/import": ("sessions.import_session", models.SessionInfo),
    "GET /sessions/{session_id}": ("-info", models.SessionInfo),
    "GET /sessions/{session_id}/note": ("-note", models.SessionNote),
    "PATCH /sessions/{session_id}": ("-update", models.SessionInfo),
    "DELETE /sessions/{session_id}": ("-delete", None),
    "POST /sessions/{session_id}/append": ("-append", models.AppendResult),
    "POST /sessions/{session_id}/score": ("-score", models.Ranking),
    "POST /sessions/{session_id}/generate": ("-generate", models.Generation),
    "POST /sessions/{session_id}/reset": ("-reset", models.SessionInfo),
    "POST /sessions/{session_id}/fork": ("-fork", models.SessionInfo),
    "GET /sessions/{session_id}/export": ("-export", None),
    "POST /sessions/{session_id}/snapshots": ("-snapshot", models.Snapshot),
    "GET /sessions/{session_id}/snapshots": ("-snapshots", models.SnapshotList),
    "DELETE /sessions/{session_id}/snapshots/{snapshot}": ("-drop_snapshot", None),
    "POST /sessions/{session_id}/restore": ("-restore", models.SessionInfo),
    "GET /sessions/{session_id}/stream": ("-stream", None),
}
UNREAD = {
    "timings",
    "fingerprint",
    "adaptation_fingerprint",
    "numerics",
    "top",
    "model",
}
"""What may be without a field: it is read into ``extra``."""
CLIENTS = [Client, AsyncClient]


@pytest.fixture(scope="module")
def document() -> Any:
    """The server's OpenAPI document."""
    return create_app(Settings(durability="memory")).openapi()


@pytest.fixture(scope="module")
def operations(document: Any) -> dict[str, Any]:
    """Every operation of the document by its name, but for OpenAI's."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        if not path.startswith(ELSEWHERE)
        for method, operation in methods.items()
    }


def arguments_of(function: Callable[..., Any]) -> set[str]:
    """What a method takes, the options that are written elsewhere included."""
    found = set()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = get_args(parameter.annotation)
            found |= set(get_type_hints(options))
        else:
            found.add(name)
    return found


def resolved(document: Any, schema: Any) -> Any:
    """A schema as an object or an array: references followed, null left out."""
    if "$ref" in schema:
        return resolved(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]])
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return resolved(document, options[0]) if options else schema


def unlike(document: Any, ours: Any, schema: Any, where: str) -> Iterator[str]:
    """Where a class of this client and a schema of the server differ, and what is nested in both."""
    theirs = resolved(document, schema)
    members, needed = theirs.get("properties", {}), set(theirs.get("required", ()))
    named = {field.name: field for field in fields(ours)}
    yield from (f"{where}.{name} is not read" for name in members.keys() - named.keys() - UNREAD)
    for name, field in named.items():
        if field.default is MISSING and field.default_factory is MISSING and name not in needed:
            yield f"{where}.{name} is not always sent"
        hint = get_type_hints(ours)[name]
        nested = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
        if nested is not None and name in members:
            inner = resolved(document, members[name])
            yield from unlike(document, nested, inner.get("items", inner), f"{where}.{name}")


def test_every_operation_has_a_method(operations: dict[str, Any]) -> None:
    """No operation of the server is out of reach, and no method leads nowhere."""
    assert set(METHODS) == set(operations)


@pytest.mark.parametrize("name", [name for name, (_, kind) in METHODS.items() if kind])
def test_every_member_of_an_answer_has_a_field(document: Any, operations: dict[str, Any], name: str) -> None:
    """What the server documents is read, and what has no default here is always sent; nested parts too."""
    answers = [one for status, one in operations[name]["responses"].items() if status < "3"]
    schema = answers[0]["content"]["application/json"]["schema"]

    assert list(unlike(document, METHODS[name][1], schema, METHODS[name][1].__name__)) == []


def test_every_member_of_an_event_has_a_field(document: Any, operations: dict[str, Any]) -> None:
    """Events are read without a remainder."""
    (answer,) = (one for status, one in operations["POST /generate"]["responses"].items() if status < "3")
    kinds = {"token": models.TokenEvent, "end": models.EndEvent}
    for event in answer["content"]["text/event-stream"]["itemSchema"]["oneOf"]:
        name, data = event["properties"]["event"]["const"], event["properties"]["data"]["contentSchema"]
        if name in kinds:
            assert list(unlike(document, kinds[name], data, name)) == []


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", METHODS)
def test_every_argument_is_known_and_everything_can_be_given(
    document: Any, operations: dict[str, Any], kind: type[Any], name: str
) -> None:
    """Query, headers and body: the server refuses unknown fields, so another name would never work."""
    path, client, operation = METHODS[name][0], kind(), operations[name]
    method = attrgetter(path.removeprefix("-"))(client.sessions.get(ONE) if path[0] == "-" else client)
    given = {p["name"].replace("-", "_") for p in operation.get("parameters", ()) if p["in"] != "path"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    fields_of_body = set(resolved(document, body["schema"])["properties"]) if body else set()
    assert (given | fields_of_body) - BY_THEMSELVES - {"tokens"} <= arguments_of(method)
    if body:
        path = set(re.findall(r"{(\w+)}", name))
        assert arguments_of(method) <= given | fields_of_body | path


def test_an_error_has_one_name() -> None:
    """Every error of the server's table is a class here, by name, type and status; and none else is."""
    theirs = {
        name: (kind.__name__.removesuffix("Error").lower(), kind.status) for name, kind in TABLE.items()
    }
    ours = {
        each.type: (each.__name__.removesuffix("Error").lower(), each.status)
        for each in errors.error_classes()
        if each.type
    }

    assert ours == theirs
