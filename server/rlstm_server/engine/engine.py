"""The engine: every request gets exactly one outcome.

The event loop checks, queues and commits; the device thread computes; the store decides. The life of a change
is told in session.py. The calls are those of the parts, under one rule: none but queries of the store are
taken once the server drains, and a change that fails under a key may have been done under it before.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial, wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from rlstm_model import native
from rlstm_server.caller import Call
from rlstm_server.engine.answers import most_bytes
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.completions import Completions
from rlstm_server.engine.copies import Copies
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.models import Models
from rlstm_server.engine.quotas import StorageQuota
from rlstm_server.engine.score import Scoring
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.engine.state import SessionCache, States
from rlstm_server.engine.stream import SessionStreams
from rlstm_server.engine.worker import ROWS, Worker
from rlstm_server.errors import (
    Draining,
    OutcomeUnknown,
    ServerError,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
)
from rlstm_server.metrics import STORE_OPERATIONS, Memory, Metrics
from rlstm_server.schemas.text import EngineLimits
from rlstm_server.store.base import SessionStore

CACHE_BYTES: Final = 512 * 2**20
TTL_SECONDS: Final = 30 * 24 * 3600.0

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Event = TypeVar("Event")


class Called(Protocol):
    """A request that tells who asks, maybe under an idempotency key."""

    @property
    def call(self) -> Call:
        """Under its key a repeat of the request is known."""


Request = TypeVar("Request")
Change = TypeVar("Change", bound=Called)


class Engine:
    """All that the HTTP layer may ask.

    Every call raises errors of :mod:`rlstm_server.errors` and nothing else. Cancelling the awaiting task
    cancels the work, except a commit that is on its way. An iterator of events must be closed (``aclosing``)
    when it is left early.

    `start` it in the event loop that will call it, `close` it there. The store is the caller's to close.
    """

    def __init__(
        self,
        models: Models,
        store: SessionStore,
        metrics: Metrics,
        *,
        limits: EngineLimits | None = None,
        cache_bytes: int = CACHE_BYTES,
        rows: int = ROWS,
        threads: int | None = None,
    ) -> None:
        """`rows` are those of a batch step: more share each weight that is read, fewer make steps shorter.

        `threads` of a CPU share a batch; as many as there are cores if None.
        """
        self.limits = limits or EngineLimits()
        self.models = models
        if models.device == "cpu" and threads is not None:
            native.set_threads(threads)
        self.worker = Worker(metrics, self.limits.queued_jobs, rows, limits=self.limits)
        self._metrics = metrics
        self._store = metered(store, metrics)
        tier: Memory = "host" if models.device == "cpu" else "device"
        cache = SessionCache(cache_bytes, metrics, tier)
        self.sessions = Sessions(
            store=self._store,
            durability=store.durability,
            cache=cache,
            states=States(models, self.limits.state_bytes),
            worker=self.worker,
            metrics=metrics,
            queued_operations=self.limits.queued_operations_per_session,
        )
        self._draining = False
        self._offer()

    def _offer(self) -> None:
        """Put the parts together, and their calls under the rule."""
        quota = StorageQuota(self._store, partial(most_bytes, self.models))
        named = NamedSnapshots(self.sessions, quota)
        changes = Changes(self.sessions, named, self.limits)
        creator = Creator(self.sessions, self.models, changes, quota, TTL_SECONDS)
        copies = Copies(self.sessions, creator, named)
        scoring = Scoring(self.sessions, self.models, self.limits)
        completions = Completions(self.models, self.sessions, changes)
        streams = SessionStreams(self.sessions, self.limits)

        self.score, self.score_candidates = self._query(scoring.score), self._query(scoring.rank)
        self.generate = self._stream(completions.generate)
        self.complete = self._stream(
            completions.complete, lambda request: request.call.key if request.store else None
        )
        self.generate_in_session = self._stream(
            streams.generate, lambda request: request.call.key if request.commit else None
        )
        self.create_session = self._change(creator.perform)
        self.append = self._change(changes.append)
        self.reset, self.update = self._change(changes.reset), self._change(changes.update)
        self.restore = self._change(changes.restore)
        self.take_snapshot = self._change(named.name)
        self.fork, self.import_session = self._change(copies.fork), self._change(copies.import_session)
        self.export, self.session_note = self._query(copies.export), self._query(self.sessions.note)
        self.list_sessions, self.session_info = self.sessions.page, self.sessions.info
        self.find_session = self._store.find
        self.list_snapshots, self.drop_snapshot = named.list, named.drop
        self.delete = self.sessions.delete

    # ---- the rule -----------------------------------------------------------------------------------------

    @contextmanager
    def _taking(self, key: str | None) -> Iterator[None]:
        """Take work, unless draining; what fails under a key may have been done under it before."""
        try:
            if self._draining:
                raise Draining("the server is shutting down; retry later")
            yield
        except ServerError as error:
            if key is not None:
                error.doubt()
            raise

    def _query(self, call: Callable[Arguments, Awaitable[Answer]]) -> Callable[Arguments, Awaitable[Answer]]:
        @wraps(call)
        async def taken(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            with self._taking(None):
                return await call(*args, **kwargs)

        return taken

    def _change(self, call: Callable[[Change], Awaitable[Answer]]) -> Callable[[Change], Awaitable[Answer]]:
        @wraps(call)
        async def taken(request: Change) -> Answer:
            with self._taking(request.call.key):
                return await call(request)

        return taken

    def _stream(
        self,
        call: Callable[[Request], AsyncGenerator[Event, None]],
        key: Callable[[Request], str | None] = lambda request: None,
    ) -> Callable[[Request], AsyncGenerator[Event, None]]:
        @wraps(call)
        async def taken(request: Request) -> AsyncGenerator[Event, None]:
            with self._taking(key(request)):
                async with aclosing(call(request)) as events:
                    async for event in events:
                        yield event

        return taken

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the device thread."""
        self.worker.start()

    async def drain(self, seconds: float) -> None:
        """Take no new work, and give what is under way so long; what is left ends with Draining."""
        self._draining = True
        self._metrics.draining.set(1)
        await asyncio.gather(self.sessions.drain(seconds), self.worker.drain(seconds))

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Drain, then end the device thread."""
        await self.drain(drain_seconds)
        await self.worker.close()

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining, StoreUnavailable."""
        with self._taking(None):
            await self._store.ping()

    def check(self) -> None:
        """Raise ValueError unless every job, operation and copy is accounted for."""
        self.worker.check()
        self.sessions.check()


# ---- the store as the engine calls it ----------------------------------------------------------------------

NAMES: Final = {"load_head": "load"}
"""What calls are counted as, where that is not their name."""

FAULTS: Final[dict[type[ServerError], str]] = {
    StoreUnavailable: "unavailable",
    StoreFull: "full",
    OutcomeUnknown: "timeout",
    StateCorrupt: "corrupt",
}
"""Errors that are faults of the store. With any other the store did its work and the answer is an error."""


class _Metered:
    def __init__(self, store: SessionStore, metrics: Metrics) -> None:
        self.store, self._metrics = store, metrics

    def __getattr__(self, name: str) -> Any:
        """A call of the store, measured; what is no call, and is not counted, as it is."""
        operation = NAMES.get(name, name)
        if operation not in STORE_OPERATIONS:
            return getattr(self.store, name)
        measured = functools.partial(self._measured, operation, name)
        setattr(self, name, measured)
        return measured

    async def _measured(self, operation: str, name: str, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return await getattr(self.store, name)(*args, **kwargs)
        except ServerError as error:
            reason = next((FAULTS[kind] for kind in type(error).__mro__ if kind in FAULTS), None)
            if reason is not None:
                self._metrics.store_errors.labels(operation, reason).inc()
            raise
        except Exception:
            self._metrics.store_errors.labels(operation, "other").inc()
            raise
        finally:
            self._metrics.store_seconds.labels(operation).observe(time.perf_counter() - began)


def metered(store: SessionStore, metrics: Metrics) -> SessionStore:
    """The same store, whose calls are counted."""
    return cast("SessionStore", _Metered(store, metrics))
