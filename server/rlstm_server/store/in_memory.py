"""MemoryStore: the contract of a store in one process, for tests and for servers that may forget."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rlstm_server.errors import Gone, InvalidField, NotFound, SessionExists, StoreFull
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
    Moved,
    Page,
    Position,
    Replayed,
    SessionKey,
    Stale,
    Usage,
)
from rlstm_server.store.cursor import read_cursor, write_cursor


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Operation:
    version: int
    at_ms: int
    body_hash: bytes
    answer: bytes | None
    summary: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Birth:
    session_id: str
    at_ms: int
    body_hash: bytes


@dataclass(kw_only=True, slots=True)
class _Session:
    head: Head
    answer: bytes
    log: list[LogRecord] = field(default_factory=list)
    operations: dict[str, _Operation] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return len(self.head.state or b"") + len(self.head.info) + sum(len(r.record) for r in self.log)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tomb:
    reason: str
    until_ms: int


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
        self._sessions: dict[SessionKey, _Session] = {}
        self._tombs: dict[SessionKey, _Tomb] = {}
        self._names: dict[tuple[str, str], SessionKey] = {}
        self._births: dict[tuple[str, str], _Birth] = {}

    async def check(self) -> None:
        """Nothing can be wrong."""

    async def ping(self) -> None:
        """Answer."""

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session at version 0."""
        tenant = creation.key.tenant
        birth = self._births.get((tenant, creation.operation_id))
        if birth is not None and not self._too_old(birth.at_ms):
            if birth.body_hash != creation.body_hash:
                return Mismatch()
            made = self._living(SessionKey(tenant, birth.session_id))
            return CreationReplayed(session_id=birth.session_id, answer=made.answer)
        if creation.name is not None:
            self._raise_if_taken(tenant, creation.name)
        self._make_room(len(creation.state) + len(creation.info), share=self._limits.create_below)
        return Created(head=self._bear(creation))

    async def load_head(
        self, key: SessionKey, *, known: Position | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version."""
        head = self._living(key).head
        return head if with_state and head.position != known else replace(head, state=None)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation."""
        session = self._living(commit.key)
        head = session.head
        done = session.operations.get(commit.operation_id)
        if done is not None and not self._too_old(done.at_ms):
            return self._repeated(commit, done, head)
        if commit.if_match is not None and commit.if_match != head.version:
            return Moved(current=head.version)
        if commit.expects != head.position:
            return Stale(current=head.position)
        self._make_room(len(commit.state) + len(commit.record) - len(head.state or b""), share=1.0)
        self._apply(session, commit)
        return Committed(position=commit.position, expires_at_ms=session.head.expires_at_ms)

    async def read_log(self, key: SessionKey, *, after: int, limit: int = 100) -> Sequence[LogRecord]:
        """Return the records kept with a version above `after`, oldest first."""
        return [record for record in self._living(key).log if record.version > after][:limit]

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
            (session.head.created_at_ms, key.session_id, session.head)
            for key, session in self._sessions.items()
            if key.tenant == tenant and session.head.expires_at_ms > due
        )
        rows = [row for row in rows if row[:2] > after][:limit]
        return Page(
            sessions=tuple(Listed(session_id=i, head=replace(head, state=None)) for _, i, head in rows),
            cursor=write_cursor(*rows[-1][:2]) if len(rows) == limit else None,
        )

    async def count(self, tenant: str) -> int:
        """Count the tenant's sessions."""
        return sum(key.tenant == tenant for key in self._sessions)

    async def sweep(self, *, limit: int = 100) -> int:
        """Bury what is due."""
        now = self._clock_ms()
        due = [key for key, session in self._sessions.items() if session.head.expires_at_ms <= now]
        for key in due[:limit]:
            self._bury(key, "session_expired")
        self._tombs = {key: tomb for key, tomb in self._tombs.items() if tomb.until_ms > now}
        self._births = {key: birth for key, birth in self._births.items() if not self._too_old(birth.at_ms)}
        return len(due[:limit])

    async def usage(self) -> Usage:
        """Add up all sessions."""
        used = sum(session.nbytes for session in self._sessions.values())
        return Usage(used_bytes=used, max_bytes=self._max_bytes, evicted_keys=0)

    async def close(self) -> None:
        """Keep everything: the store may be used again."""

    def _living(self, key: SessionKey) -> _Session:
        now = self._clock_ms()
        session = self._sessions.get(key)
        if session is not None and session.head.expires_at_ms > now:
            return session
        if session is not None:
            self._bury(key, "session_expired")
        tomb = self._tombs.get(key)
        if tomb is None or tomb.until_ms <= now:
            raise NotFound
        raise Gone(tomb.reason)

    def _bury(self, key: SessionKey, reason: str) -> None:
        session = self._sessions.pop(key)
        if session.head.name is not None:
            self._names.pop((key.tenant, session.head.name), None)
        self._tombs[key] = _Tomb(reason=reason, until_ms=self._clock_ms() + self._limits.tombstone_ms)

    def _bear(self, creation: Creation) -> Head:
        now = self._clock_ms()
        head = Head(
            position=creation.position,
            name=creation.name,
            info=creation.info,
            state=creation.state,
            created_at_ms=now,
            expires_at_ms=now + creation.ttl_ms,
            ttl_ms=creation.ttl_ms,
        )
        key = creation.key
        self._sessions[key] = _Session(head=head, answer=creation.answer)
        self._births[key.tenant, creation.operation_id] = _Birth(
            session_id=key.session_id, at_ms=now, body_hash=creation.body_hash
        )
        if creation.name is not None:
            self._names[key.tenant, creation.name] = key
        self._forget_births(key.tenant)
        return head

    def _forget_births(self, tenant: str) -> None:
        own = [birth for birth in self._births if birth[0] == tenant]
        for birth in own[: -self._limits.operations]:
            del self._births[birth]

    def _apply(self, session: _Session, commit: Commit) -> None:
        limits, now, version = self._limits, self._clock_ms(), commit.position.version
        answer = commit.answer if len(commit.answer) <= limits.answer_bytes else None
        session.log.append(LogRecord(version=version, operation_id=commit.operation_id, record=commit.record))
        del session.log[: -limits.log_records]
        session.operations[commit.operation_id] = _Operation(
            version=version, at_ms=now, body_hash=commit.body_hash, answer=answer, summary=commit.summary
        )
        oldest = version - limits.operations
        session.operations = {i: done for i, done in session.operations.items() if done.version > oldest}
        session.head = replace(
            session.head,
            position=commit.position,
            info=commit.info,
            state=commit.state,
            expires_at_ms=now + commit.ttl_ms,
            ttl_ms=commit.ttl_ms,
        )

    def _repeated(self, commit: Commit, done: _Operation, head: Head) -> Replayed | Mismatch:
        if done.body_hash != commit.body_hash:
            return Mismatch()
        recent = done.version > head.version - self._limits.answers
        return Replayed(
            version=done.version,
            answer=done.answer if recent else None,
            summary=done.summary,
            current=head.position,
        )

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

    def _make_room(self, more: int, *, share: float) -> None:
        used = sum(session.nbytes for session in self._sessions.values()) if self._max_bytes else 0
        if self._max_bytes and used + more > share * self._max_bytes:
            raise StoreFull("the store has no room; live sessions stay as they are")
