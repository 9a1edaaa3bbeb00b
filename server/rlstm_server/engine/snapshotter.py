"""Snapshots in the background: a session whose log would take long to do again gets a newer base.

Never in a commit's way: a session goes on while its state of a moment ago is written, one snapshot at a time.
What fails is counted, and tried again when the session goes on.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import Final

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.snapshot_policy import SnapshotPolicy
from rlstm_server.errors import ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey

logger = logging.getLogger(__name__)

AT_ONCE: Final = 2
"""Sessions whose snapshots are written at once."""

WAITING: Final = 64
"""Sessions that may wait for theirs; others ask again with their next operation."""

PAUSE_SECONDS: Final = 10.0
"""How long a session whose snapshot failed is left alone."""


@dataclass(eq=False)
class Snapshotter:
    """Keeps logs short. `close` ends what it is at."""

    loader: Loader
    store: MeteredStore
    cache: SessionCache
    metrics: Metrics
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    _tasks: "dict[SessionKey, asyncio.Task[None]]" = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _closed: bool = False

    def consider(self, copy: SessionCopy) -> None:
        """Begin a snapshot of a committed copy where one is due."""
        if self._closed or copy.key in self._tasks or len(self._tasks) >= WAITING:
            return
        if self.policy.due(copy.lead):
            task = asyncio.ensure_future(self._keep(copy))
            self._tasks[copy.key] = task
            task.add_done_callback(lambda _: self._tasks.pop(copy.key, None))

    async def settle(self) -> None:
        """Wait until none is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Take no more, and stop those that are under way: what they have written expires."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, copy: SessionCopy) -> None:
        try:
            async with self._turns:
                snapshot = await self.loader.save(copy.key, copy.position.version, copy.state)
                kept = await self.store.keep_snapshot(copy.key, copy.position, snapshot)
        except ServerError:
            self.metrics.snapshots.labels("failed").inc()
            await asyncio.sleep(PAUSE_SECONDS)
        except Exception as error:
            self.metrics.snapshots.labels("failed").inc()
            logger.error("a snapshot failed", exc_info=error)
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            self.metrics.snapshots.labels("kept" if kept else "late").inc()
            if kept:
                self._rebase(copy)

    def _rebase(self, kept: SessionCopy) -> None:
        """Let the newest copy know that it is not so far ahead any more."""
        newest = self.cache.get(kept.key)
        if newest is not None and newest.lead.base == kept.lead.base:
            self.cache.put(replace(newest, lead=newest.lead.since(kept.lead)))
