"""The engine: every request gets exactly one outcome.

The event loop checks, queues and commits; the device thread computes; the store decides. The life of a change
is told in session.py. The calls are those of the parts: none but queries of the store are taken once the
server drains, and a change that fails under a key may have been done under it before (queue.py).
"""

import asyncio
from functools import partial
from typing import Final

from rlstm_model import native
from rlstm_server.engine.answers import most_bytes
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.completions import Completions
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.models import Models
from rlstm_server.engine.quotas import StorageQuota
from rlstm_server.engine.score import Scoring
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.engine.state import SessionCache, States
from rlstm_server.engine.stream import SessionStreams
from rlstm_server.engine.worker import ROWS, Worker
from rlstm_server.metrics import Metrics, Tier, metered
from rlstm_server.settings import Limits
from rlstm_server.store.base import SessionStore

CACHE_BYTES: Final = 512 * 2**20
TTL_SECONDS: Final = 30 * 24 * 3600.0


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
        limits: Limits | None = None,
        cache_bytes: int = CACHE_BYTES,
        rows: int = ROWS,
        threads: int | None = None,
    ) -> None:
        """`rows` are those of a batch step: more share each weight that is read, fewer make steps shorter.

        `threads` of a CPU share a batch; as many as there are cores if None.
        """
        self.limits = limits or Limits()
        self.models = models
        if models.device == "cpu" and threads is not None:
            native.set_threads(threads)
        self.worker = Worker(metrics, self.limits.queued_jobs, rows)
        self._metrics = metrics
        self._store = metered(store, metrics)
        tier: Tier = "host" if models.device == "cpu" else "device"
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
        quota = StorageQuota(self._store, partial(most_bytes, models))
        named = NamedSnapshots(self.sessions, quota)
        changes = Changes(self.sessions, named, self.limits)
        creator = Creator(self.sessions, models, changes, quota, TTL_SECONDS)
        scoring = Scoring(self.sessions, models, self.limits)
        completions = Completions(models, self.sessions, changes)

        self.score, self.score_candidates = scoring.score, scoring.rank
        self.generate, self.complete = completions.generate, completions.complete
        self.generate_in_session = SessionStreams(self.sessions, self.limits).generate
        self.create_session, self.fork = creator.create, creator.fork
        self.export, self.import_session = self.sessions.export, creator.import_session
        self.append, self.reset, self.update = changes.append, changes.reset, changes.update
        self.take_snapshot, self.restore = named.name, changes.restore
        self.list_snapshots, self.drop_snapshot = named.list, named.drop
        self.list_sessions, self.session_info = self.sessions.page, self.sessions.info
        self.session_note, self.find_session = self.sessions.note, self._store.find
        self.delete = self.sessions.delete

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the device thread."""
        self.worker.start()

    async def drain(self, seconds: float) -> None:
        """Take no new work, and give what is under way so long; what is left ends with Draining."""
        self._metrics.draining.set(1)
        await asyncio.gather(self.sessions.drain(seconds), self.worker.drain(seconds))

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Drain, then end the device thread."""
        await self.drain(drain_seconds)
        await self.worker.close()

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining, StoreUnavailable."""
        with self.sessions.taking(None):
            await self._store.ping()

    def check(self) -> None:
        """Raise ValueError unless every job, operation and copy is accounted for."""
        self.worker.check()
        self.sessions.check()
