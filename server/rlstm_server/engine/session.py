"""One actor a session: a queue of its operations, each on a task of its own, outside the request's.

A changing operation, step by step: the copy at hand is taken unasked (the commit verifies it), the change is
computed on a staged state, and committed with its operation id. Committed: the staged state becomes the copy.
Replayed: the stored answer is given, the staged state dropped. Stale: the session is loaded and the work done
again. A reader who goes away cancels the work, but never a commit that is on its way.

A commit brings a small state along. A large one it leaves to the log, with what it takes to do the operation
again and the digest that must come of it; now and then a snapshot makes the log short again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy, SessionFacts, describe
from rlstm_server.engine.learning import Tally
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.messages import Caller, Timings
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.record import write_record
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.snapshot import SessionState, Snapshots, digest, is_inline, stored_bytes
from rlstm_server.engine.snapshot_policy import Lead
from rlstm_server.engine.snapshotter import Snapshotter
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import (
    Conflict,
    Draining,
    Gone,
    IdempotencyMismatch,
    InFlight,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ServerError,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
    VersionMoved,
)
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Mismatch,
    Moved,
    Position,
    Replayed,
    SessionKey,
    SnapshotDue,
    SnapshotRef,
    Stale,
)

REDOS: Final = 3
COMMIT_TRIES: Final = 3
COMMIT_SECONDS: Final = 3.0
Result = TypeVar("Result")
Answer = TypeVar("Answer")


class Staged(NamedTuple, Generic[Answer]):
    """A change that is computed and not yet committed.

    record  what was done (:mod:`rlstm_server.engine.record`)
    whole   the record alone does not lead to the state: the commit brings it, however large it is
    """

    state: SessionState
    record: Mapping[str, Any]
    answer: Answer
    stored_answer: bytes
    summary: bytes
    tally: Tally
    facts: SessionFacts
    whole: bool = False


class _Written(NamedTuple, Generic[Answer]):
    """A staged change as a commit has it: its record, and the sealed state where that is small."""

    staged: Staged[Answer]
    record: bytes
    sealed: bytes | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that was asked for. `redo` allows doing the work again when another replica was faster."""

    key: SessionKey
    operation_id: str
    body_hash: bytes
    caller: Caller
    if_match: int | None = None
    redo: bool = True


class Changed(NamedTuple, Generic[Answer]):
    """A change that took effect: now (`staged`), or earlier (`replay`)."""

    staged: Staged[Answer] | None
    replay: Replayed | None
    copy: SessionCopy | None
    expires_at_ms: int | None
    timings: Timings

    @property
    def version(self) -> int:
        """The version that the change made."""
        if self.replay is not None:
            return self.replay.version
        if self.copy is None:
            raise ValueError("a change is either staged or a replay")
        return self.copy.position.version


@dataclass(eq=False)
class _Actor:
    """The operations of one session: one has its turn, the others wait in the order they came."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    operations: dict[str, Operation[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class Sessions:
    """All sessions, as this replica sees them: actors, copies, and the way to and from the store."""

    store: MeteredStore
    cache: SessionCache
    loader: Loader
    runner: Runner
    metrics: Metrics
    queued_operations: int
    draining: bool = False
    _actors: dict[SessionKey, _Actor] = field(default_factory=dict)
    _operations: set[Operation[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.snapshotter = Snapshotter(self.loader, self.store, self.cache, self.metrics)

    # ---- operations ---------------------------------------------------------------------------------------

    def start(self, work: Callable[[Operation[Result]], Awaitable[Result]]) -> Operation[Result]:
        """Start work that belongs to no session yet."""
        operation = Operation(work)
        self._operations.add(operation)
        operation.task.add_done_callback(lambda _: self._operations.discard(operation))
        return operation

    def enqueue(
        self, key: SessionKey, operation_id: str, work: Callable[[Operation[Result]], Awaitable[Result]]
    ) -> Operation[Result]:
        """Put work into the session's queue. Raises InFlight for an operation that is in it, Overloaded."""
        actor = self._actors.setdefault(key, _Actor())
        if operation_id in actor.operations:
            self.metrics.replays.labels("in_flight").inc()
            raise InFlight("an operation with this key is being worked on", retry_after=1)
        if len(actor.operations) >= self.queued_operations:
            raise Overloaded(
                f"{self.queued_operations} operations of this session wait already", retry_after=1
            )

        async def in_turn(operation: Operation[Result]) -> Result:
            async with actor.turn:
                return await work(operation)

        operation = actor.operations[operation_id] = self.start(in_turn)
        operation.task.add_done_callback(lambda _: self._leave(key, actor, operation_id))
        return operation

    def _leave(self, key: SessionKey, actor: _Actor, operation_id: str) -> None:
        actor.operations.pop(operation_id, None)
        if not actor.operations and self._actors.get(key) is actor:
            del self._actors[key]

    def end(self, key: SessionKey, refusal: ServerError) -> None:
        """Stop all operations of a session that has ended, but for a commit on its way; keep no copy of it."""
        self.cache.drop(key)
        actor = self._actors.get(key)
        for operation in [] if actor is None else list(actor.operations.values()):
            operation.abandon(refusal)
            # A commit from just before the end makes a copy once more.
            operation.task.add_done_callback(lambda _: self.cache.drop(key))

    async def drain(self, seconds: float) -> None:
        """Let operations finish for so long; stop the others, but for commits on their way."""
        self.draining = True
        await self.snapshotter.close()
        tasks = [operation.task for operation in self._operations]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for operation in list(self._operations):
            operation.abandon(Draining("the server is shutting down"))
        rest = [operation.task for operation in self._operations]
        if rest:
            await asyncio.wait(rest, timeout=COMMIT_SECONDS)

    def check(self) -> None:
        """Raise ValueError unless actors and operations belong together and the cache's books balance."""
        self.cache.check()
        queued = sum(len(actor.operations) for actor in self._actors.values())
        if queued > len(self._operations):
            raise ValueError(f"{queued} operations are queued, {len(self._operations)} exist")
        if any(not actor.operations for actor in self._actors.values()):
            raise ValueError("an actor without operations was left behind")

    # ---- reading ------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, caller: Caller, min_version: int | None = None) -> SessionCopy:
        """The newest state, as the store says. Raises NotFound, Gone, VersionMoved below `min_version`."""
        copy = await self._load(key, caller, self.cache.get(key))
        if min_version is not None and copy.position.version < min_version:
            raise VersionMoved(min_version, copy.position.version)
        return copy

    async def _load(self, key: SessionKey, caller: Caller, known: SessionCopy | None) -> SessionCopy:
        copy = await self.loader.load(key, caller, known)
        self.snapshotter.consider(copy)
        return copy

    async def open_snapshot(
        self, key: SessionKey, snapshot: SnapshotRef, version: int, caller: Caller
    ) -> SessionState:
        """The state that was put for `key` at `version`. Raises StateCorrupt, ModelMismatch."""
        return await self.loader.open_snapshot(key, snapshot, version, caller)

    async def save(self, copy: SessionCopy) -> SnapshotRef:
        """Put a copy's state beside its session, to be pointed to. Raises StoreFull."""
        return await self.loader.save(copy.key, copy.position.version, copy.state)

    async def creation_state(self, key: SessionKey, state: SessionState) -> bytes | SnapshotRef:
        """What a session is created with: its state, the origin of a large one that is new, or its place."""
        return await self.loader.creation_state(key, state)

    @contextmanager
    def distrusting(self, key: SessionKey) -> Iterator[None]:
        """Drop the copy at hand when it turns out to be corrupt: the store's may be whole."""
        try:
            yield
        except StateCorrupt:
            self.metrics.restore_failures.labels("nonfinite").inc()
            self.cache.drop(key)
            raise

    # ---- changing -----------------------------------------------------------------------------------------

    async def change(
        self,
        operation: Operation[Any],
        change: Change,
        compute: Callable[[SessionCopy], Awaitable[Steps[Any, Staged[Answer]]]],
    ) -> Changed[Answer]:
        """Compute a change on a staged state and commit it; the caller holds the session's turn.

        Raises Conflict when other replicas were faster each time, VersionMoved, IdempotencyMismatch,
        NotFound, Gone, and whatever `compute` raises.
        """
        for _ in range(1 + REDOS if change.redo else 1):
            operation.check()
            copy = self.cache.get(change.key) or await self._load(change.key, change.caller, None)
            steps = _written(self.loader.snapshots, copy, await compute(copy))
            with self.distrusting(change.key):
                ran = await self.runner.run(steps, change.caller, copy.state.adapted.lineup.rows)
            began = time.perf_counter()
            commit = await self._commit_of(change, copy, ran.result)
            outcome = await operation.commit(self._commit(commit))
            if isinstance(outcome, SnapshotDue):
                commit = replace(commit, state=await self._put(copy, ran.result.staged))
                outcome = await operation.commit(self._commit(commit))
            store_seconds = time.perf_counter() - began
            timings = Timings(queue=ran.queue, compute=ran.compute, store=store_seconds)
            if isinstance(outcome, Stale):
                self.cache.drop(change.key)
                self.metrics.conflicts.labels("redone").inc()
                continue
            return self._settle(commit, copy, ran.result.staged, outcome, timings)
        self.metrics.conflicts.labels("refused").inc()
        raise Conflict("other servers changed the session at the same time", retry_after=1)

    async def _commit(self, commit: Commit) -> CommitOutcome:
        """Commit; where the store leaves open whether that happened, ask again with the same operation id."""
        deadline = time.monotonic() + COMMIT_SECONDS
        unknown: OutcomeUnknown | None = None
        for _ in range(COMMIT_TRIES):
            try:
                outcome = await self.store.commit(commit)
            except OutcomeUnknown as error:
                unknown = error
            except (Gone, NotFound) as error:
                self.cache.drop(commit.key)
                error.applied = "no" if unknown is None else "unknown"
                raise
            except (StoreUnavailable, StoreFull) as error:
                if unknown is None:
                    raise
                unknown.__cause__ = error  # this try changed nothing, but the one before may have
            else:
                return await self._own(commit, outcome) if unknown is not None else outcome
            if time.monotonic() >= deadline:
                break
        self.cache.drop(commit.key)
        raise unknown or OutcomeUnknown("the store did not say whether the change took effect")

    async def _own(self, commit: Commit, outcome: CommitOutcome) -> CommitOutcome:
        """After a commit of unknown outcome, a replay of exactly its position is that commit."""
        if not isinstance(outcome, Replayed) or outcome.current != commit.position:
            return outcome
        try:
            expires_at_ms = (await self.store.load_head(commit.key, with_state=False)).expires_at_ms
        except ServerError:
            expires_at_ms = int(time.time() * 1000) + commit.ttl_ms  # our clock is all that is left
        return Committed(position=commit.position, expires_at_ms=expires_at_ms)

    async def _commit_of(self, change: Change, copy: SessionCopy, written: _Written[Any]) -> Commit:
        staged = written.staged
        state: bytes | SnapshotRef | None = written.sealed
        if state is None and staged.whole:
            state = await self._put(copy, staged)
        return Commit(
            key=change.key,
            operation_id=change.operation_id,
            body_hash=change.body_hash,
            if_match=change.if_match,
            expects=copy.position,
            record=written.record,
            info=describe(staged.state, staged.facts, stored_bytes(staged.state)),
            state=state,
            ttl_ms=staged.facts.ttl_ms,
            answer=staged.stored_answer,
            summary=staged.summary,
        )

    async def _put(self, copy: SessionCopy, staged: Staged[Any]) -> SnapshotRef:
        return await self.loader.save(copy.key, copy.position.version + 1, staged.state)

    def _settle(
        self,
        commit: Commit,
        copy: SessionCopy,
        staged: Staged[Answer],
        outcome: Committed | Replayed | Mismatch | Moved | SnapshotDue,
        timings: Timings,
    ) -> Changed[Answer]:
        match outcome:
            case Committed():
                fresh = SessionCopy(
                    key=commit.key,
                    position=outcome.position,
                    state=staged.state,
                    facts=staged.facts,
                    lead=self._lead(commit, copy, staged, timings.compute),
                )
                self._count_commit(staged, timings)
                self.cache.put(fresh)
                self.snapshotter.consider(fresh)
                return Changed(staged, None, fresh, outcome.expires_at_ms, timings)
            case Replayed():
                self.metrics.replays.labels("replayed").inc()
                self._forget_unless_at(copy, outcome.current)
                return Changed(None, outcome, None, None, timings)
            case Mismatch():
                self.metrics.replays.labels("body_mismatch").inc()
                raise IdempotencyMismatch("the idempotency key was used with another request")
            case Moved():
                if copy.position.version != outcome.current:
                    self.cache.drop(commit.key)
                raise VersionMoved(commit.if_match or 0, outcome.current)
            case SnapshotDue():
                raise StoreUnavailable("the store keeps no more records, and took no snapshot")

    def _lead(self, commit: Commit, copy: SessionCopy, staged: Staged[Any], seconds: float) -> Lead:
        """How far the committed state is ahead of its base, which may be a newer one than the copy knows."""
        if commit.state is not None:
            return Lead(base=commit.position.version)
        known = self.cache.get(copy.key)
        lead = known.lead if known is not None and known.position == copy.position else copy.lead
        tokens = staged.state.adapted.position - copy.state.adapted.position
        return lead.plus(max(0, tokens), seconds)

    def _count_commit(self, staged: Staged[Any], timings: Timings) -> None:
        staged.tally.count(self.metrics)
        self.metrics.commit_seconds.observe(timings.store)
        self.metrics.state_bytes.observe(stored_bytes(staged.state))
        adapted = staged.state.adapted
        if adapted.lineup.experts > 1:
            self.metrics.static_weight.observe(adapted.weights[0])

    def _forget_unless_at(self, copy: SessionCopy, current: Position) -> None:
        if copy.position != current:
            self.cache.drop(copy.key)


def _written(
    snapshots: Snapshots, copy: SessionCopy, steps: Steps[Any, Staged[Answer]]
) -> Steps[Any, _Written[Answer]]:
    """Compute a change, and make of it what is committed. Raises StateCorrupt where that is not finite."""
    staged = yield from steps
    state = staged.state
    record = write_record(
        staged.record,
        state.place,
        state.totals,
        numerics=snapshots.numerics,
        state=(yield from digest(state)),
    )
    version = copy.position.version + 1
    return _Written(staged, record, snapshots.pack(copy.key, version, state) if is_inline(state) else None)
