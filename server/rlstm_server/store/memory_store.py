"""A store in this process: durability `memory`, and what `--local` keeps sessions in.

It keeps the contract of the store in Redis, under the same conformance suite, and needs no other program.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rlstm_server.errors import (
    Gone,
    IdempotencyMismatch,
    NotFound,
    SessionExists,
    SnapshotExists,
    StoreFull,
    TooLarge,
    VersionMismatch,
)
from rlstm_server.settings import Durability
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Creation,
    CreationOutcome,
    CreationReplayed,
    Head,
    NamedSnapshot,
    Replayed,
    Retention,
    Revision,
    SessionKey,
    SessionStore,
    Stale,
    StoreUsage,
)

_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_UNKNOWN_MEMORY: Final = 8 << 30


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def quarter_of_memory() -> int:
    """A quarter of the machine's memory or, in a container that has less, of the container's.

    2 GiB where the system does not tell (Windows).
    """
    memory = _UNKNOWN_MEMORY
    with suppress(AttributeError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is none, or it says "max"
        memory = min(memory, int(_CONTAINER_LIMIT.read_text()))
    return memory // 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """An operation that took effect: a commit or, of the session `made`, a creation."""

    version: int
    at_ms: int
    body_hash: bytes
    summary: bytes = b""
    detailed: bool = False
    made: str = ""


class History:
    """One session. What is asked of it must be alive: it knows no end."""

    def __init__(self, creation: Creation, limits: Retention, now_ms: int) -> None:
        self._limits = limits
        self.head = Head(
            key=creation.key,
            revision=creation.revision,
            name=creation.name,
            info=creation.info,
            state=creation.state,
            created_at_ms=now_ms,
            expires_at_ms=now_ms + creation.ttl_ms,
            ttl_ms=creation.ttl_ms,
        )
        self.answer = creation.answer
        self.operations: dict[str, Done] = {}
        self.details: dict[int, bytes] = {}
        self.named: dict[str, tuple[NamedSnapshot, Revision, bytes]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the states and of the description."""
        named = sum(len(state) for _, _, state in self.named.values())
        return len(self.head.state or b"") + len(self.head.info) + named

    def known(self, operation_id: str, body_hash: bytes, now_ms: int) -> Replayed | None:
        """Say what is known of an operation; None when it was never applied, or too long ago."""
        done = self.operations.get(operation_id)
        if done is None or done.at_ms + self._limits.operation_age_ms <= now_ms:
            return None
        if done.body_hash != body_hash:
            raise IdempotencyMismatch
        return Replayed(
            version=done.version,
            summary=done.summary,
            details=self.details.get(done.version) if done.detailed else b"",
            current=self.head.revision,
            expires_at_ms=self.head.expires_at_ms,
        )

    def refusal(self, commit: Commit, now_ms: int) -> Replayed | Stale | None:
        """Say why an operation is not applied, in the order of the contract; None when it can be."""
        head = self.head
        known = self.known(commit.operation_id, commit.body_hash, now_ms)
        if known is not None:
            return known
        if commit.if_match is not None and commit.if_match != head.version:
            raise VersionMismatch(commit.if_match, head.version)
        if commit.expects != head.revision:
            return Stale(current=head.revision)
        return None

    def apply(self, commit: Commit, now_ms: int) -> None:
        """Apply an operation that nothing speaks against."""
        version, limits = commit.revision.version, self._limits
        self.head = replace(
            self.head,
            revision=commit.revision,
            info=commit.info,
            state=commit.state,
            expires_at_ms=now_ms + commit.ttl_ms,
            ttl_ms=commit.ttl_ms,
        )
        while self.details and sum(map(len, self.details.values())) > limits.details_bytes:
            del self.details[next(iter(self.details))]
        self.details.pop(version - limits.operations, None)
        if commit.details:
            self.details[version] = commit.details
        remember(
            self.operations,
            commit.operation_id,
            Done(
                version=version,
                at_ms=now_ms,
                body_hash=commit.body_hash,
                summary=commit.summary,
                detailed=bool(commit.details),
            ),
            limits.operations,
        )


def remember(operations: dict[str, Done], operation_id: str, done: Done, most: int) -> None:
    """Note the newest operation, and forget the one that is too many."""
    operations.pop(operation_id, None)  # one that came back after its time is the newest
    operations[operation_id] = done
    oldest = next(iter(operations))
    if operations[oldest].version <= done.version - most:
        del operations[oldest]


class MemoryStore(SessionStore):
    """Sessions in this process. No call yields to other tasks, so each is atomic.

    clock_ms     the store's clock
    max_bytes    room for states and descriptions; 0 is no limit
    """

    durability: Durability = "memory"

    def __init__(
        self,
        *,
        limits: Retention | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        max_bytes: int = 0,
    ) -> None:
        self._limits = limits or Retention()
        self._clock_ms = clock_ms
        self._max_bytes = max_bytes
        self._sessions: dict[SessionKey, History] = {}
        self._tombstones: dict[SessionKey, tuple[str, int]] = {}
        self._creations: dict[str, dict[str, Done]] = {}
        self._created = 0
        self._used_bytes = 0

    async def check(self) -> None:
        """Nothing can be wrong."""

    async def ping(self) -> None:
        """Answer."""

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session at version 0."""
        key, limits = creation.key, self._limits
        known = await self.recall_creation(key.tenant, creation.operation_id, creation.body_hash)
        if known is not None:
            return known
        if creation.name is not None and self._owner(key.tenant, creation.name) is not None:
            raise SessionExists("another session has this name")
        self._make_room(
            len(creation.state) + len(creation.info),
            share=limits.import_below if creation.brought else limits.create_below,
        )
        now = self._clock_ms()
        history = self._sessions[key] = History(creation, limits, now)
        self._used_bytes += history.nbytes
        self._created += 1
        done = Done(version=self._created, at_ms=now, body_hash=creation.body_hash, made=key.session_id)
        made = self._creations.setdefault(key.tenant, {})
        remember(made, creation.operation_id, done, self._created + 1)
        if len(made) > limits.operations:
            del made[next(iter(made))]
        return history.head

    async def load_head(
        self, key: SessionKey, *, known: Revision | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version."""
        head = self._living(key).head
        return head if with_state and head.revision != known else replace(head, state=None)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation."""
        history = self._living(commit.key)
        refusal = history.refusal(commit, self._clock_ms())
        if refusal is not None:
            return refusal
        before = history.nbytes
        self._make_room(len(commit.state) - len(history.head.state or b""), share=1.0)
        history.apply(commit, self._clock_ms())
        self._used_bytes += history.nbytes - before
        return Committed(revision=commit.revision, expires_at_ms=history.head.expires_at_ms)

    async def recall(self, key: SessionKey, operation_id: str, body_hash: bytes) -> Replayed | None:
        """Say what a commit of this operation came to."""
        return self._living(key).known(operation_id, body_hash, self._clock_ms())

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | None:
        """Say which session this operation made."""
        done = self._creations.get(tenant, {}).get(operation_id)
        if done is None or self._too_old(done.at_ms):
            return None
        if done.body_hash != body_hash:
            raise IdempotencyMismatch
        made = self._living(SessionKey(tenant, done.made))
        return CreationReplayed(session_id=done.made, answer=made.answer)

    async def name_snapshot(
        self, key: SessionKey, name: str, revision: Revision, info: bytes
    ) -> NamedSnapshot | Stale:
        """Keep a copy of the present state."""
        history = self._living(key)
        state = history.head.state or b""
        known = history.named.get(name)
        if known is not None and known[1] == revision:
            return known[0]
        if revision != history.head.revision:
            return Stale(current=history.head.revision)
        if known is not None:
            raise SnapshotExists("another version of the session has a snapshot of this name")
        if len(history.named) >= self._limits.named_snapshots:
            raise TooLarge("named snapshots", len(history.named) + 1, self._limits.named_snapshots)
        self._make_room(len(state), share=self._limits.import_below)
        new = NamedSnapshot(
            name=name,
            version=revision.version,
            created_at_ms=self._clock_ms(),
            info=info,
            state_bytes=len(state),
        )
        history.named[name] = new, revision, state
        self._used_bytes += len(state)
        return new

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all named snapshots, oldest version first."""
        named = [snapshot for snapshot, _, _ in self._living(key).named.values()]
        return sorted(named, key=lambda one: (one.version, one.created_at_ms, one.name))

    async def read_snapshot(self, key: SessionKey, name: str) -> tuple[NamedSnapshot, bytes]:
        """Return a named snapshot and its state."""
        found = self._living(key).named.get(name)
        if found is None:
            raise NotFound("the session has no such snapshot")
        return found[0], found[2]

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove a named snapshot."""
        dropped = self._living(key).named.pop(name, None)
        self._used_bytes -= 0 if dropped is None else len(dropped[2])

    async def delete(self, key: SessionKey) -> None:
        """End the session."""
        try:
            self._living(key)
        except Gone as gone:
            if gone.reason != "deleted":
                raise
            return
        self._end(key, "deleted")

    async def find(self, tenant: str, name: str) -> str:
        """Return the id behind the name."""
        key = self._owner(tenant, name)
        if key is None:
            raise NotFound
        return key.session_id

    async def _places(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[tuple[int, str]]:
        living = [(h.head.created_at_ms, key.session_id) for key, h in self._living_of(tenant)]
        return sorted(place for place in living if place > after)[:limit]

    async def _listed(self, key: SessionKey) -> Head | None:
        return await self.load_head(key, with_state=False)

    async def count(self, tenant: str) -> int:
        """Count the tenant's sessions."""
        return sum(key.tenant == tenant for key in self._sessions)

    async def total(self) -> int:
        """Count all sessions."""
        return len(self._sessions)

    async def sweep(self, *, limit: int = 100) -> int:
        """End what is due, and forget what nobody can ask for any more."""
        now = self._clock_ms()
        due = [key for key, history in self._sessions.items() if history.head.expires_at_ms <= now]
        for key in due:
            self._end(key, "session_expired")
        self._tombstones = {key: one for key, one in self._tombstones.items() if one[1] > now}
        for tenant, made in list(self._creations.items()):
            kept = {operation: done for operation, done in made.items() if not self._too_old(done.at_ms)}
            self._creations[tenant] = kept
            if not kept:
                del self._creations[tenant]
        return len(due)

    async def usage(self) -> StoreUsage:
        """Say how full it is."""
        return StoreUsage(used_bytes=self._used_bytes, max_bytes=self._max_bytes, evicted_keys=0)

    async def close(self) -> None:
        """Keep everything: the store may be used again."""

    def _living(self, key: SessionKey) -> History:
        now = self._clock_ms()
        history = self._sessions.get(key)
        if history is not None and history.head.expires_at_ms > now:
            return history
        if history is not None:
            self._end(key, "session_expired")
        reason, until_ms = self._tombstones.get(key, ("", 0))
        if until_ms <= now:
            raise NotFound
        raise Gone(reason)

    def _living_of(self, tenant: str) -> Iterator[tuple[SessionKey, History]]:
        now, sessions = self._clock_ms(), self._sessions.items()
        return (
            (key, history)
            for key, history in sessions
            if key.tenant == tenant and history.head.expires_at_ms > now
        )

    def _owner(self, tenant: str, name: str) -> SessionKey | None:
        """Find the session that has the name."""
        return next((key for key, history in self._living_of(tenant) if history.head.name == name), None)

    def _end(self, key: SessionKey, reason: str) -> None:
        history = self._sessions.pop(key)
        self._used_bytes -= history.nbytes
        self._tombstones[key] = reason, self._clock_ms() + self._limits.tombstone_ms

    def _too_old(self, at_ms: int) -> bool:
        return at_ms + self._limits.operation_age_ms <= self._clock_ms()

    def _make_room(self, more: int, *, share: float) -> None:
        if self._max_bytes and self._used_bytes + more > share * self._max_bytes:
            raise StoreFull("the store has no room; live sessions stay as they are")
