"""How a session is read, and changed in its turn.

A change, step by step: the copy at hand is taken without asking the store (the commit verifies it), the
change is computed on a staged state, and committed, whole, with its operation id. Committed: the staged state
becomes the copy. Replayed: the stored answer is given, the staged state dropped. Stale: the session is loaded
and the work done again. A client that leaves cancels the work, but never a commit that is on its
way, which is sent again, under the same operation id, three times in all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from rlstm_server.caller import Call
from rlstm_server.engine.answers import info_of, session_facts, session_info, write_session
from rlstm_server.engine.copies import write_file
from rlstm_server.engine.queue import COMMIT_SECONDS, SessionQueues, Task
from rlstm_server.engine.reading import Reading
from rlstm_server.engine.requests import STATE_BYTES, off_loop, session_key
from rlstm_server.engine.state import SessionCache, SessionCopy, SessionState, States
from rlstm_server.engine.worker import Job, Worker
from rlstm_server.errors import (
    Conflict,
    Gone,
    IdempotencyMismatch,
    ModelMismatch,
    NotFound,
    OutcomeUnknown,
    ServerError,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
    VersionMismatch,
)
from rlstm_server.schemas.sessions import ExportedSession, NoteAnswer, SessionInfo, SessionPage
from rlstm_server.settings import Durability
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Replayed,
    SessionKey,
    SessionStore,
    Stale,
)

REDOS: Final = 3
TRIES: Final = 3

REASONS: Final = {"checksum": "checksum", "nonfinite": "not finite"}
"""What is wrong with a state that cannot be used, by words of the message; anything else is its schema."""

AnswerT = TypeVar("AnswerT")
Known = TypeVar("Known")


@dataclass(kw_only=True, eq=False)
class Staged(Generic[AnswerT]):
    """A change that is computed: the session after it, and its answer, which is stored in two parts.

    Once it is committed, `expires_at_ms` is what the store says, and the revision of the copy is its own.
    """

    copy: SessionCopy
    answer: AnswerT
    summary: bytes
    details: bytes = b""
    readings: Sequence[Reading] = ()
    expires_at_ms: int = 0


@dataclass(eq=False, kw_only=True)
class Sessions(SessionQueues):
    """All sessions, as this replica sees them: queues, copies, and the way to and from the store."""

    store: SessionStore
    durability: Durability
    states: States
    worker: Worker
    _loads: "WeakValueDictionary[SessionKey, asyncio.Lock]" = field(default_factory=WeakValueDictionary)

    # ---- reading ------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, min_version: int | None = None) -> SessionCopy:
        """The newest state, as the store says. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        copy = await self._load(key, self.cache.get(key))
        if min_version is not None and copy.revision.version < min_version:
            raise VersionMismatch(min_version, copy.revision.version)
        return copy

    async def open(self, key: SessionKey, version: int, value: bytes) -> SessionState:
        """The state in stored bytes. Raises StateCorrupt, ModelMismatch."""
        opening = partial(self.states.deserialize, key, version, value)
        try:
            return await off_loop(len(value), opening, STATE_BYTES)
        except StateCorrupt as error:
            reason = next((name for name, words in REASONS.items() if words in error.detail), "schema")
            self.metrics.restore_failures.labels(reason).inc()
            raise
        except ModelMismatch:
            self.metrics.restore_failures.labels("model_mismatch").inc()
            raise

    @contextmanager
    def distrusting(self, key: SessionKey) -> Iterator[None]:
        """Drop the copy at hand when it turns out to be corrupt: the store's may be whole."""
        try:
            yield
        except StateCorrupt:
            self.metrics.restore_failures.labels("nonfinite").inc()
            self.cache.drop(key)
            raise

    async def _load(self, key: SessionKey, known: SessionCopy | None) -> SessionCopy:
        """The newest version: `known` where that is it, else a copy that is made, and cached.

        One load of a session serves all who wait for it.
        """
        began = time.perf_counter()
        try:
            head = await self.store.load_head(key, known=None if known is None else known.revision)
        except (Gone, NotFound):
            self.cache.drop(key)
            raise
        if head.state is None and known is not None:
            return known
        async with self._loads.setdefault(key, asyncio.Lock()):
            made = self.cache.get(key)
            if made is not None and made.revision == head.revision:
                return made
            if not head.state:
                self.metrics.restore_failures.labels("missing").inc()
                raise StateCorrupt("the session has no state in the store")
            state = await self.open(key, head.version, head.state)
            copy = SessionCopy(key=key, revision=head.revision, state=state, facts=session_facts(head))
            self.cache.put(copy)
        self.metrics.load_seconds.observe(time.perf_counter() - began)
        return copy

    # ---- changing -----------------------------------------------------------------------------------------

    async def change(
        self, task: Task[Any], compute: Callable[[SessionCopy], Awaitable[Job[Staged[AnswerT]]]]
    ) -> Staged[AnswerT] | Replayed:
        """Compute a change on a staged state and commit it, or find that it was; the caller has the turn.

        Raises Conflict when other replicas were faster each time, VersionMismatch, IdempotencyMismatch,
        NotFound, Gone, and whatever `compute` raises.
        """
        for _ in range(1 + REDOS if task.redo else 1):
            try:
                done = await self._try(task, compute)
            except ServerError as error:
                known = await settled(error, partial(self.recall, task))
                return self._repeated(task, known)
            if done is not None:
                return done
            self.cache.drop(task.key)
            self.metrics.conflicts.labels("redone").inc()
            task.check()
        self.metrics.conflicts.labels("refused").inc()
        lost = Conflict("other servers changed the session at the same time", retry_after=1)
        lost.settled = True
        raise lost

    async def recall(self, task: Task[Any]) -> Replayed | None:
        """What the store remembers of a change; None when it knows of none. Raises IdempotencyMismatch."""
        outcome = await self.store.recall(task.key, task.operation_id, task.body_hash)
        return None if outcome is None else self._known(task.key, outcome)

    async def _try(
        self, task: Task[Any], compute: Callable[[SessionCopy], Awaitable[Job[Staged[AnswerT]]]]
    ) -> Staged[AnswerT] | Replayed | None:
        """Compute and commit; None when the copy at hand was not the newest."""
        key = task.key
        copy = self.cache.get(key) or await self._load(key, None)
        job = partial(serialize, self.states, copy.revision.version + 1, await compute(copy))
        with self.distrusting(key):
            ran = await self.worker.run(job, task.call, copy.state.adapted.expert_config.rows)
        staged, state = ran.result
        commit = Commit(
            key=key,
            operation_id=task.operation_id,
            body_hash=task.body_hash,
            if_match=task.if_match,
            expects=copy.revision,
            info=write_session(info_of(staged.copy)),
            state=state,
            ttl_ms=staged.copy.facts.ttl_ms,
            summary=staged.summary,
            details=staged.details,
        )
        began = time.perf_counter()
        try:
            outcome = await task.commit(commit_with_retries(commit, self.store, self.cache))
        except VersionMismatch as moved:
            if moved.facts["version"] != copy.revision.version:
                self.cache.drop(key)
            raise
        store = time.perf_counter() - began
        task.timings = {**ran.timings, "store": store}
        match outcome:
            case Committed():
                task.took_effect = True
                self.metrics.commit_seconds.observe(store)
                return self._taken(staged, outcome)
            case Replayed():
                return self._repeated(task, self._known(key, outcome))
            case Stale():
                return None

    def _taken(self, staged: Staged[AnswerT], outcome: Committed) -> Staged[AnswerT]:
        """What was staged becomes the copy, and what was done is counted."""
        staged.copy = replace(staged.copy, revision=outcome.revision)
        staged.expires_at_ms = outcome.expires_at_ms
        self.cache.put(staged.copy)
        for reading in staged.readings:
            reading.count(self.metrics, in_session=True)
        state = staged.copy.state
        self.metrics.state_bytes.observe(state.nbytes)
        if any(reading.row_steps for reading in staged.readings):
            self.metrics.delta_ratio.observe(state.norm_ratio)
        if state.adapted.mixture is not None:
            self.metrics.static_weight.observe(state.adapted.weights[0])
        return staged

    def _known(self, key: SessionKey, outcome: Replayed) -> Replayed:
        copy = self.cache.get(key)
        if copy is not None and copy.revision != outcome.current:
            self.cache.drop(key)
        return outcome

    def _repeated(self, task: Task[Any], known: Replayed) -> Replayed:
        task.took_effect = True
        self.metrics.replays.labels("replayed").inc()
        return known

    # ---- what the store says of sessions, whatever state they are in ---------------------------------------

    async def info(self, call: Call, min_version: int | None = None) -> SessionInfo:
        """One session. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        head = await self.store.load_head(session_key(call), with_state=False)
        if min_version is not None and head.version < min_version:
            raise VersionMismatch(min_version, head.version)
        return session_info(head)

    async def note(self, call: Call, min_version: int | None = None) -> NoteAnswer:
        """What the client keeps with one. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        copy = await self.read(session_key(call), min_version)
        return NoteAnswer(version=copy.revision.version, note=copy.state.note)

    async def export(self, call: Call, min_version: int | None = None) -> ExportedSession:
        """One as a file. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        copy = await self.read(session_key(call), min_version)
        data = await off_loop(copy.state.nbytes, partial(write_file, copy), STATE_BYTES)
        return ExportedSession(session=call.session, version=copy.revision.version, data=data)

    async def page(self, call: Call, limit: int, cursor: str | None, name: str | None = None) -> SessionPage:
        """A page of a tenant's sessions, or the one of a name. One that is damaged is left out."""
        if name is not None:
            try:
                session = await self.store.find(call.tenant, name)
                return SessionPage(sessions=(await self.info(replace(call, session=session)),), cursor=None)
            except (Gone, NotFound):
                return SessionPage(sessions=(), cursor=None)
        page = await self.store.list(call.tenant, limit=limit, cursor=cursor)
        sessions = []
        for head in page.sessions:
            try:
                sessions.append(session_info(head))
            except StateCorrupt:
                self.metrics.restore_failures.labels("schema").inc()
        return SessionPage(sessions=tuple(sessions), cursor=page.cursor)

    # ---- ending -------------------------------------------------------------------------------------------

    async def delete(self, call: Call) -> None:
        """End a session for good; again and again while its tombstone lives. Raises NotFound, Gone.

        Once the store has ended it nobody commits to it any more, so what waits in its queue is told so. One
        that cannot be read, of another version's form too, can be ended.
        """
        key, live = session_key(call), True
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


async def serialize(states: States, version: int, job: Job[Staged[AnswerT]]) -> tuple[Staged[AnswerT], bytes]:
    """Compute a change, and serialize its state. Raises StateCorrupt where that is not finite, TooLarge."""
    staged = await job()
    return staged, states.serialize(staged.copy.key, version, staged.copy.state)


async def settled(error: ServerError, recall: Callable[[], Awaitable[Known | None]]) -> Known:
    """What the store knows of a change that was refused now; where it knows of none the error is raised."""
    if error.applied != "no" or isinstance(error, StoreUnavailable | IdempotencyMismatch):
        raise error
    known = await recall()
    if known is None:
        error.settled = True
        raise error
    return known


async def commit_with_retries(commit: Commit, store: SessionStore, cache: SessionCache) -> CommitOutcome:
    """Commit; where the store leaves open whether that happened, ask again with the same operation id.

    A session of which more is known than its copy says leaves the cache.
    """
    deadline = time.monotonic() + COMMIT_SECONDS
    unknown: OutcomeUnknown | None = None
    for _ in range(TRIES):
        try:
            outcome = await store.commit(commit)
        except OutcomeUnknown as error:
            unknown = error
        except (Gone, NotFound) as error:
            cache.drop(commit.key)
            error.applied = "no" if unknown is None else "unknown"
            raise
        except (StoreUnavailable, StoreFull) as error:
            if unknown is None:
                raise
            unknown.__cause__ = error  # this try changed nothing, but the one before may have
        else:
            if unknown is not None and isinstance(outcome, Replayed) and outcome.is_of(commit):
                # an earlier try was applied, only its reply was lost
                return Committed(revision=commit.revision, expires_at_ms=outcome.expires_at_ms)
            return outcome
        if time.monotonic() >= deadline:
            break
    cache.drop(commit.key)
    raise unknown or OutcomeUnknown("the store did not say whether the change took effect")
