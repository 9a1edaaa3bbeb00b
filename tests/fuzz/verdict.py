"""What any answer must be, whatever was asked: a status that is documented, and nothing of what was sent."""

import json
from urllib.parse import unquote_to_bytes

from tests.fuzz.asgi import Answer
from tests.fuzz.cases import Case
from tests.fuzz.nasties import CANARY
from tests.fuzz.surface import JSON, OCTETS, Surface

MEMBERS = {"type", "title", "status", "detail", "applied", "request_id"}
NOWHERE = frozenset({400, 401, 403, 404, 405, 413})
"""What is answered where there is no route."""

GIVEN_BACK = {"id", "name", "metadata"}
"""What a client asks the server to keep for it, and gets back when all is well."""


def faults_of(surface: Surface, case: Case, answer: Answer) -> list[str]:
    """Everything that is wrong with an answer, in words: none for a right one."""
    found = []
    if answer.status >= 500:
        found.append("5xx")
    statuses = surface.documented(case.operation.method, answer.route) or NOWHERE
    if answer.status not in statuses:
        found.append("undocumented status")
    if answer.status >= 400:
        openai = case.operation.template.startswith("/v1/")
        found += _faults_of_envelope(answer) if openai else _faults_of_problem(answer)
    if echoes(answer):
        found.append("echo")
    return found


def _faults_of_envelope(answer: Answer) -> list[str]:
    if answer.headers.get("content-type") != JSON:
        return ["no envelope"]
    error = json.loads(answer.body).get("error", {})
    if set(error) != {"message", "type", "param", "code"} or not isinstance(error["message"], str):
        return ["a member of the envelope is wrong"]
    return []


def _faults_of_problem(answer: Answer) -> list[str]:
    if answer.headers.get("content-type") != "application/problem+json":
        return ["no problem document"]
    problem = json.loads(answer.body)
    if not set(problem) >= MEMBERS or problem["status"] != answer.status:
        return ["a member of the problem document is wrong"]
    return [] if problem["request_id"] == answer.headers["x-request-id"] else ["another request id"]


def echoes(answer: Answer) -> bool:
    """Whether anything of the request stands in its answer that is not meant to."""
    body, kind = answer.body, answer.headers.get("content-type")
    if answer.status < 400 and kind == OCTETS:
        body = b""  # an export has the session's metadata in it
    if answer.status < 400 and kind == JSON:
        body = json.dumps(_without_given(json.loads(body)), ensure_ascii=False).encode()
    heard = b"\n".join([body, *(f"{name}: {value}".encode() for name, value in answer.headers.items())])
    return any(CANARY.encode() in form.lower() for form in (heard, unquote_to_bytes(heard)))


def _without_given(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_given(inner) for name, inner in value.items() if name not in GIVEN_BACK}
    return [_without_given(inner) for inner in value] if isinstance(value, list) else value
