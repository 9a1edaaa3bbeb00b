"""How a session is read, and changed in its turn.

A changing operation, step by step: the copy at hand is taken unasked (the commit verifies it), the change is
computed on a staged state, and committed with its operation id. Committed: the staged state becomes the copy.
Replayed: the stored answer is given, the staged state dropped. Stale: the session is loaded and the work done
again. A reader who goes away cancels the work, but never a commit that is on its way.

A commit brings a small state along. A large one it leaves to the log, with what it takes to do the operation
again and the digest that must come of it; now and then a snapshot makes the log short again.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rlstm_server.engine.actors import Actors
from rlstm_server.engine.committing import Committer
from rlstm_server.engine.description import SessionCopy, describe
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.snapshot_policy import Lead
from rlstm_server.engine.snapshotter import Snapshotter
from rlstm_server.engine.staged import Change, Changed, Staged, Written, computed
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import (
    Conflict,
    IdempotencyMismatch,
    ServerError,
    StateCorrupt,
    StoreUnavailable,
    VersionMoved,
)
from rlstm_server.schemas import Timings
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Mismatch,
    Moved,
    Replayed,
    SessionKey,
    SnapshotDue,
    SnapshotRef,
    Stale,
)

REDOS: Final = 3

Answer = TypeVar("Answer")


class _Tried(NamedTuple, Generic[Answer]):
    """A change that was computed, and what the store said to its commit."""

    copy: SessionCopy
    staged: Staged[Answer]
    commit: Commit
    outcome: CommitOutcome
    timings: Timings


@dataclass(eq=False, kw_only=True)
class Sessions(Actors):
    """All sessions, as this replica sees them: actors, copies, and the way to and from the store."""

    store: MeteredStore
    loader: Loader
    runner: Runner

    def __post_init__(self) -> None:
        self.committer = Committer(self.store, self.cache)
        self.snapshotter = Snapshotter(self.loader, self.store, self.cache, self.metrics)

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
        """Put a copy's state beside its session, as one of its own. Raises StoreFull."""
        return await self.loader.save(copy.key, copy.position.version, copy.state, brought=True)

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

    def end(self, key: SessionKey, refuse: Callable[[], ServerError]) -> None:
        """Stop all operations of a session that has ended, and its snapshot; keep no copy."""
        self.snapshotter.stop(key)
        super().end(key, refuse)

    async def drain(self, seconds: float) -> None:
        """Begin no more snapshots, and let operations finish for so long."""
        await self.snapshotter.close()
        await super().drain(seconds)

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
            try:
                tried = await self._try(operation, change, compute)
            except ServerError as error:
                if error.applied != "no" or isinstance(error, StoreUnavailable):
                    raise
                return await self._recalled(operation, change, error)
            if not isinstance(tried.outcome, Stale):
                return self._settle(operation, tried, tried.outcome)
            self.cache.drop(change.key)
            self.metrics.conflicts.labels("redone").inc()
        self.metrics.conflicts.labels("refused").inc()
        lost = Conflict("other servers changed the session at the same time", retry_after=1)
        lost.settled = True
        raise lost

    async def recall(self, change: Change) -> Replayed | None:
        """What the store remembers of a change; None when it knows of none. Raises IdempotencyMismatch."""
        outcome = await self.store.recall(change.key, change.operation_id, change.body_hash)
        return None if outcome is None else self._known(change.key, outcome)

    async def _try(
        self,
        operation: Operation[Any],
        change: Change,
        compute: Callable[[SessionCopy], Awaitable[Steps[Any, Staged[Answer]]]],
    ) -> "_Tried[Answer]":
        copy = self.cache.get(change.key) or await self._load(change.key, change.caller, None)
        steps = computed(self.loader.snapshots, copy, await compute(copy))
        with self.distrusting(change.key):
            ran = await self.runner.run(steps, change.caller, copy.state.adapted.expert_config.rows)
        began = time.perf_counter()
        commit = await self._commit_of(change, copy, ran.result)
        outcome = await operation.commit(self.committer.commit(commit))
        if isinstance(outcome, SnapshotDue):
            operation.check()
            commit = replace(commit, state=await self._put(copy, ran.result.staged))
            outcome = await operation.commit(self.committer.commit(commit))
        timings = Timings(queue=ran.queue, compute=ran.compute, store=time.perf_counter() - began)
        return _Tried(copy, ran.result.staged, commit, outcome, timings)

    async def _recalled(self, operation: Operation[Any], change: Change, error: ServerError) -> Changed[Any]:
        """What a change came to that cannot be made any more; `error` if it never was."""
        began = time.perf_counter()
        known = await self.recall(change)
        if known is None:
            error.settled = True
            raise error
        return self._repeated(operation, known, Timings(store=time.perf_counter() - began))

    def _known(self, key: SessionKey, outcome: Replayed | Mismatch) -> Replayed:
        if isinstance(outcome, Mismatch):
            self.metrics.replays.labels("body_mismatch").inc()
            raise IdempotencyMismatch("the idempotency key was used with another request")
        copy = self.cache.get(key)
        if copy is not None and copy.position != outcome.current:
            self.cache.drop(key)
        return outcome

    def _repeated(self, operation: Operation[Any], known: Replayed, timings: Timings) -> Changed[Any]:
        operation.took_effect = True
        self.metrics.replays.labels("replayed").inc()
        return Changed(None, known, None, None, timings)

    async def _commit_of(self, change: Change, copy: SessionCopy, written: Written[Any]) -> Commit:
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
            info=describe(staged.state, staged.facts, staged.state.stored_bytes),
            state=state,
            ttl_ms=staged.facts.ttl_ms,
            answer=staged.stored_answer,
            summary=staged.summary,
        )

    async def _put(self, copy: SessionCopy, staged: Staged[Any]) -> SnapshotRef:
        return await self.loader.save(copy.key, copy.position.version + 1, staged.state)

    def _settle(
        self,
        operation: Operation[Any],
        tried: "_Tried[Answer]",
        outcome: Committed | Replayed | Mismatch | Moved | SnapshotDue,
    ) -> Changed[Answer]:
        copy, staged, commit, _, timings = tried
        match outcome:
            case Committed():
                operation.took_effect = True
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
            case Replayed() | Mismatch():
                return self._repeated(operation, self._known(copy.key, outcome), timings)
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
        self.metrics.state_bytes.observe(staged.state.stored_bytes)
        adapted = staged.state.adapted
        if adapted.expert_config.experts > 1:
            self.metrics.static_weight.observe(adapted.weights[0])
