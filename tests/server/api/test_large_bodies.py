"""Bodies that are made to cost much: what is made of one, and where."""

import threading
import tracemalloc

import pytest

from rlstm_server.api import bodies, score
from rlstm_server.api.bodies import INLINE_BYTES, StrictRoute

JSON = {"content-type": "application/json"}
SIZE = 2**16
ELEMENTS = ['""', "[]", "{}", "1.5", "null", '{"a":1}']
LISTS = [
    ("/score", '{"tokens":[%s]}'),
    ("/score", '{"text":"a","context_tokens":[%s]}'),
    ("/score", '{"items":[%s]}'),
    ("/score", '{"items":[{"tokens":[%s]}]}'),
    ("/generate", '{"tokens":[%s]}'),
    ("/generate", '{"stop":[%s]}'),
    ("/sessions", '{"tokens":[%s]}'),
    ("/sessions", '{"metadata":{"a":[%s]}}'),
    ("/sessions/{session}/append", '{"tokens":[%s]}'),
    ("/sessions/{session}/score", '{"candidates":[%s]}'),
    ("/v1/completions", '{"model":"tiny","prompt":[%s]}'),
    ("/v1/completions", '{"model":"tiny","prompt":"a","stop":[%s]}'),
    ("/detokenize", '{"tokens":[%s]}'),
]


@pytest.fixture
def faults(monkeypatch):
    """Every fault that was found with a body, in all answers so far."""
    found = []

    class Remembered(bodies.RequestValidationError):
        def __init__(self, errors, **about):
            found.extend(errors)
            super().__init__(errors, **about)

    monkeypatch.setattr(bodies, "RequestValidationError", Remembered)
    return found


def repeated(element, size=SIZE):
    return ",".join([element] * (size // (len(element) + 1)))


@pytest.mark.parametrize("element", ELEMENTS)
async def test_of_many_faults_few_are_told(client, faults, element):
    """Each would be an object: a body of 8 MiB could have three million, and would hold up everybody."""
    session = (await client.post("/sessions", json={})).json()["id"]
    for path, body in LISTS:
        faults.clear()
        content = (body % repeated(element)).encode()
        answer = await client.post(path.replace("{session}", session), content=content, headers=JSON)
        assert 400 <= answer.status_code < 500, (path, body)
        assert len(faults) <= 8, (path, body)


async def test_fields_that_nobody_knows_are_few(client, faults):
    """And so are their faults."""
    fields = ",".join(f'"x{number}":1' for number in range(50_000))
    for body in ("{%s}", '{"items":[{%s}]}', '{"adaptation":{%s}}', '{"metadata":{%s}}'):
        answer = await client.post("/sessions", content=(body % fields).encode(), headers=JSON)
        assert answer.status_code == 400
    assert faults == []


async def test_every_list_of_a_request_tells_its_first_fault_only(client):
    """In every schema of every route, also of routes that are yet to come."""
    schemas = [
        route.body_field._type_adapter.core_schema
        for part in client.app.routes
        for route in getattr(getattr(part, "original_router", None), "routes", [part])
        if isinstance(route, StrictRoute) and route.body_field is not None
    ]
    lists = [found for schema in schemas for found in _lists(schema)]
    assert len(schemas) > 10
    assert len(lists) > 10
    assert all(found.get("fail_fast") for found in lists)


def _lists(schema, known=()):
    """Give the lists among what `schema` validates: not what it writes, and no definition that it lacks."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _lists(inner, known)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "definitions":
        known = {definition["ref"]: definition for definition in schema["definitions"]}
        yield from _lists(schema["schema"], known)
        return
    if schema.get("type") == "definition-ref":
        yield from _lists(known[schema["schema_ref"]], known)
    if schema.get("type") in {"list", "set", "frozenset", "tuple", "generator"}:
        yield schema
    for name, inner in schema.items():
        if name != "serialization":
            yield from _lists(inner, known)


@pytest.mark.parametrize("element", ['""', "[]", "{}"])
async def test_what_a_body_takes_is_bounded(client, element):
    """By a few times its length: empty objects would take thirty times theirs."""
    content = b'{"tokens":[%b]}' % repeated(element, 2**20).encode()
    await client.post("/score", json={"text": "a"})
    tracemalloc.start()
    try:
        answer = await client.post("/score", content=content, headers=JSON)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.is_client_error
    assert most < 8 * 2**20


@pytest.mark.parametrize(("size", "elsewhere"), [(INLINE_BYTES, False), (INLINE_BYTES + 1, True)])
async def test_a_large_body_is_read_in_a_thread(client, monkeypatch, size, elsewhere):
    """Parsed and held against its schema there; others are answered meanwhile."""
    seen = []
    real = bodies.parse_strictly

    def parse(body):
        seen.append(threading.current_thread())
        return real(body)

    def check(*values):
        seen.append(threading.current_thread())

    monkeypatch.setattr(bodies, "parse_strictly", parse)
    monkeypatch.setattr(score, "one_of", check)
    content = b'{"text":"a"}'.ljust(size)
    assert (await client.post("/score", content=content, headers=JSON)).status_code == 200
    read = seen[:2]
    assert [thread is not threading.main_thread() for thread in read] == [elsewhere] * 2
