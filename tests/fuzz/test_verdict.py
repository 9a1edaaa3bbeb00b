"""The judge is judged: each kind of wrong answer is called by its name, and right ones are not."""

import json

import pytest
from tests.fuzz.asgi import Answer
from tests.fuzz.cases import Case
from tests.fuzz.nasties import CANARY
from tests.fuzz.surface import Operation, Surface
from tests.fuzz.verdict import faults_of

DOCUMENT = {
    "paths": {"/a": {"get": {"responses": {"200": {}, "422": {}, "500": {}}}}},
    "components": {"schemas": {}},
}
SURFACE = Surface(DOCUMENT)
PROBLEM = "application/problem+json"


def answer(status, body, media_type=PROBLEM, **headers):
    """An answer of the route."""
    given = {"content-type": media_type, "x-request-id": "r"} | headers
    return Answer(status=status, headers=given, body=json.dumps(body).encode(), route="/a")


def problem(status, **members):
    """A right problem document, but for what is given."""
    named = {"type": "t", "title": "t", "detail": "d", "applied": "no", "request_id": "r"}
    return named | {"status": status} | members


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (answer(200, {"a": 1}, "application/json"), []),
        (answer(200, {"name": CANARY}, "application/json"), []),
        (answer(200, {"text": CANARY}, "application/json"), ["echo"]),
        (answer(200, {"text": [{"a": CANARY.upper()}]}, "application/json"), ["echo"]),
        (answer(422, problem(422)), []),
        (answer(500, problem(500)), ["5xx"]),
        (answer(418, problem(418)), ["undocumented status"]),
        (answer(422, problem(422), "application/json"), ["no problem document"]),
        (answer(422, problem(400)), ["a member of the problem document is wrong"]),
        (answer(422, {"status": 422}), ["a member of the problem document is wrong"]),
        (answer(422, problem(422, request_id="s")), ["another request id"]),
        (answer(422, problem(422, detail=f"no {CANARY}")), ["echo"]),
        (answer(422, problem(422, detail="%63anary-7f3a")), ["echo"]),
        (answer(422, problem(422, name=CANARY)), ["echo"]),
        (answer(422, problem(422), etag=CANARY), ["echo"]),
    ],
)
def test_an_answer_is_judged(given, found):
    """By status, form and what it repeats."""
    operation: Operation = SURFACE.operations[0]
    assert faults_of(SURFACE, Case(operation=operation, name="right"), given) == found
