"""Both clients reach every operation of the server's document, with everything that it takes.

The routes under ``/v1`` are left out on purpose: OpenAI's own package is their client.
"""

import asyncio
import inspect
import io
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_type_hints

import httpx
import pytest

from rlstm_client import AsyncClient, Client, Retries, errors

app = pytest.importorskip("rlstm_server.app")
settings = pytest.importorskip("rlstm_server.settings")

ELSEWHERE = "/v1/"
ONE = "a" * 32
BY_THEMSELVES = {"last-event-id", "stream"}
"""What nobody gives: a stream that goes on sends it."""

METHODS: dict[str, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "POST /score": lambda c: (c.score, ("a",)),
    "POST /generate": lambda c: (c.generate, ("a",)),
    "POST /tokenize": lambda c: (c.tokenize, ("a",)),
    "POST /detokenize": lambda c: (c.detokenize, ([97],)),
    "GET /tokenizer_info": lambda c: (c.tokenizer_info, ()),
    "GET /info": lambda c: (c.info, ()),
    "GET /metrics": lambda c: (c.metrics, ()),
    "GET /health/live": lambda c: (c.live, ()),
    "GET /health/ready": lambda c: (c.ready, ()),
    "POST /sessions": lambda c: (c.sessions.create, ()),
    "GET /sessions": lambda c: (c.sessions.page, ()),
    "POST /sessions/import": lambda c: (c.sessions.import_session, (io.BytesIO(b"file"),)),
    "GET /sessions/{session_id}": lambda c: (c.sessions.get(ONE).info, ()),
    "PATCH /sessions/{session_id}": lambda c: (c.sessions.get(ONE).update, ()),
    "DELETE /sessions/{session_id}": lambda c: (c.sessions.get(ONE).delete, ()),
    "POST /sessions/{session_id}/append": lambda c: (c.sessions.get(ONE).append, ("a",)),
    "POST /sessions/{session_id}/score": lambda c: (c.sessions.get(ONE).score, (["a"],)),
    "POST /sessions/{session_id}/generate": lambda c: (c.sessions.get(ONE).generate, ()),
    "POST /sessions/{session_id}/reset": lambda c: (c.sessions.get(ONE).reset, ()),
    "POST /sessions/{session_id}/fork": lambda c: (c.sessions.get(ONE).fork, ()),
    "GET /sessions/{session_id}/export": lambda c: (c.sessions.get(ONE).export, (io.BytesIO(),)),
    "POST /sessions/{session_id}/snapshots": lambda c: (c.sessions.get(ONE).snapshot, ("n",)),
    "GET /sessions/{session_id}/snapshots": lambda c: (c.sessions.get(ONE).snapshots, ()),
    "DELETE /sessions/{session_id}/snapshots/{snapshot}": lambda c: (
        c.sessions.get(ONE).drop_snapshot,
        ("n",),
    ),
    "POST /sessions/{session_id}/restore": lambda c: (c.sessions.get(ONE).restore, ("n",)),
}
SOCKETS: dict[str, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "GET /sessions/{session_id}/stream": lambda c: (c.sessions.get(ONE).stream, (["a"],)),
}
"""What asks for WebSockets; `test_streaming` says where."""
ALL = METHODS | SOCKETS
CLIENTS = [Client, AsyncClient]


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """Every operation of the document by its name, but for OpenAI's."""
    paths = app.create_app(settings.Settings()).openapi()["paths"]
    return {
        f"{method.upper()} {path}": operation
        for path, methods in paths.items()
        if not path.startswith(ELSEWHERE)
        for method, operation in methods.items()
    }


def sent_by(kind: type[Any], name: str) -> list[httpx.Request]:
    """Call a method of a client that nobody answers, and give what it sent."""
    requests: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        raise httpx.ConnectError("nobody is there")

    client = kind(transport=httpx.MockTransport(refuse), retries=Retries(attempts=1))
    method, arguments = METHODS[name](client)
    with suppress(errors.CannotConnectError):
        made = method(*arguments)
        if inspect.iscoroutine(made):
            asyncio.run(made)
    return requests


def arguments_of(function: Callable[..., Any]) -> set[str]:
    """What a method takes, the options that are written elsewhere included."""
    found = set()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = parameter.annotation.__args__
            found |= set(get_type_hints(options))
        else:
            found.add(name)
    return found


def test_every_operation_has_a_method(operations: dict[str, Any]) -> None:
    """No operation of the server is out of reach, and no method leads nowhere."""
    assert set(ALL) == set(operations)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", METHODS)
def test_the_method_leads_there(kind: type[Any], name: str) -> None:
    """One request, to the operation's path by its method."""
    verb, template = name.split(" ")
    (request,) = sent_by(kind, name)
    assert request.method == verb
    assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), request.url.path)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", ALL)
def test_every_parameter_can_be_given(operations: dict[str, Any], kind: type[Any], name: str) -> None:
    """Each query and each header of the document is an argument of the method."""
    method, _ = ALL[name](kind())
    named = {
        parameter["name"]
        for parameter in operations[name].get("parameters", ())
        if parameter["in"] in {"query", "header"}
    }
    assert {one.replace("-", "_") for one in named - BY_THEMSELVES} <= arguments_of(method)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", METHODS)
def test_a_call_that_may_be_repeated_cannot_take_effect_twice(
    operations: dict[str, Any], kind: type[Any], name: str
) -> None:
    """Where the server takes a key there is one, but for a generation that nobody keeps."""
    takes = {parameter["name"] for parameter in operations[name].get("parameters", ())}
    (request,) = sent_by(kind, name)
    assert ("idempotency-key" in request.headers) == (
        "idempotency-key" in takes and not name.endswith("/generate")
    )


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", ALL)
def test_every_method_says_what_it_does(kind: type[Any], name: str) -> None:
    """In words, and in types for every argument and for the answer."""
    method, _ = ALL[name](kind())
    signature = inspect.signature(method)
    assert inspect.getdoc(method)
    assert signature.return_annotation is not signature.empty
    assert all(one.annotation is not one.empty for one in signature.parameters.values())
