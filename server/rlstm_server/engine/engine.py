"""The engine: every request gets exactly one outcome.

The event loop checks, queues and commits; the device thread computes; the store decides. The life of a change
is told in session.py.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from rlstm_model.adaptation.batch_step import PassKind, run_batch
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_server.engine import requests
from rlstm_server.engine.appends import Appends
from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.cache_check import CacheCheck
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.completions import Completions
from rlstm_server.engine.copies import Copies
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.ending import end_session
from rlstm_server.engine.envelope import ExportKeys
from rlstm_server.engine.holdings import Holdings
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.models import Models
from rlstm_server.engine.named_snapshots import NamedSnapshots
from rlstm_server.engine.numerics import alone
from rlstm_server.engine.queries import Queries
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.runner import ROWS, Runner
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshot import Snapshots
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.streams import SessionStreams
from rlstm_server.errors import Draining, ServerError
from rlstm_server.metrics import Memory, Metrics
from rlstm_server.schemas import (
    AppendAnswer,
    AppendRequest,
    CandidatesAnswer,
    CandidatesRequest,
    ChangeAnswer,
    CompletionEvent,
    CompletionRequest,
    CreatedSession,
    CreateSession,
    EngineLimits,
    ExportedSession,
    ForkRequest,
    GenerateRequest,
    GenerationEvent,
    ImportRequest,
    ResetRequest,
    RestoreRequest,
    ScoreAnswer,
    ScoreRequest,
    SessionGenerate,
    SessionInfo,
    SessionPage,
    SessionSnapshot,
    SnapshotAnswer,
    SnapshotRequest,
    UpdateRequest,
)
from rlstm_server.store.base import SessionStore

CACHE_BYTES: Final = 512 * 2**20
TTL_SECONDS: Final = 30 * 24 * 3600.0


class Engine:
    """See :class:`rlstm_server.engine.interface.EngineInterface` for the calls.

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
        threads: int = 1,
        export_keys: ExportKeys | None = None,
    ) -> None:
        """`rows` are those of a round: more of them share each product, fewer make rounds shorter.

        `threads` of a CPU share the batches of a round. Without `export_keys` no session leaves or comes as a
        file.
        """
        self.limits = limits or EngineLimits()
        self._thread_pool = ThreadPool(threads) if models.device.type == "cpu" and threads > 1 else None
        padding = Counter[PassKind]()
        self.runner = Runner(
            [served.model for served in models],
            metrics,
            self.limits.queued_jobs,
            rows,
            partial(
                run_batch if models.rounds_agree else alone, thread_pool=self._thread_pool, padding=padding
            ),
            padding,
            self.limits,
        )
        self.models = models
        self._metrics = metrics
        self._store = MeteredStore(store, metrics)
        snapshots = Snapshots(models)
        tier: Memory = "host" if models.device.type == "cpu" else "device"
        cache = SessionCache(cache_bytes, metrics, self.runner.slots, tier)
        self._cache_check = CacheCheck(self._store, cache)
        self.sessions = Sessions(
            store=self._store,
            cache=cache,
            loader=Loader(self._store, cache, snapshots, self.runner, metrics),
            runner=self.runner,
            metrics=metrics,
            queued_operations=self.limits.queued_operations_per_session,
        )
        self._staging = Staging(self._store)
        self._appends = Appends(self.sessions, self._staging, self.limits)
        holdings = Holdings(self._store, models)
        self._creator = Creator(self.sessions, models, self._staging, self._appends, holdings, TTL_SECONDS)
        self._snapshots = NamedSnapshots(self.sessions, holdings)
        self._changes = Changes(self.sessions, self._staging, self._snapshots)
        self._copies = Copies(self.sessions, self._creator, self._snapshots, export_keys)
        self._streams = SessionStreams(self.sessions, self._staging, self.limits)
        self._queries = Queries(self.sessions, models, self.limits)
        self._completions = Completions(models, self.runner, self.limits, metrics)
        self._draining = False

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the device thread, and the look after copies of sessions that have ended elsewhere."""
        self.runner.start()
        self._cache_check.start()

    async def drain(self, seconds: float) -> None:
        """Take no new work, and give what is under way so long; what is left ends with Draining."""
        self._draining = True
        self._metrics.draining.set(1)
        await self._cache_check.close()
        await asyncio.gather(self.sessions.drain(seconds), self.runner.drain(seconds))

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Drain, then end the device thread. Raises InternalError when the slow weights have changed."""
        await self.drain(drain_seconds)
        try:
            await self.runner.close()
        finally:
            if self._thread_pool is not None:
                self._thread_pool.close()

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining, StoreUnavailable."""
        self._refuse_when_draining()
        await self._store.ping()

    def check(self) -> None:
        """Raise ValueError unless every job, operation and copy is accounted for."""
        self.runner.check()
        self.sessions.check()

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise Draining("the server is shutting down")

    @contextmanager
    def _taking(self, key: str | None) -> Iterator[None]:
        """Take a change, unless draining; what fails under a key may have been done under it before."""
        try:
            self._refuse_when_draining()
            yield
        except ServerError as error:
            if key is not None:
                error.doubt()
            raise

    # ---- stateless ----------------------------------------------------------------------------------------

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score items, each on its own."""
        self._refuse_when_draining()
        return await self._queries.score(request)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a prompt."""
        self._refuse_when_draining()
        async with aclosing(self._queries.generate(request)) as events:
            async for event in events:
                yield event

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Read prompts and continue them."""
        self._refuse_when_draining()
        async with aclosing(self._completions.perform(request)) as events:
            async for event in events:
                yield event

    # ---- sessions -----------------------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> CreatedSession:
        """Make a session."""
        with self._taking(request.key):
            return await self._creator.perform(request)

    async def list_sessions(
        self, tenant: str, limit: int, cursor: str | None, name: str | None = None
    ) -> SessionPage:
        """List a tenant's sessions, or the one of a name."""
        return await self._queries.list(tenant, limit, cursor, name)

    async def session_info(self, tenant: str, session: str, min_version: int | None = None) -> SessionInfo:
        """Describe a session."""
        return await self._queries.info(tenant, session, min_version)

    async def append(self, request: AppendRequest) -> AppendAnswer:
        """Score, then learn."""
        with self._taking(request.key):
            return await self._appends.perform(request)

    async def score_candidates(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations."""
        self._refuse_when_draining()
        return await self._queries.rank(request)

    async def generate_in_session(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a session's text, and keep it in the session where asked."""
        with self._taking(request.key if request.commit else None):
            async with aclosing(self._streams.perform(request)) as events:
                async for event in events:
                    yield event

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""
        with self._taking(request.key):
            return await self._changes.reset(request)

    async def update(self, request: UpdateRequest) -> ChangeAnswer:
        """Change what was said of a session."""
        with self._taking(request.key):
            return await self._changes.update(request)

    async def restore(self, request: RestoreRequest) -> ChangeAnswer:
        """Go back to a named snapshot."""
        with self._taking(request.key):
            return await self._changes.restore(request)

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotAnswer:
        """Name the present version."""
        with self._taking(request.key):
            return await self._snapshots.name(request)

    async def list_snapshots(
        self, tenant: str, session: str, min_version: int | None = None
    ) -> Sequence[SessionSnapshot]:
        """List a session's named snapshots."""
        if min_version is not None:
            await self.session_info(tenant, session, min_version)
        return await self._snapshots.list(requests.session_key(tenant, session))

    async def drop_snapshot(self, tenant: str, session: str, name: str) -> None:
        """Remove a named snapshot."""
        await self._snapshots.drop(requests.session_key(tenant, session), name)

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session."""
        with self._taking(request.key):
            return await self._copies.fork(request)

    async def export(self, caller: Caller, session: str, min_version: int | None = None) -> ExportedSession:
        """Write a session as a file."""
        self._refuse_when_draining()
        return await self._copies.export(caller, session, min_version)

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file."""
        with self._taking(request.key):
            return await self._copies.import_session(request)

    async def delete(self, tenant: str, session: str) -> None:
        """End a session for good."""
        await end_session(self.sessions, requests.session_key(tenant, session))
