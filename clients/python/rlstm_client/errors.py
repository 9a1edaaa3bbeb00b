"""Every error this client raises, as one tree, and how a server's answer becomes one.

Below `APIError` stands the server's part: a class for each status, and below it a class for each ``type`` of
the server's problem documents (RFC 9457). Status and type stand in the class line, and are those of the
server's own table of errors.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlstm_client.models import AppendResult, UnexpectedShape, decode_object

Applied = Literal["no", "yes", "unknown"]

_MEMBERS = {"type", "title", "status", "detail", "applied", "request_id", "instance"}
_LONGEST_DETAIL = 300
_SERVER_FAULT = 500


@dataclass(frozen=True, kw_only=True)
class AppendProgress:
    """How far a text had come when appending it ended before its end.

    answer      the pieces that were acknowledged, as one answer; None when there is none, and of a stream,
                whose answers were handed out
    characters  how many code points of the text they hold, or how many ids
    piece       what was on its way next and may be in the session too; None when nothing was
    key         its idempotency key: appended again with this key and the same options it is there once
    following   what of `stream` was on its way behind it, each with a key of the same use, in this order
    """

    answer: AppendResult | None
    characters: int
    piece: str | Sequence[int] | None = field(default=None, repr=False)
    key: str | None = None
    following: Sequence[tuple[str, str]] = field(default=(), repr=False)


class RLSTMError(Exception):
    """The root of the tree.

    detail       a sentence for a person
    applied      whether the change that was asked for took effect
    status       the HTTP status; None when there was no answer
    request_id   what the server's log calls this request
    retry_after  seconds, where the server named them
    facts        further members of the server's answer, for example ``field``, ``limit`` or ``version``
    progress     set by `append` and `stream`, since a part of the text may be in the session already; an
                 exception of another kind that ends them has it too
    """

    status: int | None = None

    def __init__(
        self,
        detail: str,
        *,
        applied: Applied = "no",
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.applied = applied
        self.status = status if status is not None else type(self).status
        self.request_id = request_id
        self.retry_after = retry_after
        self.facts: Mapping[str, Any] = facts or {}
        self.progress: AppendProgress | None = None

    def __str__(self) -> str:
        marks = [str(self.status)] if self.status else []
        if self.applied != "no":
            marks.append(f"applied: {self.applied}")
        if self.request_id:
            marks.append(f"request {self.request_id}")
        return f"{self.detail} ({', '.join(marks)})" if marks else self.detail


class RequestError(RLSTMError, ValueError):
    """The request cannot be built: text that is not text, NaN, an impossible session id or address."""


class NoAnswerError(RLSTMError):
    """No whole answer arrived."""


class CannotConnectError(NoAnswerError):
    """No server answers at this address; nothing was sent."""


class TimedOutError(NoAnswerError):
    """The answer did not come in time; the server may still be at work."""


class ConnectionLostError(NoAnswerError):
    """The connection broke after the request was on its way."""


class StreamInterruptedError(NoAnswerError):
    """A stream of events broke off before its end event: what came before is not the whole."""


class UnreadableAnswerError(RLSTMError):
    """The answer has not the expected form: it comes from another server, or from a proxy."""


class ScoresNotStoredError(RLSTMError):
    """The change took effect once, at an earlier request; its scores are no longer stored.

    ``facts`` has the session's ``version`` and ``position`` after it.
    """


class APIError(RLSTMError):
    """The server refused or failed; `type` is its word for the reason, the same on every release."""

    type: ClassVar[str] = ""

    def __init_subclass__(cls, *, status: int | None = None, type: str = "", **options: Any) -> None:  # noqa: A002
        super().__init_subclass__(**options)
        cls.type = type
        if status is not None:
            cls.status = status


class BadRequestError(APIError, status=400):
    """The body is not what it has to be."""


class InvalidJSONError(BadRequestError, type="invalid_json"):
    """The body is not strict JSON."""


class InvalidTextError(BadRequestError, type="invalid_text"):
    """The text is no text: it holds a lone surrogate."""


class InvalidTokenError(BadRequestError, type="invalid_token"):
    """An id lies outside the vocabulary."""


class UnauthorizedError(APIError, status=401, type="unauthorized"):
    """There is no key, or a wrong one."""


class ForbiddenError(APIError, status=403, type="forbidden"):
    """The key is known but may not do this."""


class NotFoundError(APIError, status=404, type="not_found"):
    """There is no such session or route, or the session is another tenant's."""


class ModelNotFoundError(NotFoundError, type="model_not_found"):
    """No model of this name is served; the sentence names those that are."""


class MethodNotAllowedError(APIError, status=405, type="method_not_allowed"):
    """The route does not know this method."""


class RequestTimeoutError(APIError, status=408):
    """The server waited for this side, and gave up."""


class ReceiveTimeoutError(RequestTimeoutError, type="receive_timeout"):
    """The body took too long to arrive at the server."""


class SlowConsumerError(RequestTimeoutError, type="slow_consumer"):
    """The events of a stream were not read as fast as they have to be."""


class StateConflictError(APIError, status=409):
    """The request does not fit what the server holds."""


class ConflictError(StateConflictError, type="conflict"):
    """Other replicas changed the session each time the server tried; nothing was applied."""


class InFlightError(StateConflictError, type="in_flight"):
    """An operation with the same idempotency key is still at work."""


class ModelMismatchError(StateConflictError, type="model_mismatch"):
    """The session belongs to another model or calibration."""


class SessionExistsError(StateConflictError, type="session_exists"):
    """Another live session has this name."""


class SnapshotExistsError(StateConflictError, type="snapshot_exists"):
    """The session has a snapshot of this name, of another version."""


class GoneError(APIError, status=410):
    """The session was there, but is no more."""


class SessionDeletedError(GoneError, type="session_deleted"):
    """The session was deleted."""


class SessionExpiredError(GoneError, type="session_expired"):
    """The session's time to live ran out."""


class VersionMismatchError(APIError, status=412, type="version_mismatch"):
    """The session has moved on; `current_version` says to where."""

    @property
    def current_version(self) -> int | None:
        """The session's version as the server sees it."""
        version = self.facts.get("version")
        return version if isinstance(version, int) else None


class TooLargeError(APIError, status=413, type="too_large"):
    """Over a limit; the detail names both numbers."""


class UnsupportedMediaTypeError(APIError, status=415, type="unsupported_media_type"):
    """The body has a content type that the route does not read."""


class UnprocessableError(APIError, status=422):
    """The request is well formed but cannot be done."""


class IdempotencyMismatchError(UnprocessableError, type="idempotency_mismatch"):
    """The idempotency key was used with another body before."""


class ImportRejectedError(UnprocessableError, type="import_rejected"):
    """The file is not a whole export of yours, or it is of another model."""


class InvalidFieldError(UnprocessableError, type="invalid_field"):
    """A field is wrong, unknown, missing or empty; the detail names it."""


class UpgradeRequiredError(APIError, status=426, type="upgrade_required"):
    """The WebSocket arrived as a plain request: a proxy in between does not pass it on."""


class RateLimitedError(APIError, status=429, type="rate_limited"):
    """Your own quota is used up; `retry_after` says for how long."""


class ServerFaultError(APIError, status=500):
    """The server's own fault; its log has the request id."""


class InternalError(ServerFaultError, type="internal_error"):
    """An unexpected fault failed this request."""


class StateCorruptError(ServerFaultError, type="state_corrupt"):
    """The stored state of the session is damaged; nothing was applied."""


class GatewayError(APIError, status=502):
    """A proxy in between could not reach the server."""


class UnavailableError(APIError, status=503):
    """The server cannot take this now."""


class DrainingError(UnavailableError, type="draining"):
    """The server is shutting down."""


class DurabilityNotReachedError(UnavailableError, type="durability_not_reached"):
    """The change is committed, but not as durably as the server is set to promise."""


class OverloadedError(UnavailableError, type="overloaded"):
    """A queue is full."""


class StoreFullError(UnavailableError, type="store_full"):
    """The store has no room for new sessions."""


class StoreUnavailableError(UnavailableError, type="store_unavailable"):
    """The store does not answer."""


class OutcomeUnknownError(APIError, status=504, type="outcome_unknown"):
    """The change may have happened; the same call with the same key tells."""


def error_classes(root: type[APIError] = APIError) -> Iterator[type[APIError]]:
    """Every class of the server's part of the tree, parents before children."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == __name__:  # a user's own subclasses are not the server's words
            yield from error_classes(child)


def class_for(problem_type: str, status: int) -> type[APIError]:
    """The class for the server's word; a word this release does not know falls back on the status."""
    known = list(error_classes())
    exact = (one for one in known if one.type and one.type == problem_type)
    return next(exact, next((one for one in known if one.status == status), APIError))


def from_answer(status: int, headers: Mapping[str, str], content: bytes, request_id: str) -> APIError:
    """The error for an answer with a status of 400 or more, whoever wrote it."""
    try:
        problem = decode_object(content)
    except UnexpectedShape:
        problem = {"detail": _plain_detail(status, content)}
    problem = {"request_id": headers.get("x-request-id", request_id), **problem}
    return from_problem(problem, status, retry_after=_seconds(headers.get("retry-after")))


def from_problem(
    problem: Mapping[str, Any], status: int | None = None, *, retry_after: float | None = None
) -> APIError:
    """The error for a problem document. One that came inside a stream says its status itself."""
    if status is None:
        status = problem["status"] if isinstance(problem.get("status"), int) else _SERVER_FAULT
    # The word may stand alone, or end a URI.
    word = str(problem.get("type") or "").replace("#", "/").replace(":", "/").rsplit("/", 1)[-1]
    detail = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    facts = {name: value for name, value in problem.items() if name not in _MEMBERS}
    return class_for(word, status)(
        str(detail),
        applied=_applied(problem.get("applied"), status),
        status=status,
        request_id=problem.get("request_id"),
        retry_after=retry_after if retry_after is not None else _seconds(facts.get("retry_after")),
        facts=facts,
    )


def _seconds(value: object) -> float | None:
    """A Retry-After of seconds; the form with a date is not used by this server, nor is it read."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _plain_detail(status: int, content: bytes) -> str:
    text = " ".join(content.decode("utf-8", "replace").split())[:_LONGEST_DETAIL]
    return f"the server answered {status} without a problem document" + (f": {text}" if text else "")


def _applied(value: object, status: int) -> Applied:
    if value == "no" or value == "yes" or value == "unknown":
        return value
    return "no" if status < _SERVER_FAULT else "unknown"
