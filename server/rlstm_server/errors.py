"""Every error the server can answer with: one tree of classes, which is the one table of them.

An error has one name: `VersionMismatch` is `version_mismatch` in a problem document, under `/v1` and in the
logs, and `VersionMismatchError` in the clients. A new one is a class with a status here, and its row in the
clients' tables, which a test compares with `TABLE`.

`applied` says whether the change that was asked for took effect: ``no``, ``yes`` or ``unknown``. Where an
error is made it says what this request did. A request with a key may be the repeat of one that took effect,
so on its way out the error is doubted: ``no`` stays only where it is `settled`. `facts` are extra members of
the answer. No message ever repeats the caller's text.
"""

import re
from typing import ClassVar, Final, Literal

Applied = Literal["no", "yes", "unknown"]
Fact = str | int | float | None
Rejection = Literal["queue_full", "too_large", "conflict", "drain", "auth", "rate", "store_down"]

TABLE: Final[dict[str, type["ServerError"]]] = {}
"""Every error that is answered over HTTP, by its name on the wire."""


class ServerError(Exception):
    """The root: a sentence for a person, a code for a program, and whether the change took effect.

    code           the name on the wire
    status         of the answer; `openai_status` under `/v1`, where that is another one
    title          says the same for people, whatever the occasion
    rejection      names it in the metrics where nothing was worked on
    retry_seconds  what to wait before a repeat where the error itself does not know better
    settled        it leaves nothing to an earlier request with the same key either: that one was wrong in the
                   same way, or the store was asked and knows of none
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    openai_status: ClassVar[int] = 500
    title: ClassVar[str] = "A fault of the server"
    rejection: ClassVar[Rejection | None] = None
    retry_seconds: ClassVar[float | None] = None
    applied: Applied = "no"
    settled: bool = False

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        title: str | None = None,
        openai_status: int | None = None,
        rejection: Rejection | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        """Enter the class in the table; one without a status of its own is a group, or a special case."""
        super().__init_subclass__()
        if status is None:
            return
        cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        cls.status, cls.openai_status = status, openai_status or status
        cls.title = title or cls.title
        cls.rejection = rejection or cls.rejection
        cls.retry_seconds = retry_seconds or cls.retry_seconds
        TABLE[cls.code] = cls

    def __init__(self, detail: str, /, **facts: Fact) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts

    @property
    def retry_after_seconds(self) -> float | None:
        """How long to wait before trying again, where that can help."""
        value = self.facts.get("retry_after")
        return float(value) if value is not None else self.retry_seconds

    def doubt(self) -> None:
        """Say no more than is known where the request has a key, or may have one."""
        if self.applied == "no" and not self.settled:
            self.applied = "unknown"


# ---- the request is wrong ---------------------------------------------------------------------------------


class InputError(ServerError):
    """The request itself is wrong; the same request will always fail."""

    settled = True


class InvalidJson(InputError, status=400, title="The body is not strict JSON"):
    """The body is not strict JSON."""


class InvalidText(InputError, status=400, title="The text is not text"):
    """The text cannot be encoded: it holds a lone surrogate."""


class InvalidToken(InputError, status=400, title="A token id is outside the vocabulary"):
    """A token id lies outside the vocabulary."""


class MethodNotAllowed(InputError, status=405, title="The route does not take this method"):
    """The route takes other methods, which the answer lists."""


class ReceiveTimeout(InputError, status=408, title="The body did not arrive in time"):
    """The body did not arrive in time."""

    settled = False


class TooLarge(InputError, status=413, openai_status=400, title="Over a limit", rejection="too_large"):
    """A limit was exceeded; the message names what was given and what is allowed."""

    def __init__(self, what: str, given: int, limit: int) -> None:
        super().__init__(
            f"{what}: {given:,} given, at most {limit:,} allowed", field=what, given=given, limit=limit
        )
        self.what, self.given, self.limit = what, given, limit


class BodyTooLarge(TooLarge):
    """The request has more bytes than any may have."""

    openai_status = 413

    def __init__(self, given: int, limit: int) -> None:
        super().__init__("body bytes", given, limit)


class UnsupportedMediaType(InputError, status=415, title="The content type is not supported"):
    """The body is not declared as what the route reads."""


class InvalidField(InputError, status=422, openai_status=400, title="A field is wrong"):
    """A named field has a value that cannot be used."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail, field=field)
        self.field = field


class IdempotencyMismatch(InputError, status=422, title="The key was used with another body"):
    """The idempotency key was already used with a different body."""


class ImportRejected(InputError, status=422, title="The file cannot be imported"):
    """The bytes are no exported session of a model that is served here."""


class UpgradeRequired(InputError, status=426, title="This is reached over a WebSocket"):
    """The route is reached over a WebSocket only, and this is a plain request."""


# ---- the caller may not -----------------------------------------------------------------------------------


class AccessError(ServerError):
    """The caller may not do this."""


class Unauthorized(AccessError, status=401, title="A key is needed", rejection="auth"):
    """No key, or a wrong one."""


class Forbidden(AccessError, status=403, title="This key may not do this", rejection="auth"):
    """The key is known but lacks the scope."""


class RateLimited(
    AccessError, status=429, title="Your quota is used up", rejection="rate", retry_seconds=1.0
):
    """The tenant's own quota is used up; pass `retry_after` in seconds."""


# ---- what a session says ----------------------------------------------------------------------------------


class SessionError(ServerError):
    """What a session, or its absence, answers."""


class NotFound(SessionError, status=404, title="There is no such thing"):
    """There is no such session, or it is somebody else's: the two look the same.

    It never was, or ended so long ago that no key from then is known any more.
    """

    settled = True

    def __init__(self, detail: str = "there is no such session") -> None:
        super().__init__(detail)


class ModelNotFound(NotFound, status=404, title="There is no such model"):
    """No model of this name is served; the sentence names those that are."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.facts = {"field": "model"}


class Gone(SessionError):
    """The session ended within the last 24 hours; `reason` says how, and makes it one of the two below."""

    def __new__(cls, reason: str) -> "Gone":
        """Make the error of this reason."""
        kind = SessionExpired if "expired" in reason else SessionDeleted
        return super().__new__(kind if cls is Gone else cls)

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is gone: {reason}", reason=reason)
        self.reason = reason


class SessionDeleted(Gone, status=410, title="The session is gone"):
    """The session was deleted."""


class SessionExpired(Gone, status=410, title="The session has expired"):
    """The session has expired."""


class Conflict(SessionError, status=409, title="The session kept changing", rejection="conflict"):
    """Other replicas changed the session each time this one tried."""


class InFlight(
    SessionError,
    status=409,
    title="The same key is being worked on",
    rejection="conflict",
    retry_seconds=1.0,
):
    """An operation with the same idempotency key is being worked on."""


class SessionExists(SessionError, status=409, title="The name is taken"):
    """Another live session of the tenant has this name."""

    settled = True


class SnapshotExists(SessionError, status=409, title="The snapshot's name is taken"):
    """The session has a snapshot of this name, of another version."""

    settled = True


class ModelMismatch(SessionError, status=409, title="The session belongs to another model"):
    """The stored state belongs to another model, vocabulary or calibration."""


class VersionMismatch(
    SessionError, status=412, title="The session is at another version", rejection="conflict"
):
    """The session is not at the version the caller named."""

    settled = True

    def __init__(self, wanted: int, current: int) -> None:
        super().__init__(f"the session is at version {current}, not {wanted}", wanted=wanted, version=current)
        self.wanted, self.current = wanted, current


# ---- not now ----------------------------------------------------------------------------------------------


class SlowConsumer(ServerError, status=408, title="The reader did not keep up"):
    """The reader of a stream did not take what was made for it; the work was ended."""


class Unavailable(ServerError):
    """Nothing is wrong with the request; the server cannot take it now."""

    retry_seconds = 1.0


class Overloaded(Unavailable, status=503, title="The server is busy", rejection="queue_full"):
    """A bounded queue is full."""


class Draining(Unavailable, status=503, title="The server is going down", rejection="drain"):
    """The server is shutting down and starts no new work."""


class StoreUnavailable(Unavailable, status=503, title="The store does not answer", rejection="store_down"):
    """The session store does not answer."""


class StoreFull(Unavailable, status=503, title="The store is full", rejection="store_down"):
    """The session store has no room for new sessions; live ones are never dropped for them."""


class DurabilityNotReached(Unavailable, status=503, title="Committed, but not as durably as asked"):
    """The change is committed, but not as durably as configured."""

    applied: Applied = "yes"


class OutcomeUnknown(ServerError, status=504, title="Whether it was applied is not known", retry_seconds=1.0):
    """The store did not say whether the commit happened; repeat with the same key to learn it."""

    applied: Applied = "unknown"


# ---- a fault of ours --------------------------------------------------------------------------------------


class InternalFault(ServerError):
    """A fault of ours; the answer is a fixed body with the request id."""


class StateCorrupt(InternalFault, status=500, title="The stored state cannot be used"):
    """The stored state is damaged, or holds values that are not finite; nothing was applied."""


class InternalError(InternalFault, status=500, title="A fault of the server"):
    """An unexpected exception failed this request, and only this request; nobody knows how far it got."""

    applied: Applied = "unknown"

    def __init__(self, detail: str = "an unexpected fault; it was logged with the request id") -> None:
        super().__init__(detail)


class StartupError(ServerError):
    """The server refuses to start; the sentence names the setting, file or address at fault."""

    code = "startup"
