"""Snapshots in the background: a session whose log would take long to do again gets a newer base.

Never in a commit's way: a session goes on while its state of a moment ago is written, one snapshot at a time.
Who waits for his turn holds no state, and takes the newest when it comes. What fails is counted, and tried
again when the session goes on; so is what left the cache meanwhile.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import Final

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.snapshot_policy import SnapshotPolicy
from rlstm_server.errors import ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey, SessionStore

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
    store: SessionStore
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
            self._begin(copy.key)

    def stop(self, key: SessionKey) -> None:
        """Stop the snapshot of a session that has ended."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

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

    def _begin(self, key: SessionKey) -> None:
        """Start a session's task, which knows its key and no state."""
        task = self._tasks[key] = asyncio.ensure_future(self._work(key))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _work(self, key: SessionKey) -> None:
        async with self._turns:
            done = await self._keep(key)
        if not done:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _keep(self, key: SessionKey) -> bool:
        """Make the newest copy the base; False when that failed, and can wait."""
        copy = self.cache.get(key)
        if copy is None or not self.policy.due(copy.lead):
            return True
        try:
            snapshot = await self.loader.save(copy.key, copy.position.version, copy.state)
            kept = await self.store.keep_snapshot(copy.key, copy.position, snapshot)
        except Exception as error:
            self.metrics.snapshots.labels("failed").inc()
            if not isinstance(error, ServerError):
                logger.error("a snapshot failed", exc_info=error)
            return False
        self.metrics.snapshots.labels("kept" if kept else "late").inc()
        if kept:
            self._rebase(copy)
        return True

    def _rebase(self, kept: SessionCopy) -> None:
        """Let the newest copy know that it is not so far ahead any more."""
        newest = self.cache.get(kept.key)
        if newest is not None and newest.lead.base == kept.lead.base:
            self.cache.put(replace(newest, lead=newest.lead.since(kept.lead)))
