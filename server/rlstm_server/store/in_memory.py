"""MemoryStore: the contract of a store in one process, for tests and for servers that may forget."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rlstm_server.errors import (
    Gone,
    InvalidField,
    NotFound,
    SessionExists,
    SnapshotExists,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
    TooLarge,
)
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Created,
    Creation,
    CreationOutcome,
    CreationReplayed,
    Durability,
    Head,
    Limits,
    Listed,
    LogRecord,
    Mismatch,
    NamedSnapshot,
    Page,
    Position,
    Replayed,
    SessionKey,
    SnapshotRef,
    Stale,
    Usage,
    new_generation,
)
from rlstm_server.store.cursor import read_cursor, write_cursor
from rlstm_server.store.history import History


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Birth:
    session_id: str
    at_ms: int
    body_hash: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tomb:
    reason: str
    until_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Snapshot:
    state: bytes
    until_ms: int | None  # None: something points to it


class MemoryStore:
    """Sessions in this process. No call yields to other tasks, so each is atomic.

    clock_ms     the store's clock
    max_bytes    room for states, infos and records; 0 is no limit
    """

    durability: Durability = "memory"

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        max_bytes: int = 0,
    ) -> None:
        self._limits = limits or Limits()
        self._clock_ms = clock_ms
        self._max_bytes = max_bytes
        self._sessions: dict[SessionKey, History] = {}
        self._tombs: dict[SessionKey, _Tomb] = {}
        self._names: dict[tuple[str, str], SessionKey] = {}
        self._births: dict[str, dict[str, _Birth]] = {}
        self._snapshots: defaultdict[SessionKey, dict[str, _Snapshot]] = defaultdict(dict)

    async def check(self) -> None:
        """Nothing can be wrong."""

    async def ping(self) -> None:
        """Answer."""

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session at version 0."""
        tenant = creation.key.tenant
        known = await self.recall_creation(tenant, creation.operation_id, creation.body_hash)
        if known is not None:
            return known
        if creation.name is not None:
            self._raise_if_taken(tenant, creation.name)
        limits = self._limits
        more = _nbytes(creation.state) + len(creation.info)
        self._make_room(more, share=limits.import_below if creation.brought else limits.create_below)
        self._take(creation.key, creation.state)
        return Created(head=self._bear(creation))

    async def load_head(
        self, key: SessionKey, *, known: Position | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version."""
        history = self._living(key)
        return history.whole_head if with_state and history.head.position != known else history.head

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation."""
        with self._bringing(commit.key, commit.state):
            return self._commit(commit)

    def _commit(self, commit: Commit) -> CommitOutcome:
        history = self._living(commit.key)
        refusal = history.refusal(commit, self._clock_ms())
        if refusal is not None:
            return refusal
        freed = history.inline_bytes if isinstance(commit.state, bytes) else 0
        self._make_room(_nbytes(commit.state) + len(commit.record) - freed, share=1.0)
        self._take(commit.key, commit.state)
        before = history.snapshots
        history.apply(commit, self._clock_ms())
        self._forget(commit.key, before - history.snapshots)
        return Committed(position=commit.position, expires_at_ms=history.head.expires_at_ms)

    async def recall(
        self, key: SessionKey, operation_id: str, body_hash: bytes
    ) -> Replayed | Mismatch | None:
        """Say what a commit of this operation came to."""
        return self._living(key).known(operation_id, body_hash, self._clock_ms())

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | Mismatch | None:
        """Say which session this operation made."""
        birth = self._births.get(tenant, {}).get(operation_id)
        if birth is None or self._too_old(birth.at_ms):
            return None
        if birth.body_hash != body_hash:
            return Mismatch()
        made = self._living(SessionKey(tenant, birth.session_id))
        return CreationReplayed(session_id=birth.session_id, answer=made.answer)

    async def read_log(self, key: SessionKey, *, after: int, limit: int = 100) -> Sequence[LogRecord]:
        """Return the records kept with a version above `after`, oldest first."""
        return self._living(key).read_log(after, limit)

    async def put_snapshot(self, key: SessionKey, state: bytes, *, brought: bool = False) -> SnapshotRef:
        """Keep a state for a while."""
        snapshot = SnapshotRef(generation=new_generation(), size=len(state))
        tomb = self._tombs.get(key)
        if tomb is not None and tomb.until_ms > self._clock_ms():
            raise Gone(tomb.reason)
        self._make_room(len(state), share=self._limits.import_below if brought else 1.0)
        until_ms = self._clock_ms() + self._limits.snapshot_ms
        self._snapshots[key][snapshot.generation] = _Snapshot(state=state, until_ms=until_ms)
        return snapshot

    async def get_snapshot(self, key: SessionKey, snapshot: SnapshotRef) -> bytes:
        """Return a state that was put."""
        found = self._find(key, snapshot)
        if found is None:
            raise StateCorrupt("a stored snapshot is not there whole")
        return found.state

    async def keep_snapshot(self, key: SessionKey, position: Position, snapshot: SnapshotRef) -> bool:
        """Move the base forward."""
        with self._bringing(key, snapshot):
            return self._keep(key, position, snapshot)

    def _keep(self, key: SessionKey, position: Position, snapshot: SnapshotRef) -> bool:
        history = self._living(key)
        if history.has_kept(position, snapshot):
            return True
        if not history.can_keep(position):
            return False
        self._take(key, snapshot)
        before = history.snapshots
        history.keep(position, snapshot)
        self._forget(key, before - history.snapshots)
        return True

    async def name_snapshot(
        self, key: SessionKey, name: str, position: Position, info: bytes, snapshot: SnapshotRef
    ) -> NamedSnapshot | Stale:
        """Name the present state."""
        new = NamedSnapshot(
            name=name, version=position.version, created_at_ms=self._clock_ms(), info=info, state=snapshot
        )
        with self._bringing(key, snapshot):
            return self._name(key, position, new)

    def _name(self, key: SessionKey, position: Position, new: NamedSnapshot) -> NamedSnapshot | Stale:
        history = self._living(key)
        name, snapshot = new.name, new.state
        old = history.named.get(name)
        if old is not None and (old.version, old.state) == (position.version, snapshot):
            return old
        if position != history.head.position:
            return Stale(current=history.head.position)
        if old is not None:
            if old.version == position.version:
                return old
            raise SnapshotExists("another version of the session has a snapshot of this name")
        if len(history.named) >= self._limits.named_snapshots:
            raise TooLarge("named snapshots", len(history.named) + 1, self._limits.named_snapshots)
        self._take(key, snapshot)
        history.named[name] = new
        return new

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all named snapshots, oldest version first."""
        named = self._living(key).named.values()
        return sorted(named, key=lambda one: (one.version, one.created_at_ms, one.name))

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove a named snapshot."""
        dropped = self._living(key).named.pop(name, None)
        if dropped is not None:
            self._forget(key, {dropped.state})

    async def delete(self, key: SessionKey) -> None:
        """End the session."""
        try:
            self._living(key)
        except Gone as gone:
            if gone.reason != "deleted":
                raise
            return
        self._bury(key, "deleted")

    async def find(self, tenant: str, name: str) -> str:
        """Return the id behind the name."""
        key = self._names.get((tenant, name))
        if key is None:
            raise NotFound
        try:
            self._living(key)
        except Gone:
            raise NotFound from None
        return key.session_id

    async def list(self, tenant: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page."""
        if limit < 1:
            raise InvalidField("limit", "limit must be at least 1")
        after = read_cursor(cursor)
        due = self._clock_ms()
        rows = sorted(
            (history.head.created_at_ms, key.session_id, history.head)
            for key, history in self._sessions.items()
            if key.tenant == tenant and history.head.expires_at_ms > due
        )
        rows = [row for row in rows if row[:2] > after][:limit]
        return Page(
            sessions=tuple(Listed(session_id=i, head=head) for _, i, head in rows),
            cursor=write_cursor(*rows[-1][:2]) if len(rows) == limit else None,
        )

    async def count(self, tenant: str) -> int:
        """Count the tenant's sessions."""
        return sum(key.tenant == tenant for key in self._sessions)

    async def total(self) -> int:
        """Count all sessions."""
        return len(self._sessions)

    async def sweep(self, *, limit: int = 100) -> int:
        """Bury what is due, and forget what nobody can ask for any more."""
        now = self._clock_ms()
        due = [key for key, history in self._sessions.items() if history.head.expires_at_ms <= now]
        for key in due:
            self._bury(key, "session_expired")
        self._tombs = {key: tomb for key, tomb in self._tombs.items() if tomb.until_ms > now}
        births = {tenant: self._remembered(made) for tenant, made in self._births.items()}
        self._births = {tenant: made for tenant, made in births.items() if made}
        for key, snapshots in list(self._snapshots.items()):
            self._snapshots[key] = {g: one for g, one in snapshots.items() if not _is_over(one, now)}
            if not self._snapshots[key]:
                del self._snapshots[key]
        return len(due)

    async def usage(self) -> Usage:
        """Add up all sessions."""
        return Usage(used_bytes=self._used_bytes(), max_bytes=self._max_bytes, evicted_keys=0)

    async def close(self) -> None:
        """Keep everything: the store may be used again."""

    def _living(self, key: SessionKey) -> History:
        now = self._clock_ms()
        history = self._sessions.get(key)
        if history is not None and history.head.expires_at_ms > now:
            return history
        if history is not None:
            self._bury(key, "session_expired")
        tomb = self._tombs.get(key)
        if tomb is None or tomb.until_ms <= now:
            raise NotFound
        raise Gone(tomb.reason)

    def _bury(self, key: SessionKey, reason: str) -> None:
        history = self._sessions.pop(key)
        self._snapshots.pop(key, None)
        if history.head.name is not None:
            self._names.pop((key.tenant, history.head.name), None)
        self._tombs[key] = _Tomb(reason=reason, until_ms=self._clock_ms() + self._limits.tombstone_ms)

    def _bear(self, creation: Creation) -> Head:
        now, key = self._clock_ms(), creation.key
        history = self._sessions[key] = History(creation, self._limits, now)
        births = self._births.setdefault(key.tenant, {})
        births.pop(creation.operation_id, None)  # one that came back after its time is the newest
        births[creation.operation_id] = _Birth(
            session_id=key.session_id, at_ms=now, body_hash=creation.body_hash
        )
        if len(births) > self._limits.operations:
            del births[next(iter(births))]
        if creation.name is not None:
            self._names[key.tenant, creation.name] = key
        return history.whole_head

    def _find(self, key: SessionKey, snapshot: SnapshotRef) -> _Snapshot | None:
        found = self._snapshots.get(key, {}).get(snapshot.generation)
        if found is None or _is_over(found, self._clock_ms()) or len(found.state) != snapshot.size:
            return None
        return found

    def _take(self, key: SessionKey, state: bytes | SnapshotRef | None) -> None:
        if not isinstance(state, SnapshotRef):
            return
        found = self._find(key, state)
        if found is None or found.until_ms is None:
            raise StoreUnavailable("the snapshot is not there whole any more; nothing changed, try again")
        self._snapshots[key][state.generation] = replace(found, until_ms=None)

    @contextmanager
    def _bringing(self, key: SessionKey, state: bytes | SnapshotRef | None) -> Iterator[None]:
        """Remove the snapshot that a call brought, if nothing points to it when that is over."""
        try:
            yield
        finally:
            generation = state.generation if isinstance(state, SnapshotRef) else ""
            brought = self._snapshots.get(key, {}).get(generation)
            if brought is not None and brought.until_ms is not None:
                del self._snapshots[key][generation]

    def _forget(self, key: SessionKey, snapshots: set[SnapshotRef]) -> None:
        for snapshot in snapshots:
            self._snapshots.get(key, {}).pop(snapshot.generation, None)

    def _remembered(self, births: dict[str, _Birth]) -> dict[str, _Birth]:
        return {operation: birth for operation, birth in births.items() if not self._too_old(birth.at_ms)}

    def _raise_if_taken(self, tenant: str, name: str) -> None:
        owner = self._names.get((tenant, name))
        if owner is None:
            return
        try:
            self._living(owner)
        except Gone:
            return
        raise SessionExists("another session has this name")

    def _too_old(self, at_ms: int) -> bool:
        return at_ms + self._limits.operation_age_ms <= self._clock_ms()

    def _used_bytes(self) -> int:
        snapshots = sum(len(one.state) for there in self._snapshots.values() for one in there.values())
        return snapshots + sum(history.nbytes for history in self._sessions.values())

    def _make_room(self, more: int, *, share: float) -> None:
        if self._max_bytes and self._used_bytes() + more > share * self._max_bytes:
            raise StoreFull("the store has no room; live sessions stay as they are")


def _nbytes(state: bytes | SnapshotRef | None) -> int:
    return len(state) if isinstance(state, bytes) else 0


def _is_over(snapshot: _Snapshot, now_ms: int) -> bool:
    return snapshot.until_ms is not None and snapshot.until_ms <= now_ms
