"""Every error this client raises, drawn as one tree.

    RLSTMError
    ├── RequestError                    the request cannot be built; nothing was sent
    ├── NoAnswerError                   no whole answer arrived
    │   ├── CannotConnectError              nothing was sent either
    │   ├── TimedOutError
    │   ├── ConnectionLostError
    │   └── StreamInterruptedError          a stream broke off before its end event
    ├── UnreadableAnswerError           an answer that this client does not understand
    └── APIError                        the server said no
        ├── BadRequestError        400
        │   ├── InvalidJSONError            invalid_json
        │   ├── InvalidTextError            invalid_text
        │   └── InvalidTokenError           invalid_token
        ├── UnauthorizedError      401      unauthorized
        ├── ForbiddenError         403      forbidden
        ├── NotFoundError          404      not_found
        │   └── ModelNotFoundError          model_not_found
        ├── MethodNotAllowedError  405      method_not_allowed
        ├── RequestTimeoutError    408
        │   ├── ReceiveTimeoutError         receive_timeout
        │   └── SlowConsumerError           slow_consumer
        ├── StateConflictError     409
        │   ├── ConflictError               conflict
        │   ├── ExportDisabledError         export_disabled
        │   ├── InFlightError               in_flight
        │   ├── ModelMismatchError          model_mismatch
        │   ├── SessionExistsError          session_exists
        │   └── SnapshotExistsError         snapshot_exists
        ├── GoneError              410
        │   ├── SessionDeletedError         session_deleted
        │   └── SessionExpiredError         session_expired
        ├── VersionMismatchError   412      version_mismatch
        ├── TooLargeError          413      too_large
        ├── UnsupportedMediaError  415      unsupported_media_type
        ├── UnprocessableError     422
        │   ├── IdempotencyMismatchError    idempotency_mismatch
        │   ├── ImportRejectedError         import_rejected
        │   └── InvalidFieldError           invalid_field
        ├── UpgradeRequiredError   426      upgrade_required
        ├── QuotaError             429      quota
        ├── ServerFaultError       500
        │   ├── InternalError               internal
        │   └── StateCorruptError           state_corrupt
        ├── GatewayError           502      a proxy could not reach the server
        ├── UnavailableError       503
        │   ├── DrainingError               draining
        │   ├── DurabilityError             durability_not_reached
        │   ├── OverloadedError             overloaded
        │   ├── StoreFullError              store_full
        │   └── StoreUnavailableError       store_unavailable
        └── OutcomeUnknownError    504      outcome_unknown

The lowest words are the ``type`` of the server's problem documents (RFC 9457); `_problems.py` reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlstm_client.models import AppendResult

Applied = Literal["no", "yes", "unknown"]


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
    progress     set by `append`, `append_stream` and `stream`, since a part of the text may be in the session
                 already; an exception of another kind that ends them has it too
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
    """Nobody answers at this address; nothing was sent."""


class TimedOutError(NoAnswerError):
    """The answer did not come in time; the server may still be at work."""


class ConnectionLostError(NoAnswerError):
    """The connection broke after the request was on its way."""


class StreamInterruptedError(NoAnswerError):
    """A stream of events broke off before its end event: what came before is not the whole."""


class UnreadableAnswerError(RLSTMError):
    """The answer is no JSON object of the expected shape: another server, or a proxy's page."""


class APIError(RLSTMError):
    """The server refused or failed; `type` is its word for the reason, the same on every release."""

    type: ClassVar[str] = ""


class BadRequestError(APIError):
    """The body is not what it has to be."""

    status = 400


class InvalidJSONError(BadRequestError):
    """The body is no strict JSON."""

    type = "invalid_json"


class InvalidTextError(BadRequestError):
    """The text is no text: it holds a lone surrogate."""

    type = "invalid_text"


class InvalidTokenError(BadRequestError):
    """An id lies outside the vocabulary."""

    type = "invalid_token"


class UnauthorizedError(APIError):
    """There is no key, or a wrong one."""

    status = 401
    type = "unauthorized"


class ForbiddenError(APIError):
    """The key is known but may not do this."""

    status = 403
    type = "forbidden"


class NotFoundError(APIError):
    """There is no such session or route, or the session is somebody else's."""

    status = 404
    type = "not_found"


class ModelNotFoundError(NotFoundError):
    """No model of this name is served; the sentence names those that are."""

    type = "model_not_found"


class MethodNotAllowedError(APIError):
    """The route does not know this method."""

    status = 405
    type = "method_not_allowed"


class RequestTimeoutError(APIError):
    """The server waited for this side, and gave up."""

    status = 408


class ReceiveTimeoutError(RequestTimeoutError):
    """The body took too long to arrive at the server."""

    type = "receive_timeout"


class SlowConsumerError(RequestTimeoutError):
    """The events of a stream were not read as fast as they have to be."""

    type = "slow_consumer"


class StateConflictError(APIError):
    """The request does not fit what the server holds."""

    status = 409


class ConflictError(StateConflictError):
    """Other replicas changed the session each time the server tried; nothing was applied."""

    type = "conflict"


class ExportDisabledError(StateConflictError):
    """The server has no key to sign exports with."""

    type = "export_disabled"


class InFlightError(StateConflictError):
    """An operation with the same idempotency key is still at work."""

    type = "in_flight"


class ModelMismatchError(StateConflictError):
    """The session belongs to another model or calibration."""

    type = "model_mismatch"


class SessionExistsError(StateConflictError):
    """Another live session has this name."""

    type = "session_exists"


class SnapshotExistsError(StateConflictError):
    """The session has a snapshot of this name, of another version."""

    type = "snapshot_exists"


class GoneError(APIError):
    """The session was there, but is no more."""

    status = 410


class SessionDeletedError(GoneError):
    """The session was deleted."""

    type = "session_deleted"


class SessionExpiredError(GoneError):
    """The session's time to live ran out."""

    type = "session_expired"


class VersionMismatchError(APIError):
    """The session has moved on; `current_version` says to where."""

    status = 412
    type = "version_mismatch"

    @property
    def current_version(self) -> int | None:
        """The session's version as the server sees it."""
        version = self.facts.get("version")
        return version if isinstance(version, int) else None


class TooLargeError(APIError):
    """Over a limit; the detail names both numbers."""

    status = 413
    type = "too_large"


class UnsupportedMediaError(APIError):
    """The body has a content type that the route does not read."""

    status = 415
    type = "unsupported_media_type"


class UnprocessableError(APIError):
    """The request is well formed but cannot be done."""

    status = 422


class IdempotencyMismatchError(UnprocessableError):
    """The idempotency key was used with another body before."""

    type = "idempotency_mismatch"


class ImportRejectedError(UnprocessableError):
    """The file is no whole export of yours, or one of another model."""

    type = "import_rejected"


class InvalidFieldError(UnprocessableError):
    """A field is wrong, unknown, missing or empty; the detail names it."""

    type = "invalid_field"


class UpgradeRequiredError(APIError):
    """The WebSocket arrived as a plain request: a proxy in between does not pass it on."""

    status = 426
    type = "upgrade_required"


class QuotaError(APIError):
    """Your own quota is used up; `retry_after` says for how long."""

    status = 429
    type = "rate_limited"


class ServerFaultError(APIError):
    """The server's own fault; its log has the request id."""

    status = 500


class InternalError(ServerFaultError):
    """An unexpected fault failed this request."""

    type = "internal_error"


class StateCorruptError(ServerFaultError):
    """The stored state of the session is damaged; nothing was applied."""

    type = "state_corrupt"


class GatewayError(APIError):
    """A proxy in between could not reach the server."""

    status = 502


class UnavailableError(APIError):
    """The server cannot take this now."""

    status = 503


class DrainingError(UnavailableError):
    """The server is shutting down."""

    type = "draining"


class DurabilityError(UnavailableError):
    """The change is committed, but not as durably as the server is set to promise."""

    type = "durability_not_reached"


class OverloadedError(UnavailableError):
    """A queue is full."""

    type = "overloaded"


class StoreFullError(UnavailableError):
    """The store has no room for new sessions."""

    type = "store_full"


class StoreUnavailableError(UnavailableError):
    """The store does not answer."""

    type = "store_unavailable"


class OutcomeUnknownError(APIError):
    """The change may have happened; the same call with the same key tells."""

    status = 504
    type = "outcome_unknown"
