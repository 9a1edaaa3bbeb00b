"""Every error the server can answer with: one tree of classes, which is the one table of them.

An error has one name: `VersionMismatch` is `version_mismatch` in a problem document, under `/v1` and in the
logs, and `VersionMismatchError` in the clients. A new one is a class with a status here, and one in each
client, which a test compares with `TABLE`.

`applied` says whether the change that was asked for took effect: ``no``, ``yes`` or ``unknown``. Where an
error is made it says what this request did. A request with a key may be the repeat of one that took effect,
so on its way out the error is doubted: ``no`` stays only where it is `settled`. `facts` are extra members of
the answer. No message ever repeats the caller's text.
"""

import re
from typing import Any, ClassVar, Final, Literal

Applied = Literal["no", "yes", "unknown"]
Fact = str | int | float | list[dict[str, str]] | None
Rejection = Literal["queue_full", "too_large", "conflict", "drain", "auth", "rate", "store_down"]

TABLE: Final[dict[str, type["ServerError"]]] = {}
"""Every error that is answered over HTTP, by its name on the wire."""


class ServerError(Exception):
    """The root: a sentence for a person, a code for a program, and whether the change took effect.

    code           the name on the wire
    status         of the answer; `openai_status` under `/v1`, where that is another one
    title          says the same for people, whatever the occasion: the docstring up to its first full stop
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

    def __init_subclass__(cls, **said: Any) -> None:
        """Enter the class in the table; one without a status of its own is a group, or a special case."""
        super().__init_subclass__()
        for name, value in said.items():
            setattr(cls, name, value)
        if "status" in said:
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
            cls.title = (cls.__doc__ or cls.code).partition(".")[0]
            cls.openai_status = said.get("openai_status", cls.status)
            TABLE[cls.code] = cls

    def __init__(self, detail: str, /, **facts: Fact) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts

    @property
    def retry_after_seconds(self) -> float | None:
        """How long to wait before trying again, where that can help."""
        value: Any = self.facts.get("retry_after")
        return float(value) if value is not None else self.retry_seconds

    def doubt(self) -> None:
        """Say no more than is known where the request has a key, or may have one."""
        if self.applied == "no" and not self.settled:
            self.applied = "unknown"


# ---- the request is wrong ---------------------------------------------------------------------------------


class InputError(ServerError, settled=True):
    """The request itself is wrong; the same request will always fail."""


class InvalidJson(InputError, status=400):
    """The body is not strict JSON."""


class InvalidText(InputError, status=400):
    """The text is not text. It holds a lone surrogate."""


class InvalidToken(InputError, status=400):
    """A token id is outside the vocabulary."""


class MethodNotAllowed(InputError, status=405):
    """The route does not take this method."""


class ReceiveTimeout(InputError, status=408, settled=False):
    """The body did not arrive in time."""


class TooLarge(InputError, status=413, openai_status=400, rejection="too_large"):
    """Over a limit. The message names what was given and what is allowed."""

    def __init__(self, what: str, given: int, limit: int) -> None:
        said = f"{what}: {given:,} given, at most {limit:,} allowed"
        super().__init__(said, field=what, given=given, limit=limit)


class BodyTooLarge(TooLarge, openai_status=413):
    """The request has more bytes than any may have."""

    def __init__(self, given: int, limit: int) -> None:
        super().__init__("body bytes", given, limit)


class UnsupportedMediaType(InputError, status=415):
    """The content type is not supported. The route reads another."""


class InvalidField(InputError, status=422, openai_status=400):
    """A field is wrong. It is named."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail, field=field)


class IdempotencyMismatch(InputError, status=422):
    """The key was used with another body."""

    def __init__(self, detail: str = "the idempotency key was used with another request") -> None:
        super().__init__(detail)


class ImportRejected(InputError, status=422):
    """The file cannot be imported. It is no session of a model that is served here."""


class UpgradeRequired(InputError, status=426):
    """A WebSocket is needed. The request is a plain one."""


# ---- the caller may not -----------------------------------------------------------------------------------


class Unauthorized(ServerError, status=401, rejection="auth"):
    """A key is needed. No key, or a wrong one."""


class Forbidden(ServerError, status=403, rejection="auth"):
    """The key may not do this."""


class RateLimited(ServerError, status=429, rejection="rate", retry_seconds=1.0):
    """Your quota is used up. Pass `retry_after` in seconds."""


# ---- what a session says ----------------------------------------------------------------------------------


class NotFound(ServerError, status=404, settled=True):
    """There is no such thing. Or it is somebody else's: the two look the same.

    It never was, or ended so long ago that no key from then is known any more.
    """

    def __init__(self, detail: str = "there is no such session") -> None:
        super().__init__(detail)


class ModelNotFound(NotFound, status=404):
    """There is no such model. No model of this name is served; the sentence names those that are."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.facts["field"] = "model"


class Gone(ServerError):
    """The session ended within the last 24 hours; `reason` says how, and makes it one of the two below."""

    def __new__(cls, reason: str) -> "Gone":
        """Make the error of this reason."""
        kind = SessionExpired if "expired" in reason else SessionDeleted
        return super().__new__(kind if cls is Gone else cls)

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is gone: {reason}", reason=reason)
        self.reason = reason


class SessionDeleted(Gone, status=410):
    """The session is gone. The session was deleted."""


class SessionExpired(Gone, status=410):
    """The session has expired."""


class Conflict(ServerError, status=409, rejection="conflict"):
    """The session kept changing. Other replicas changed the session each time this one tried."""


class InFlight(ServerError, status=409, rejection="conflict", retry_seconds=1.0):
    """The same key is being worked on."""


class SessionExists(ServerError, status=409, settled=True):
    """The name is taken. Another live session of the tenant has this name."""


class SnapshotExists(ServerError, status=409, settled=True):
    """The snapshot's name is taken. The session has a snapshot of this name, of another version."""


class ModelMismatch(ServerError, status=409):
    """The session belongs to another model. Or to another vocabulary or calibration."""


class VersionMismatch(ServerError, status=412, rejection="conflict", settled=True):
    """The session is at another version."""

    def __init__(self, wanted: int, current: int) -> None:
        super().__init__(f"the session is at version {current}, not {wanted}", wanted=wanted, version=current)


# ---- not now ----------------------------------------------------------------------------------------------


class SlowConsumer(ServerError, status=408):
    """The reader did not keep up. What was made for a stream was not taken; the work was ended."""


class Unavailable(ServerError, retry_seconds=1.0):
    """Nothing is wrong with the request; the server cannot take it now."""


class Overloaded(Unavailable, status=503, rejection="queue_full"):
    """The server is busy. A bounded queue is full."""


class Draining(Unavailable, status=503, rejection="drain"):
    """The server is going down."""


class StoreUnavailable(Unavailable, status=503, rejection="store_down"):
    """The store does not answer."""


class StoreFull(Unavailable, status=503, rejection="store_down"):
    """The store is full. Live sessions are never dropped for new ones."""


class DurabilityNotReached(Unavailable, status=503, applied="yes"):
    """Committed, but not as durably as asked."""


class OutcomeUnknown(ServerError, status=504, retry_seconds=1.0, applied="unknown"):
    """Whether it was applied is not known. A repeat with the same key tells."""


# ---- a fault of ours --------------------------------------------------------------------------------------


class InternalFault(ServerError):
    """A fault of ours; the answer is a fixed body with the request id."""


class StateCorrupt(InternalFault, status=500):
    """The stored state cannot be used. It is damaged, or not finite; nothing was applied."""


class InternalError(InternalFault, status=500, applied="unknown"):
    """A fault of the server. It failed this request alone; nobody knows how far it got."""

    def __init__(self, detail: str = "an unexpected fault; it was logged with the request id") -> None:
        super().__init__(detail)


class StartupError(ServerError, code="startup"):
    """The server refuses to start; the sentence names the setting, file or address at fault."""
