"""From a problem document (RFC 9457) to the error to raise. Pure: no input, no output."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlstm_client.errors import APIError, Applied

_MEMBERS = {"type", "title", "status", "detail", "applied", "request_id", "instance"}
_LONGEST_DETAIL = 300


def error_classes(root: type[APIError] = APIError) -> Iterator[type[APIError]]:
    """Every class of the server's part of the tree, parents before children."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == APIError.__module__:  # a user's own subclasses are not the server's words
            yield from error_classes(child)


def class_for(problem_type: str, status: int) -> type[APIError]:
    """The class for the server's word; a word this release does not know falls back on the status."""
    for error_class in error_classes():
        if error_class.type and error_class.type == problem_type:
            return error_class
    for error_class in error_classes():
        if error_class.status == status:
            return error_class
    return APIError


def from_answer(status: int, headers: Mapping[str, str], content: bytes, request_id: str) -> APIError:
    """The error for an answer with a status of 400 or more, whoever wrote it."""
    problem = _document(content)
    if problem is None:
        problem = {"detail": _plain_detail(status, content)}
    problem = {"request_id": headers.get("x-request-id", request_id), **problem}
    return from_problem(status, problem, seconds(headers.get("retry-after")))


def from_problem(status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> APIError:
    """The error for a problem document, which came as an answer or as the last event of a stream."""
    error_class = class_for(_last_word(problem.get("type")), status)
    detail = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    facts = {name: value for name, value in problem.items() if name not in _MEMBERS}
    return error_class(
        str(detail),
        applied=_applied(problem.get("applied"), status),
        status=status,
        request_id=problem.get("request_id"),
        retry_after=retry_after if retry_after is not None else seconds(facts.get("retry_after")),
        facts=facts,
    )


def seconds(value: object) -> float | None:
    """A Retry-After of seconds; the form with a date is not used by this server, nor is it read."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _document(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain_detail(status: int, content: bytes) -> str:
    text = " ".join(content.decode("utf-8", "replace").split())[:_LONGEST_DETAIL]
    return f"the server answered {status} without a problem document" + (f": {text}" if text else "")


def _last_word(problem_type: object) -> str:
    """The word of a ``type``, which may stand alone or end a URI."""
    return str(problem_type or "").replace("#", "/").replace(":", "/").rsplit("/", 1)[-1]


def _applied(value: object, status: int) -> Applied:
    if value == "no" or value == "yes" or value == "unknown":
        return value
    return "no" if status < 500 else "unknown"
