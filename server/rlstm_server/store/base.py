"""What a session store promises, in nouns and one protocol.

A session is a *history*: version n+1 is version n plus one committed operation. A store keeps a state of
some version (the base), the records that lead from it to the newest version (the head), and a window of the
operations it has applied. It knows bytes and versions, nothing of models. Two promises rest on `commit`: no
acknowledged operation is lost, and none is applied twice.

A commit brings what its state is worth: the whole of it, inline, which becomes the base; nothing, so that the
base stays and whoever loads the session does the records after it again; or the place of a snapshot, a state
in chunks that was put beside the session before. A snapshot of an earlier version of the same history can
become the base without a commit (`keep_snapshot`).

    commit, in this order        outcome
    ─────────────────────        ───────
    the session is gone          raises errors.Gone (deleted or expired, for 24 hours), then errors.NotFound
    the operation is known       Replayed, or Mismatch when its body differs
    if_match is not the version  Moved
    expects is not the head      Stale
    no state, and the log full   SnapshotDue
    the snapshot is not whole    raises errors.StoreUnavailable
    all is well                  Committed

A snapshot belongs to one thing: a base, or a name. Until it does it has an expiry; what points to it makes it
permanent in the same step, or is refused when it is not there whole or belongs to something already.

Every call may also raise errors.StoreUnavailable (nothing changed); calls that change something may raise
errors.OutcomeUnknown (the change may have happened: the same call again finds out), and calls that need room
errors.StoreFull (nothing changed). Times are milliseconds since 1970 by the store's own clock.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Durability = Literal["fsync", "replica", "memory"]

CHAIN_BYTES: Final = 32
HASH_BYTES: Final = 32
MAX_OPERATION_ID_BYTES: Final = 255
MAX_NAME_BYTES: Final = 255
MAX_TTL_MS: Final = 100 * 365 * 24 * 3_600_000
MAX_INFO_BYTES: Final = 1 << 20
MAX_INLINE_BYTES: Final = 2 << 20
"""A state that travels in one piece; larger ones hold up everybody else, and go in chunks."""
MAX_RECORD_BYTES: Final = 2 << 20
"""The longest append's and no more: a record is written in one piece, and kept as long as the log."""
MAX_SUMMARY_BYTES: Final = 4_096
MAX_CREATION_ANSWER_BYTES: Final = 65_536

_PLAIN: Final = re.compile(r"[a-z0-9]{1,64}")
_GENERATION: Final = re.compile(r"[a-z0-9]{1,32}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much of the past a store keeps. All replicas on one store use the same; only tests change them.

    operations          operation ids remembered per session, and creations per tenant
    operation_age_ms    none is remembered longer than this
    answers             the newest operations whose whole answer is kept
    answer_bytes        longer answers are not kept, only their summary
    log_records         records that `read_log` can still return; as many may follow a base
    log_bytes           the oldest records that no base needs go when all are longer together
    named_snapshots     named snapshots of a session
    chunk_bytes         a snapshot is written and read in pieces of this size, so that none holds up others
    tombstone_ms        how long a deleted or expired session says so
    provisional_ms      how long a creation may take before its name is free again
    snapshot_ms         how long a snapshot that nothing points to may take before it is gone again
    create_below        share of the store's memory above which no session is created
    import_below        share of it above which nothing brings a state along: forks, imports, named snapshots
    """

    operations: int = 1_024
    operation_age_ms: int = 24 * 3_600_000
    answers: int = 8
    answer_bytes: int = 65_536
    log_records: int = 1_024
    log_bytes: int = 1 << 20
    named_snapshots: int = 16
    chunk_bytes: int = 256 << 10
    tombstone_ms: int = 24 * 3_600_000
    provisional_ms: int = 60_000
    snapshot_ms: int = 60_000
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
class Position:
    """A place in one history: the version, and the running hash of all records up to it."""

    version: int
    chain: bytes

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"version must not be negative: {self.version}")
        if len(self.chain) != CHAIN_BYTES:
            raise ValueError(f"chain must be {CHAIN_BYTES} bytes, not {len(self.chain)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRef:
    """Where a state lies in chunks: it was put there whole, and is never changed.

    generation  drawn by whoever wrote it: 1 to 32 of a-z and 0-9, never used again
    size        bytes of all chunks together
    """

    generation: str
    size: int

    def __post_init__(self) -> None:
        if not _GENERATION.fullmatch(self.generation):
            raise ValueError("generation must be 1 to 32 characters of a-z and 0-9")
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The state that a session is rebuilt from: at the head's version, or records of the log away from it.

    state       the sealed state, or the place of its snapshot
    previous    the base before, of an earlier version, for when a snapshot turns out to be damaged; the
                records since then are kept too
    """

    version: int
    state: bytes | SnapshotRef
    previous: "Base | None" = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The newest version of a session.

    info    what a listing shows (JSON, by the engine); replaced whole by each commit
    base    None when the caller asked for none or already has this position
    """

    position: Position
    name: str | None
    info: bytes
    base: Base | None
    created_at_ms: int
    expires_at_ms: int
    ttl_ms: int

    @property
    def version(self) -> int:
        """The number of operations that led here."""
        return self.position.version


@dataclass(frozen=True, kw_only=True, slots=True)
class Creation:
    """A new session at version 0. `answer` is what a repeat of the same operation id is told.

    A repeat comes with a session id of its own; the same creation again is a re-send, not a repeat.
    A `state` that is a snapshot was put under the session's key before. `brought` says that the state comes
    from elsewhere: such sessions are refused later than fresh ones when the store fills up.
    """

    key: SessionKey
    operation_id: str
    body_hash: bytes
    name: str | None
    info: bytes
    state: bytes | SnapshotRef
    ttl_ms: int
    answer: bytes
    brought: bool = False

    def __post_init__(self) -> None:
        _check_operation(self.operation_id, self.body_hash)
        _check_contents(self.info, self.state, self.ttl_ms)
        if self.name is not None:
            _check_name(self.name)
        if len(self.answer) > MAX_CREATION_ANSWER_BYTES:
            raise ValueError(
                f"answer must be at most {MAX_CREATION_ANSWER_BYTES} bytes, not {len(self.answer)}"
            )

    @property
    def position(self) -> Position:
        """Where the new session starts."""
        return first_position(self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One changing operation, computed on the state at `expects`.

    operation_id    the client's idempotency key, or one the server drew; the same in every re-send
    body_hash       SHA-256 of the request: the same id with another one is a Mismatch
    if_match        the version the client insists on, or None
    record          what was done, enough to do it again
    info            the head's from now on, as is ttl_ms, the time to live
    state           after it; None leaves the base where it is, to be rebuilt from with the record
    answer          what a repeat is told; kept whole only while recent and short
    summary         the short form of it (version and totals), kept as long as the id is known
    """

    key: SessionKey
    operation_id: str
    body_hash: bytes
    if_match: int | None
    expects: Position
    record: bytes
    info: bytes
    state: bytes | SnapshotRef | None
    ttl_ms: int
    answer: bytes
    summary: bytes

    def __post_init__(self) -> None:
        _check_operation(self.operation_id, self.body_hash)
        _check_contents(self.info, self.state, self.ttl_ms)
        if self.if_match is not None and self.if_match < 0:
            raise ValueError(f"if_match must not be negative: {self.if_match}")
        if len(self.record) > MAX_RECORD_BYTES:
            raise ValueError(f"record must be at most {MAX_RECORD_BYTES} bytes, not {len(self.record)}")
        if len(self.summary) > MAX_SUMMARY_BYTES:
            raise ValueError(f"summary must be at most {MAX_SUMMARY_BYTES} bytes, not {len(self.summary)}")

    @property
    def position(self) -> Position:
        """Where the session stands once this is committed."""
        return next_position(self.expects, self.record)


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    """The session exists now."""

    head: Head


@dataclass(frozen=True, kw_only=True, slots=True)
class CreationReplayed:
    """The operation id made this session before; `answer` is what it was told then."""

    session_id: str
    answer: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """The operation took effect, as durably as the store says."""

    position: Position
    expires_at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The operation took effect earlier, at `version`; the session may have moved on to `current` since.

    `answer` is None when it was too long or is too old to be kept whole; `summary` is always there.
    """

    version: int
    answer: bytes | None
    summary: bytes
    current: Position


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The operation id is known with another body; nothing happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """`if_match` names another version than the present one; nothing happened."""

    current: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale:
    """The state that the operation was computed on is not the head; nothing happened. Load and redo."""

    current: Position


@dataclass(frozen=True, slots=True)
class SnapshotDue:
    """The commit has no state and the log no room before a newer base; nothing happened. Keep a snapshot."""


CreationOutcome = Created | CreationReplayed | Mismatch
CommitOutcome = Committed | Replayed | Mismatch | Moved | Stale | SnapshotDue


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRecord:
    """The operation that led to `version`."""

    version: int
    operation_id: str
    record: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSnapshot:
    """A state that was given a name, to go back to. `info` is what the session's was then."""

    name: str
    version: int
    created_at_ms: int
    info: bytes
    state: SnapshotRef

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_info(self.info)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A session in a listing; its head has no state."""

    session_id: str
    head: Head


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Sessions in the order of their creation, and the cursor of the next page (None: that was all)."""

    sessions: tuple[Listed, ...]
    cursor: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Bytes in use, the limit (0: none), and keys the store dropped by itself (must stay 0)."""

    used_bytes: int
    max_bytes: int
    evicted_keys: int


class SessionStore(Protocol):
    """The truth about all sessions. Safe to call from many tasks and many processes at once."""

    @property
    def durability(self) -> Durability:
        """How safe a committed operation is; known after `check`."""
        ...

    async def check(self) -> None:
        """Make sure, before serving, that the store keeps its promises. Raises errors.StartupError."""
        ...

    async def ping(self) -> None:
        """Return if the store answers. Raises errors.StoreUnavailable."""
        ...

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session at version 0.

        Raises errors.SessionExists if another live session of the tenant has the name, errors.StoreFull, and
        errors.Gone when the operation made a session that has ended since.
        """
        ...

    async def load_head(
        self, key: SessionKey, *, known: Position | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version; without its base if the caller is at it already or wants none.

        Raises errors.Gone, errors.NotFound.
        """
        ...

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation, atomically, at most once; checked in the order of the module's table."""
        ...

    async def recall(
        self, key: SessionKey, operation_id: str, body_hash: bytes
    ) -> Replayed | Mismatch | None:
        """Say what a commit of this operation came to; None when there was none, or too long ago.

        For a repeat that can no longer be computed. Raises errors.Gone, errors.NotFound.
        """
        ...

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | Mismatch | None:
        """Say which session this operation made; None when there was none, or too long ago.

        Raises errors.Gone when that session has ended since.
        """
        ...

    async def read_log(self, key: SessionKey, *, after: int, limit: int = 100) -> Sequence[LogRecord]:
        """Return the first `limit` records kept with a version above `after`, oldest first.

        The first one may be later than `after` + 1: only the newest, and those after a base, are kept.
        Raises errors.Gone, errors.NotFound.
        """
        ...

    async def put_snapshot(self, key: SessionKey, state: bytes, *, brought: bool = False) -> SnapshotRef:
        """Write a state beside the session, in chunks; it vanishes by itself unless something points to it.

        Whatever call it is then given to, it is gone when that is over and nothing points to it. The session
        need not exist yet. Raises errors.StoreFull, for a `brought` one as early as for its session, and
        errors.Gone for a session that has ended.
        """
        ...

    async def get_snapshot(self, key: SessionKey, snapshot: SnapshotRef) -> bytes:
        """Read a state, chunk by chunk. Raises errors.StateCorrupt when a chunk is not there or not whole."""
        ...

    async def keep_snapshot(self, key: SessionKey, position: Position, snapshot: SnapshotRef) -> bool:
        """Make a snapshot of the state at `position`, a place in the session's past or present, its base.

        The base before becomes the previous one, what nothing needs any more is removed. Returns False, and
        nothing happened, when the position is not in the history or not after the present base.
        Raises errors.Gone, errors.NotFound.
        """
        ...

    async def name_snapshot(
        self, key: SessionKey, name: str, position: Position, info: bytes, snapshot: SnapshotRef
    ) -> NamedSnapshot | Stale:
        """Give the state at `position`, which must be the head's, a name; the same again changes nothing.

        Raises errors.SnapshotExists for a name that another version has, errors.TooLarge over the limit,
        errors.Gone, errors.NotFound.
        """
        ...

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all named snapshots, oldest version first. Raises errors.Gone, errors.NotFound."""
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
        ...

    async def count(self, tenant: str) -> int:
        """Count the tenant's sessions; those due to be swept are still counted."""
        ...

    async def total(self) -> int:
        """Count the sessions of all tenants; those due to be swept are still counted."""
        ...

    async def sweep(self, *, limit: int = 100) -> int:
        """Bury all expired sessions, `limit` at a time, and return how many were buried."""
        ...

    async def usage(self) -> Usage:
        """Say how full the store is."""
        ...

    async def close(self) -> None:
        """Give back connections. The data stay."""
        ...


def new_session_id() -> str:
    """Draw 128 random bits as 32 hexadecimal digits; never used again."""
    return secrets.token_hex(16)


def new_operation_id() -> str:
    """Draw an id for an operation whose client gave no idempotency key."""
    return secrets.token_hex(16)


def new_generation() -> str:
    """Draw an id for a snapshot; never used again."""
    return secrets.token_hex(16)


def first_position(key: SessionKey) -> Position:
    """Return version 0, with a chain that belongs to this session alone."""
    seed = f"rlstm chain 1\0{key.tenant}\0{key.session_id}".encode()
    return Position(0, hashlib.sha256(seed).digest())


def next_position(position: Position, record: bytes) -> Position:
    """Return the position after `record`: chain' = SHA-256(chain ‖ record)."""
    digest = hashlib.sha256(position.chain)
    digest.update(record)
    return Position(position.version + 1, digest.digest())


def _check_operation(operation_id: str, body_hash: bytes) -> None:
    if not 1 <= len(operation_id.encode()) <= MAX_OPERATION_ID_BYTES:
        raise ValueError(f"operation_id must be 1 to {MAX_OPERATION_ID_BYTES} bytes long")
    if len(body_hash) != HASH_BYTES:
        raise ValueError(f"body_hash must be {HASH_BYTES} bytes, not {len(body_hash)}")


def _check_name(name: str) -> None:
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"name must be 1 to {MAX_NAME_BYTES} bytes long")


def _check_info(info: bytes) -> None:
    if len(info) > MAX_INFO_BYTES:
        raise ValueError(f"info must be at most {MAX_INFO_BYTES} bytes, not {len(info)}")


def _check_contents(info: bytes, state: bytes | SnapshotRef | None, ttl_ms: int) -> None:
    _check_info(info)
    if isinstance(state, bytes) and not 1 <= len(state) <= MAX_INLINE_BYTES:
        raise ValueError(f"state must be 1 to {MAX_INLINE_BYTES} bytes, not {len(state)}, or a snapshot")
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise ValueError(f"ttl_ms must be 1 to {MAX_TTL_MS}, not {ttl_ms}")
