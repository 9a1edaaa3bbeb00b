"""History: one session in memory. Its head and base, its log, its names, and the operations it remembers."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlstm_server.store.base import (
    Base,
    Commit,
    CommitOutcome,
    Creation,
    Head,
    Limits,
    LogRecord,
    Mismatch,
    Moved,
    NamedSnapshot,
    Position,
    Replayed,
    SnapshotDue,
    SnapshotRef,
    Stale,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Operation:
    version: int
    at_ms: int
    body_hash: bytes
    summary: bytes


class _Entry(NamedTuple):
    record: LogRecord
    chain: bytes


def _compact(data: bytes) -> bytes:
    """Copy what is kept for long: as a serializer left it, it may hold a block many times its size."""
    return bytes(memoryview(data))


class History:
    """The session that `creation` made at `now_ms`. What is asked of it must be alive: it knows no end."""

    def __init__(self, creation: Creation, limits: Limits, now_ms: int) -> None:
        self._limits = limits
        self._head = Head(
            position=creation.position,
            name=creation.name,
            info=creation.info,
            base=None,
            created_at_ms=now_ms,
            expires_at_ms=now_ms + creation.ttl_ms,
            ttl_ms=creation.ttl_ms,
        )
        self._base = Base(version=0, state=creation.state)
        self._log: deque[_Entry] = deque()
        self._log_bytes = 0
        self._operations: dict[str, _Operation] = {}
        self._answers: dict[int, bytes] = {}
        self.answer = _compact(creation.answer)
        self.named: dict[str, NamedSnapshot] = {}

    @property
    def head(self) -> Head:
        """The newest version, without its base."""
        return self._head

    @property
    def whole_head(self) -> Head:
        """The newest version, with its base."""
        return replace(self._head, base=self._base)

    @property
    def snapshots(self) -> set[SnapshotRef]:
        """Everything in chunks that this session points to."""
        states = [base.state for base in self._bases()]
        kept = {state for state in states if isinstance(state, SnapshotRef)}
        return kept | {named.state for named in self.named.values()}

    @property
    def nbytes(self) -> int:
        """Bytes of what lies here: inline states, info and records."""
        return self.inline_bytes + len(self._head.info) + self._log_bytes

    @property
    def inline_bytes(self) -> int:
        """Bytes of the states that lie here themselves; snapshots lie elsewhere."""
        states = [base.state for base in self._bases()]
        return sum(len(state) for state in states if isinstance(state, bytes))

    def read_log(self, after: int, limit: int) -> Sequence[LogRecord]:
        """Return the first `limit` records above a version."""
        return [entry.record for entry in self._log if entry.record.version > after][:limit]

    def known(self, operation_id: str, body_hash: bytes, now_ms: int) -> Replayed | Mismatch | None:
        """Say what is known of an operation; None when it was never applied, or too long ago."""
        done = self._operations.get(operation_id)
        if done is None or done.at_ms + self._limits.operation_age_ms <= now_ms:
            return None
        if done.body_hash != body_hash:
            return Mismatch()
        return Replayed(
            version=done.version,
            answer=self._answers.get(done.version),
            summary=done.summary,
            current=self._head.position,
        )

    def refusal(self, commit: Commit, now_ms: int) -> CommitOutcome | None:
        """Say why an operation cannot be applied, in the order of the contract; None when it can."""
        head = self._head
        known = self.known(commit.operation_id, commit.body_hash, now_ms)
        if known is not None:
            return known
        if commit.if_match is not None and commit.if_match != head.version:
            return Moved(current=head.version)
        if commit.expects != head.position:
            return Stale(current=head.position)
        if commit.state is None and head.version - self._base.version >= self._limits.log_records:
            return SnapshotDue()
        return None

    def apply(self, commit: Commit, now_ms: int) -> None:
        """Apply an operation that nothing speaks against."""
        self._head = replace(
            self._head,
            position=commit.position,
            info=commit.info,
            expires_at_ms=now_ms + commit.ttl_ms,
            ttl_ms=commit.ttl_ms,
        )
        if isinstance(commit.state, bytes):
            self._base = Base(version=commit.position.version, state=commit.state)
        elif commit.state is not None:
            self._move_base(commit.position.version, commit.state)
        self._remember(commit, now_ms)
        self._write(commit)

    def keep(self, position: Position, snapshot: SnapshotRef) -> None:
        """Make the snapshot of a position that `can_keep` the base."""
        self._move_base(position.version, snapshot)
        self._trim()

    def has_kept(self, position: Position, snapshot: SnapshotRef) -> bool:
        """Say whether exactly this is the base already."""
        return self._base.version == position.version and self._base.state == snapshot

    def can_keep(self, position: Position) -> bool:
        """Say whether a position lies after the base in this history."""
        if position.version <= self._base.version:
            return False
        if position.version == self._head.version:
            return position == self._head.position
        return any(
            entry.record.version == position.version and entry.chain == position.chain for entry in self._log
        )

    def _bases(self) -> Iterator[Base]:
        base: Base | None = self._base
        while base is not None:
            yield base
            base = base.previous

    def _move_base(self, version: int, snapshot: SnapshotRef) -> None:
        previous = replace(self._base, previous=None)
        self._base = Base(version=version, state=snapshot, previous=previous)

    def _write(self, commit: Commit) -> None:
        record = LogRecord(
            version=commit.position.version,
            operation_id=commit.operation_id,
            record=_compact(commit.record),
        )
        self._log.append(_Entry(record, commit.position.chain))
        self._log_bytes += len(commit.record)
        self._trim()

    def _trim(self) -> None:
        *_, oldest = self._bases()
        while self._log and self._log[0].record.version <= oldest.version:
            if len(self._log) <= self._limits.log_records and self._log_bytes <= self._limits.log_bytes:
                return
            self._log_bytes -= len(self._log.popleft().record.record)

    def _remember(self, commit: Commit, now_ms: int) -> None:
        version = commit.position.version
        self._operations.pop(commit.operation_id, None)  # one that came back after its time is the newest
        self._operations[commit.operation_id] = _Operation(
            version=version, at_ms=now_ms, body_hash=commit.body_hash, summary=_compact(commit.summary)
        )
        oldest = next(iter(self._operations))
        if self._operations[oldest].version <= version - self._limits.operations:
            del self._operations[oldest]
        if len(commit.answer) <= self._limits.answer_bytes:
            self._answers[version] = _compact(commit.answer)
        self._answers.pop(version - self._limits.answers, None)
