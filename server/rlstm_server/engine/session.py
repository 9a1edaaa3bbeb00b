"""One actor a session: a queue of its operations, each on a task of its own, outside the request's.

A changing operation, step by step: the copy at hand is taken unasked (the commit verifies it), the change is
computed on a staged state, and committed with its operation id. Committed: the staged state becomes the copy.
Replayed: the stored answer is given, the staged state dropped. Stale: the session is loaded and the work done
again. A reader who goes away cancels the work, but never a commit that is on its way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.learning import Tally
from rlstm_server.engine.messages import Caller, Timings
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.snapshot import (
    SessionCopy,
    SessionFacts,
    SessionState,
    Snapshots,
    describe,
    session_facts,
)
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
    StoreUnavailable,
    VersionMoved,
)
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Head,
    Mismatch,
    Moved,
    Position,
    Replayed,
    SessionKey,
    Stale,
)

REDOS: Final = 3
COMMIT_TRIES: Final = 3
COMMIT_SECONDS: Final = 3.0
FAULTS: Final = {"checksum": "checksum", "nonfinite": "not finite"}
"""What is wrong with a state that cannot be used, by a word of the message; anything else is its schema."""

Result = TypeVar("Result")
Answer = TypeVar("Answer")


class Staged(NamedTuple, Generic[Answer]):
    """A change that is computed and not yet committed."""

    state: SessionState
    sealed: bytes
    record: bytes
    answer: Answer
    stored_answer: bytes
    summary: bytes
    tally: Tally


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
    operation_ids: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Sessions:
    """All sessions, as this replica sees them: actors, copies, and the way to and from the store."""

    store: MeteredStore
    cache: SessionCache
    snapshots: Snapshots
    runner: Runner
    metrics: Metrics
    queued_operations: int
    _actors: dict[SessionKey, _Actor] = field(default_factory=dict)
    _operations: set[Operation[Any]] = field(default_factory=set)

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
        if operation_id in actor.operation_ids:
            self.metrics.replays.labels("in_flight").inc()
            raise InFlight("an operation with this key is being worked on", retry_after=1)
        if len(actor.operation_ids) >= self.queued_operations:
            raise Overloaded(
                f"{self.queued_operations} operations of this session wait already", retry_after=1
            )
        actor.operation_ids.add(operation_id)

        async def in_turn(operation: Operation[Result]) -> Result:
            async with actor.turn:
                return await work(operation)

        operation = self.start(in_turn)
        operation.task.add_done_callback(lambda _: self._leave(key, actor, operation_id))
        return operation

    def _leave(self, key: SessionKey, actor: _Actor, operation_id: str) -> None:
        actor.operation_ids.discard(operation_id)
        if not actor.operation_ids and self._actors.get(key) is actor:
            del self._actors[key]

    async def drain(self, seconds: float) -> None:
        """Let operations finish for so long; stop the others, but for commits on their way."""
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
        queued = sum(len(actor.operation_ids) for actor in self._actors.values())
        if queued > len(self._operations):
            raise ValueError(f"{queued} operations are queued, {len(self._operations)} exist")
        if any(not actor.operation_ids for actor in self._actors.values()):
            raise ValueError("an actor without operations was left behind")

    # ---- reading ------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, caller: Caller, min_version: int | None = None) -> SessionCopy:
        """The newest state, as the store says. Raises NotFound, Gone, VersionMoved below `min_version`."""
        copy = await self._load(key, caller, self.cache.get(key))
        if min_version is not None and copy.position.version < min_version:
            raise VersionMoved(min_version, copy.position.version)
        return copy

    async def _load(self, key: SessionKey, caller: Caller, known: SessionCopy | None) -> SessionCopy:
        began = time.perf_counter()
        try:
            head = await self.store.load_head(key, known=None if known is None else known.position)
        except (Gone, NotFound):
            self.cache.drop(key)
            raise
        if head.state is None and known is not None:
            return known
        copy = await self._restore(key, head, caller)
        self.cache.put(copy)
        self.metrics.load_seconds.observe(time.perf_counter() - began)
        return copy

    async def _restore(self, key: SessionKey, head: Head, caller: Caller) -> SessionCopy:
        if head.state is None:
            raise StateCorrupt("the session has no state in the store")
        try:
            state = await self.runner.run(_opened(self.snapshots, key, head.version, head.state), caller)
        except ServerError as error:
            self._count_restore_failure(error)
            raise
        return SessionCopy(key=key, position=head.position, state=state.result, facts=session_facts(head))

    def _count_restore_failure(self, error: ServerError) -> None:
        if isinstance(error, StateCorrupt):
            reason = next((name for name, word in FAULTS.items() if word in error.detail), "schema")
            self.metrics.restore_failures.labels(reason).inc()
        elif error.code == "model_mismatch":
            self.metrics.restore_failures.labels("model_mismatch").inc()

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
            steps = await compute(copy)
            with self.distrusting(change.key):
                ran = await self.runner.run(steps, change.caller, copy.state.adapted.lineup.rows)
            began = time.perf_counter()
            commit = _commit_of(change, copy, ran.result)
            outcome = await operation.commit(self._commit(commit))
            store_seconds = time.perf_counter() - began
            timings = Timings(queue=ran.queue, compute=ran.compute, store=store_seconds)
            if isinstance(outcome, Stale):
                self.cache.drop(change.key)
                self.metrics.conflicts.labels("redone").inc()
                continue
            return self._settle(change, copy, ran.result, outcome, timings)
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
            except StoreUnavailable as error:
                if unknown is None:
                    raise
                unknown.__cause__ = error
            except (Gone, NotFound):
                self.cache.drop(commit.key)
                raise
            else:
                return _own(commit, outcome) if unknown is not None else outcome
            if time.monotonic() >= deadline:
                break
        self.cache.drop(commit.key)
        raise unknown or OutcomeUnknown("the store did not say whether the change took effect")

    def _settle(
        self,
        change: Change,
        copy: SessionCopy,
        staged: Staged[Answer],
        outcome: Committed | Replayed | Mismatch | Moved,
        timings: Timings,
    ) -> Changed[Answer]:
        match outcome:
            case Committed():
                fresh = SessionCopy(
                    key=change.key, position=outcome.position, state=staged.state, facts=copy.facts
                )
                self._count_commit(staged, timings)
                self.cache.put(fresh)
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
                    self.cache.drop(change.key)
                raise VersionMoved(change.if_match or 0, outcome.current)

    def _count_commit(self, staged: Staged[Any], timings: Timings) -> None:
        staged.tally.count(self.metrics)
        self.metrics.commit_seconds.observe(timings.store)
        self.metrics.state_bytes.observe(len(staged.sealed))
        adapted = staged.state.adapted
        if adapted.lineup.experts > 1:
            self.metrics.static_weight.observe(adapted.weights[0])

    def _forget_unless_at(self, copy: SessionCopy, current: Position) -> None:
        if copy.position != current:
            self.cache.drop(copy.key)


def _opened(snapshots: Snapshots, key: SessionKey, version: int, value: bytes) -> Steps[Any, SessionState]:
    """Open a stored state on the device thread."""
    yield from ()
    return snapshots.open(key, version, value)


def _commit_of(change: Change, copy: SessionCopy, staged: Staged[Any]) -> Commit:
    facts: SessionFacts = copy.facts
    return Commit(
        key=change.key,
        operation_id=change.operation_id,
        body_hash=change.body_hash,
        if_match=change.if_match,
        expects=copy.position,
        record=staged.record,
        info=describe(staged.state, facts, len(staged.sealed)),
        state=staged.sealed,
        ttl_ms=facts.ttl_ms,
        answer=staged.stored_answer,
        summary=staged.summary,
    )


def _own(commit: Commit, outcome: CommitOutcome) -> CommitOutcome:
    """After a commit of unknown outcome, a replay of exactly its position is that commit."""
    if isinstance(outcome, Replayed) and outcome.current == commit.position:
        return Committed(position=commit.position, expires_at_ms=int(time.time() * 1000) + commit.ttl_ms)
    return outcome
