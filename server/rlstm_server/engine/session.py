"""How a session is read, and changed in its turn.

A change, step by step: the copy at hand is taken without asking the store (the commit verifies it), the
change is computed on a staged state, and committed, whole, with its operation id. Committed: the staged state
becomes the copy. Replayed: the stored answer is given, the staged state dropped. Stale: the session is loaded
and the work done again. A client that leaves cancels the work, but never a commit that is on its way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from rlstm_server.engine.description import SessionCopy, describe, session_facts
from rlstm_server.engine.queue import SessionQueues, Task
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.state import SessionState, States
from rlstm_server.engine.transaction import Change, Changed, Sealed, Staged, commit_until_known, sealed
from rlstm_server.engine.worker import Job, Worker
from rlstm_server.errors import (
    Conflict,
    Gone,
    IdempotencyMismatch,
    NotFound,
    ServerError,
    StateCorrupt,
    StoreUnavailable,
    VersionMismatch,
)
from rlstm_server.schemas import Timings
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Head,
    Mismatch,
    Moved,
    Replayed,
    SessionKey,
    SessionStore,
    Stale,
)

REDOS: Final = 3

FAULTS: Final = {"checksum": "checksum", "nonfinite": "not finite", "missing": "no state"}
"""What is wrong with a state that cannot be used, by words of the message; anything else is its schema."""

Answer = TypeVar("Answer")


class _Tried(NamedTuple, Generic[Answer]):
    """A change that was computed, and what the store said to its commit."""

    copy: SessionCopy
    staged: Staged[Answer]
    commit: Commit
    outcome: CommitOutcome
    timings: Timings


@dataclass(eq=False, kw_only=True)
class Sessions(SessionQueues):
    """All sessions, as this replica sees them: queues, copies, and the way to and from the store."""

    store: SessionStore
    states: States
    worker: Worker
    _loads: "WeakValueDictionary[SessionKey, asyncio.Lock]" = field(default_factory=WeakValueDictionary)

    # ---- reading ------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, caller: Caller, min_version: int | None = None) -> SessionCopy:
        """The newest state, as the store says. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        copy = await self._load(key, caller, self.cache.get(key))
        if min_version is not None and copy.position.version < min_version:
            raise VersionMismatch(min_version, copy.position.version)
        return copy

    async def open(self, key: SessionKey, version: int, value: bytes, caller: Caller) -> SessionState:
        """The state in stored bytes. Raises StateCorrupt, ModelMismatch."""
        try:
            return await self.worker.call(caller, self.states.open, key, version, value)
        except ServerError as error:
            self._count_failure(error)
            raise

    async def seal(self, key: SessionKey, state: SessionState) -> bytes:
        """The state of a new session as it will be stored. Raises StateCorrupt, TooLarge."""
        caller = Caller(tenant=key.tenant, request_id="")  # so that it has the tenant's share of the device
        return await self.worker.call(caller, self.states.seal, key, 0, state)

    @contextmanager
    def distrusting(self, key: SessionKey) -> Iterator[None]:
        """Drop the copy at hand when it turns out to be corrupt: the store's may be whole."""
        try:
            yield
        except StateCorrupt:
            self.metrics.restore_failures.labels("nonfinite").inc()
            self.cache.drop(key)
            raise

    async def _load(self, key: SessionKey, caller: Caller, known: SessionCopy | None) -> SessionCopy:
        """The newest version: `known` where that is it, else a copy that is made, and cached.

        One load of a session serves all who wait for it.
        """
        began = time.perf_counter()
        head = await self._head(key, known)
        if head.state is None and known is not None:
            return known
        async with self._loads.setdefault(key, asyncio.Lock()):
            made = self.cache.get(key)
            if made is not None and made.position == head.position:
                return made
            if not head.state:
                raise StateCorrupt("the session has no state in the store")
            state = await self.open(key, head.version, head.state, caller)
            copy = SessionCopy(key=key, position=head.position, state=state, facts=session_facts(head))
            self.cache.put(copy)
        self.metrics.load_seconds.observe(time.perf_counter() - began)
        return copy

    async def _head(self, key: SessionKey, known: SessionCopy | None) -> Head:
        try:
            return await self.store.load_head(key, known=None if known is None else known.position)
        except (Gone, NotFound):
            self.cache.drop(key)
            raise

    def _count_failure(self, error: ServerError) -> None:
        if isinstance(error, StateCorrupt):
            reason = next((name for name, words in FAULTS.items() if words in error.detail), "schema")
            self.metrics.restore_failures.labels(reason).inc()
        elif error.code == "model_mismatch":
            self.metrics.restore_failures.labels("model_mismatch").inc()

    # ---- changing -----------------------------------------------------------------------------------------

    async def change(
        self,
        task: Task[Any],
        change: Change,
        compute: Callable[[SessionCopy], Awaitable[Job[Staged[Answer]]]],
    ) -> Changed[Answer]:
        """Compute a change on a staged state and commit it; the caller holds the session's turn.

        Raises Conflict when other replicas were faster each time, VersionMismatch, IdempotencyMismatch,
        NotFound, Gone, and whatever `compute` raises.
        """
        for _ in range(1 + REDOS if change.redo else 1):
            task.check()
            try:
                tried = await self._try(task, change, compute)
            except ServerError as error:
                if error.applied != "no" or isinstance(error, StoreUnavailable):
                    raise
                return await self._recalled(task, change, error)
            if not isinstance(tried.outcome, Stale):
                return self._settle(task, tried, tried.outcome)
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
        task: Task[Any],
        change: Change,
        compute: Callable[[SessionCopy], Awaitable[Job[Staged[Answer]]]],
    ) -> "_Tried[Answer]":
        copy = self.cache.get(change.key) or await self._load(change.key, change.caller, None)
        job = partial(sealed, self.states, copy, await compute(copy))
        with self.distrusting(change.key):
            ran = await self.worker.run(job, change.caller, copy.state.adapted.expert_config.rows)
        commit = self._commit_of(change, copy, ran.result)
        began = time.perf_counter()
        outcome = await task.commit(commit_until_known(commit, self.store, self.cache))
        timings = Timings(
            queue=ran.queue_seconds, compute=ran.compute_seconds, store=time.perf_counter() - began
        )
        return _Tried(copy, ran.result.staged, commit, outcome, timings)

    def _commit_of(self, change: Change, copy: SessionCopy, result: Sealed[Any]) -> Commit:
        staged = result.staged
        return Commit(
            key=change.key,
            operation_id=change.operation_id,
            body_hash=change.body_hash,
            if_match=change.if_match,
            expects=copy.position,
            info=describe(staged.state, staged.facts),
            state=result.state,
            ttl_ms=staged.facts.ttl_ms,
            summary=staged.stored.summary,
            details=staged.stored.details,
        )

    def _settle(
        self,
        task: Task[Any],
        tried: "_Tried[Answer]",
        outcome: Committed | Replayed | Mismatch | Moved,
    ) -> Changed[Answer]:
        copy, staged, commit, _, timings = tried
        match outcome:
            case Committed():
                task.took_effect = True
                fresh = SessionCopy(
                    key=commit.key, position=outcome.position, state=staged.state, facts=staged.facts
                )
                self._count_commit(staged, timings)
                self.cache.put(fresh)
                return Changed(staged, None, fresh, outcome.expires_at_ms, timings)
            case Replayed() | Mismatch():
                return self._repeated(task, self._known(copy.key, outcome), timings)
            case Moved():
                if copy.position.version != outcome.current:
                    self.cache.drop(commit.key)
                raise VersionMismatch(commit.if_match or 0, outcome.current)

    async def _recalled(self, task: Task[Any], change: Change, error: ServerError) -> Changed[Any]:
        """What a change came to that cannot be made any more; `error` if it never was."""
        began = time.perf_counter()
        known = await self.recall(change)
        if known is None:
            error.settled = True
            raise error
        return self._repeated(task, known, Timings(store=time.perf_counter() - began))

    def _known(self, key: SessionKey, outcome: Replayed | Mismatch) -> Replayed:
        if isinstance(outcome, Mismatch):
            self.metrics.replays.labels("body_mismatch").inc()
            raise IdempotencyMismatch("the idempotency key was used with another request")
        copy = self.cache.get(key)
        if copy is not None and copy.position != outcome.current:
            self.cache.drop(key)
        return outcome

    def _repeated(self, task: Task[Any], known: Replayed, timings: Timings) -> Changed[Any]:
        task.took_effect = True
        self.metrics.replays.labels("replayed").inc()
        return Changed(None, known, None, None, timings)

    def _count_commit(self, staged: Staged[Any], timings: Timings) -> None:
        staged.usage.count(self.metrics)
        self.metrics.commit_seconds.observe(timings.store)
        self.metrics.state_bytes.observe(staged.state.nbytes)
        adapted = staged.state.adapted
        if adapted.expert_config.experts > 1:
            self.metrics.static_weight.observe(adapted.weights[0])

    # ---- ending -------------------------------------------------------------------------------------------

    async def delete(self, key: SessionKey) -> None:
        """End a session for good; again and again while its tombstone lives. Raises NotFound, Gone.

        Once the store has ended it nobody commits to it any more, so what waits in its queue is told so. One
        that cannot be read, of another version's form too, can be ended.
        """
        live = True
        try:
            await self.store.load_head(key, with_state=False)
        except Gone:
            live = False
        except StateCorrupt:
            pass
        try:
            await self.store.delete(key)
        except Gone as error:
            self.end(key, partial(Gone, error.reason))
            raise
        except NotFound:
            self.end(key, NotFound)
            raise
        self.end(key, partial(Gone, "deleted"))
        if live:
            self.metrics.sessions_ended.labels("closed").inc()
