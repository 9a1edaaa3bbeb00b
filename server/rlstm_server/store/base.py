"""What a session store promises, in nouns and one protocol.

A session is a *history*: version n+1 is version n plus one committed operation. A store keeps the newest
state, whole, the operations it has applied for a while, and named copies of states. It knows bytes and
versions, nothing of models. Two promises rest on `commit`: no acknowledged operation is lost, and none is
applied twice.

    commit, in this order        outcome
    ─────────────────────        ───────
    the session is gone          raises errors.Gone (deleted or expired, for 24 hours), then errors.NotFound
    the operation is known       Replayed; raises errors.IdempotencyMismatch when its body differs
    if_match is not the version  raises errors.VersionMismatch
    expects is not the head      Stale
    all is well                  Committed

The answer to an operation has two parts: a summary, kept as long as the operation's id is known, and details
(columns of scores), of which a session keeps the newest always, older ones within `Retention.details_bytes`.

Every call may also raise errors.StoreUnavailable (nothing changed); calls that change something may raise
errors.OutcomeUnknown (the change may have happened: the same call again finds out), and calls that need room
errors.StoreFull (nothing changed). Times are milliseconds since 1970 by the store's own clock.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rlstm_server.errors import InvalidField
from rlstm_server.settings import Durability

CHAIN_BYTES: Final = 32
MAX_SUMMARY_BYTES: Final = 4_096

_PLAIN: Final = re.compile(r"[a-z0-9]{1,64}")
_CURSOR: Final = re.compile(r"([0-9]{1,15})\.([a-z0-9]{1,64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How much of the past a store keeps. All replicas on one store use the same; only tests change them.

    operations          operation ids remembered per session, and creations per tenant
    operation_age_ms    none is remembered longer than this
    details_bytes       details of answers that a session keeps beside the newest ones
    named_snapshots     named snapshots of a session
    tombstone_ms        how long a deleted or expired session says so
    provisional_ms      how long a creation may take before its name is free again
    create_below        share of the store's memory above which no session is created
    import_below        share of it above which nothing brings a state along: forks, imports, named snapshots
    """

    operations: int = 1_024
    operation_age_ms: int = 24 * 3_600_000
    details_bytes: int = 256 << 10
    named_snapshots: int = 16
    tombstone_ms: int = 24 * 3_600_000
    provisional_ms: int = 60_000
    create_below: float = 0.8
    import_below: float = 0.9


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session, and which. Both parts become part of a stored key, so only a-z and 0-9 are allowed."""

    tenant: str
    session_id: str

    def __post_init__(self) -> None:
        for field in ("tenant", "session_id"):
            if not _PLAIN.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} must be 1 to 64 characters of a-z and 0-9")


@dataclass(frozen=True, slots=True)
class Revision:
    """A point of one history: the version, and the running hash of all operations up to it."""

    version: int
    chain: bytes

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"version must not be negative: {self.version}")
        if len(self.chain) != CHAIN_BYTES:
            raise ValueError(f"chain must be {CHAIN_BYTES} bytes, not {len(self.chain)}")

    @classmethod
    def first(cls, key: SessionKey) -> "Revision":
        """Version 0, with a chain that belongs to this session alone."""
        seed = f"rlstm chain 2\0{key.tenant}\0{key.session_id}".encode()
        return cls(0, hashlib.sha256(seed).digest())

    def after(self, operation_id: str, body_hash: bytes) -> "Revision":
        """The revision after an operation: chain' = SHA-256(chain ‖ operation id ‖ body hash)."""
        digest = hashlib.sha256(self.chain)
        digest.update(operation_id.encode())
        digest.update(body_hash)
        return Revision(self.version + 1, digest.digest())


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The newest version of a session.

    info    what a listing shows (JSON, by the engine); replaced whole by each commit
    state   None when the caller asked for none or already has this revision
    """

    key: SessionKey
    revision: Revision
    name: str | None
    info: bytes
    state: bytes | None
    created_at_ms: int
    expires_at_ms: int
    ttl_ms: int

    @property
    def version(self) -> int:
        """The number of operations that led here."""
        return self.revision.version


@dataclass(frozen=True, kw_only=True, slots=True)
class Creation:
    """A new session at version 0. `answer` is what a repeat of the same operation id is told.

    A repeat comes with a session id of its own; the same creation again is a re-send, not a repeat.
    `brought` says that the state comes from elsewhere: such sessions are refused later than fresh ones when
    the store fills up.
    """

    key: SessionKey
    operation_id: str
    body_hash: bytes
    name: str | None
    info: bytes
    state: bytes
    ttl_ms: int
    answer: bytes
    brought: bool = False

    @property
    def revision(self) -> Revision:
        """Where the new session starts."""
        return Revision.first(self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One changing operation, computed on the state at `expects`.

    operation_id    the client's idempotency key, or one the server drew; the same in every re-send
    body_hash       SHA-256 of the request: the same id with another one is refused
    if_match        the version the client insists on, or None
    info            the head's from now on, as is ttl_ms, the time to live
    state           after it, whole
    summary         what a repeat is told, kept as long as the id is known
    details         the rest of the answer; empty where there is none
    """

    key: SessionKey
    operation_id: str
    body_hash: bytes
    if_match: int | None
    expects: Revision
    info: bytes
    state: bytes
    ttl_ms: int
    summary: bytes
    details: bytes = b""

    @property
    def revision(self) -> Revision:
        """Where the session stands once this is committed."""
        return self.expects.after(self.operation_id, self.body_hash)


@dataclass(frozen=True, kw_only=True, slots=True)
class CreationReplayed:
    """The operation id made this session before; `answer` is what it was told then."""

    session_id: str
    answer: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """The operation took effect, as durably as the store says."""

    revision: Revision
    expires_at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The operation took effect earlier, at `version`; the session has moved on to `current` since.

    `details` is None when they are no longer stored; `summary` is always there. `expires_at_ms` is the
    session's present end.
    """

    version: int
    summary: bytes
    details: bytes | None
    current: Revision
    expires_at_ms: int

    def is_of(self, commit: Commit) -> bool:
        """Whether it is this very commit that took effect, and nothing has happened since."""
        here = (self.version, self.current) == (commit.revision.version, commit.revision)
        return here and (self.summary, self.details) == (commit.summary, commit.details)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale:
    """The state that the operation was computed on is not the head; nothing happened. Load and redo."""

    current: Revision


CreationOutcome = Head | CreationReplayed
CommitOutcome = Committed | Replayed | Stale


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSnapshot:
    """A copy of a state that was given a name, to go back to. `info` is what the session's was then."""

    name: str
    version: int
    created_at_ms: int
    info: bytes
    state_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Sessions in the order of their creation, without states, and the cursor of the next page, if any."""

    sessions: tuple[Head, ...]
    cursor: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreUsage:
    """Bytes in use, the limit (0: none), and keys the store dropped by itself (must stay 0)."""

    used_bytes: int
    max_bytes: int
    evicted_keys: int


class SessionStore(Protocol):
    """The truth about all sessions. Safe to call from many tasks and many processes at once."""

    durability: Durability
    """How safe a committed operation is; known after `check`."""

    async def check(self) -> None:
        """Make sure, before serving, that the store keeps its promises. Raises errors.StartupError."""
        ...

    async def ping(self) -> None:
        """Return if the store answers. Raises errors.StoreUnavailable."""
        ...

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session at version 0, and return its head.

        Raises errors.SessionExists if another live session of the tenant has the name, errors.StoreFull,
        errors.IdempotencyMismatch, and errors.Gone when the operation made a session that has ended since.
        """
        ...

    async def load_head(
        self, key: SessionKey, *, known: Revision | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version; without its state if the caller is at it already or wants none.

        Raises errors.Gone, errors.NotFound.
        """
        ...

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation, atomically, at most once; checked in the order of the module's table."""
        ...

    async def recall(self, key: SessionKey, operation_id: str, body_hash: bytes) -> Replayed | None:
        """Say what a commit of this operation came to; None when there was none, or too long ago.

        For a repeat that can no longer be computed. Raises errors.IdempotencyMismatch, errors.Gone,
        errors.NotFound.
        """
        ...

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | None:
        """Say which session this operation made; None when there was none, or too long ago.

        Raises errors.IdempotencyMismatch, and errors.Gone when that session has ended since.
        """
        ...

    async def name_snapshot(
        self, key: SessionKey, name: str, revision: Revision, info: bytes
    ) -> NamedSnapshot | Stale:
        """Keep a copy of the state at `revision`, which must be the head's, under a name.

        The same again changes nothing. Raises errors.SnapshotExists for a name that another version has,
        errors.TooLarge over the limit, errors.StoreFull, errors.Gone, errors.NotFound.
        """
        ...

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all named snapshots, oldest version first. Raises errors.Gone, errors.NotFound."""
        ...

    async def read_snapshot(self, key: SessionKey, name: str) -> tuple[NamedSnapshot, bytes]:
        """Return a named snapshot and its state. Raises errors.NotFound, errors.Gone."""
        ...

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove a named snapshot, if it is there. Raises errors.Gone, errors.NotFound for the session."""
        ...

    async def delete(self, key: SessionKey) -> None:
        """End the session for good; as often as one likes while its tombstone lives.

        Raises errors.NotFound, and errors.Gone when it had expired before.
        """
        ...

    async def find(self, tenant: str, name: str) -> str:
        """Return the id of the tenant's session of that name. Raises errors.NotFound."""
        ...

    async def list(self, tenant: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page of the tenant's sessions. Raises errors.InvalidField for a cursor that is none."""
        places = await self._places(tenant, _read_cursor(cursor), limit)
        found = [await self._listed(SessionKey(tenant, session_id)) for _, session_id in places]
        return Page(
            sessions=tuple(head for head in found if head is not None),
            cursor="{}.{}".format(*places[-1]) if len(places) == limit else None,
        )

    async def _places(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[tuple[int, str]]:
        """Return the next sessions by when they were made, and by id; some may have ended."""
        ...

    async def _listed(self, key: SessionKey) -> Head | None:
        """Return a session without its state, None for one that has ended."""
        ...

    async def count(self, tenant: str) -> int:
        """Count the tenant's sessions; those due to be swept are still counted."""
        ...

    async def total(self) -> int:
        """Count the sessions of all tenants; those due to be swept are still counted."""
        ...

    async def sweep(self, *, limit: int = 100) -> int:
        """End all expired sessions, `limit` at a time, and return how many that were."""
        ...

    async def usage(self) -> StoreUsage:
        """Say how full the store is."""
        ...

    async def close(self) -> None:
        """Give back connections. The data stay."""
        ...


def new_id() -> str:
    """Draw 128 random bits as 32 hexadecimal digits, for a session or an operation; never used again."""
    return secrets.token_hex(16)


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    """Return the last session before a page as (created_at_ms, session_id); (0, "") for the first page.

    Raises errors.InvalidField if it is not a cursor.
    """
    if cursor is None:
        return 0, ""
    matched = _CURSOR.fullmatch(cursor)
    if matched is None:
        raise InvalidField("cursor", "cursor must be the one that came with the page before")
    return int(matched[1]), matched[2]
