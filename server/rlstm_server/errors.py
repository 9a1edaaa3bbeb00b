"""Every error the server can answer with, drawn as one tree.

    ServerError
    ├── InputError                 the request is wrong; nothing happened
    │   ├── InvalidText            400  text that is not text (a lone surrogate)
    │   ├── InvalidTokens          400  ids outside the vocabulary
    │   ├── InvalidField           422  a field is wrong, unknown, missing or empty
    │   ├── IdempotencyMismatch    422  the key was used with another body
    │   ├── ImportRejected         422  the file is no session that this server can take
    │   ├── UpgradeRequired        426  a WebSocket was expected
    │   └── TooLarge               413  over a limit; both numbers are named
    │       └── BodyTooLarge            the request itself, in bytes
    ├── AccessError
    │   ├── Unauthorized           401  no key, or a wrong one
    │   ├── Forbidden              403  this key may not do this
    │   └── RateLimited            429  the tenant's own quota
    ├── SessionError               what a session, or its absence, says
    │   ├── NotFound               404  unknown, or somebody else's
    │   │   └── ModelNotFound           no model of this name is served
    │   ├── Gone                   410  deleted or expired within the last 24 hours
    │   ├── Conflict               409  lost the race three times
    │   ├── InFlight               409  the same key is being worked on right now
    │   ├── SessionExists          409  the name is taken
    │   ├── SnapshotExists         409  the session has a snapshot of this name and another version
    │   ├── ModelMismatch          409  the state belongs to another model or calibration
    │   └── VersionMoved           412  If-Match or min_version does not fit the current version
    ├── Unavailable                503  try again later
    │   ├── Overloaded                  a queue is full
    │   ├── Draining                    the server is going down
    │   ├── StoreUnavailable            the store does not answer
    │   ├── StoreFull                   no room for new sessions
    │   └── DurabilityNotReached        committed, but no replica confirmed it
    ├── SlowConsumer               408  the reader of a stream did not keep up
    ├── OutcomeUnknown             504  the commit may have happened: repeat with the same key
    ├── InternalFault              500  ours
    │   ├── StateCorrupt                the stored state cannot be used
    │   └── InternalError               anything else
    └── StartupError               the process refuses to start; never answered over HTTP

`code` names the class on the wire; the status lives in one table, api/problems.py. `applied` says whether
the change that was asked for took effect: ``no``, ``yes`` or ``unknown``. Where an error is made it says what
this request did. A request with a key may be the repeat of one that took effect, so on its way out the error
is doubted: ``no`` stays only where it is `settled`. `facts` are extra members of the answer. No message ever
repeats the caller's text.
"""

from typing import ClassVar, Literal

Applied = Literal["no", "yes", "unknown"]
Fact = str | int | float | None


class ServerError(Exception):
    """The root: a sentence for a person, a code for a program, and whether the change took effect.

    `settled` is an error that leaves nothing to an earlier request with the same key either: that one was
    wrong in the same way, or the store was asked and knows of none.
    """

    code: ClassVar[str] = "error"
    applied: Applied = "no"
    settled: bool = False

    def __init__(self, detail: str, /, **facts: Fact) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts

    @property
    def retry_after_seconds(self) -> float | None:
        """How long to wait before trying again, where that is known."""
        value = self.facts.get("retry_after")
        return float(value) if value is not None else None

    def doubt(self) -> None:
        """Say no more than is known where the request has a key, or may have one."""
        if self.applied == "no" and not self.settled:
            self.applied = "unknown"


class InputError(ServerError):
    """The request itself is wrong; the same request will always fail."""

    code = "invalid_input"
    settled = True


class InvalidText(InputError):
    """The text cannot be encoded: it holds a lone surrogate."""

    code = "invalid_text"


class InvalidTokens(InputError):
    """A token id lies outside the vocabulary."""

    code = "invalid_tokens"


class InvalidField(InputError):
    """A named field has a value that cannot be used."""

    code = "invalid_field"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail, field=field)
        self.field = field


class IdempotencyMismatch(InputError):
    """The idempotency key was already used with a different body."""

    code = "idempotency_mismatch"


class ImportRejected(InputError):
    """The bytes are no exported session of a model that is served here."""

    code = "import_rejected"


class UpgradeRequired(InputError):
    """The route is reached over a WebSocket only, and this is a plain request."""

    code = "upgrade_required"


class TooLarge(InputError):
    """A limit was exceeded; the message names what was given and what is allowed."""

    code = "too_large"

    def __init__(self, what: str, given: int, limit: int) -> None:
        super().__init__(
            f"{what}: {given:,} given, at most {limit:,} allowed", field=what, given=given, limit=limit
        )
        self.what, self.given, self.limit = what, given, limit


class BodyTooLarge(TooLarge):
    """The request has more bytes than any may have."""

    def __init__(self, given: int, limit: int) -> None:
        super().__init__("body bytes", given, limit)


class AccessError(ServerError):
    """The caller may not do this."""

    code = "access"


class Unauthorized(AccessError):
    """No key, or a wrong one."""

    code = "unauthorized"


class Forbidden(AccessError):
    """The key is known but lacks the scope."""

    code = "forbidden"


class RateLimited(AccessError):
    """The tenant's own quota is used up; pass `retry_after` in seconds."""

    code = "rate_limited"


class SessionError(ServerError):
    """What a session, or its absence, answers."""

    code = "session"


class NotFound(SessionError):
    """There is no such session, or it is somebody else's: the two look the same.

    It never was, or ended so long ago that no key from then is known any more.
    """

    code = "not_found"
    settled = True

    def __init__(self, detail: str = "there is no such session") -> None:
        super().__init__(detail)


class ModelNotFound(NotFound):
    """No model of this name is served; the sentence names those that are."""

    code = "model_not_found"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.facts = {"field": "model"}


class Gone(SessionError):
    """The session was deleted or has expired; `reason` says which."""

    code = "gone"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is gone: {reason}", reason=reason)
        self.reason = reason


class Conflict(SessionError):
    """Other replicas changed the session each time this one tried."""

    code = "conflict"


class InFlight(SessionError):
    """An operation with the same idempotency key is being worked on."""

    code = "in_flight"


class SessionExists(SessionError):
    """Another live session of the tenant has this name."""

    code = "session_exists"
    settled = True


class SnapshotExists(SessionError):
    """The session has a snapshot of this name, of another version."""

    code = "snapshot_exists"
    settled = True


class ModelMismatch(SessionError):
    """The stored state belongs to another model, vocabulary or calibration."""

    code = "model_mismatch"


class VersionMoved(SessionError):
    """The session is not at the version the caller named."""

    code = "version_moved"
    settled = True

    def __init__(self, wanted: int, current: int) -> None:
        super().__init__(f"the session is at version {current}, not {wanted}", wanted=wanted, version=current)
        self.wanted, self.current = wanted, current


class Unavailable(ServerError):
    """Nothing is wrong with the request; the server cannot take it now."""

    code = "unavailable"


class Overloaded(Unavailable):
    """A bounded queue is full."""

    code = "overloaded"


class Draining(Unavailable):
    """The server is shutting down and starts no new work."""

    code = "draining"


class StoreUnavailable(Unavailable):
    """The session store does not answer."""

    code = "store_unavailable"


class StoreFull(Unavailable):
    """The session store has no room for new sessions; live ones are never dropped for them."""

    code = "store_full"


class DurabilityNotReached(Unavailable):
    """The change is committed, but not as durably as configured."""

    code = "durability_not_reached"
    applied: Applied = "yes"


class SlowConsumer(ServerError):
    """The reader of a stream did not take what was made for it; the work was ended."""

    code = "slow_consumer"


class OutcomeUnknown(ServerError):
    """The store did not say whether the commit happened; repeat with the same key to learn it."""

    code = "outcome_unknown"
    applied: Applied = "unknown"


class InternalFault(ServerError):
    """A fault of ours; the answer is a fixed body with the request id."""

    code = "internal"


class StateCorrupt(InternalFault):
    """The stored state is damaged, or holds values that are not finite; nothing was applied."""

    code = "state_corrupt"


class InternalError(InternalFault):
    """An unexpected exception failed this request, and only this request; nobody knows how far it got."""

    code = "internal_error"
    applied: Applied = "unknown"

    def __init__(self, detail: str = "an unexpected fault; it was logged with the request id") -> None:
        super().__init__(detail)


class StartupError(ServerError):
    """The server refuses to start; the sentence names the setting, file or address at fault."""

    code = "startup"
