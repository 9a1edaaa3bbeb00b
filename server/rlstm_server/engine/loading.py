"""Between the store and copies: a session's base is read and its log done again; states are put beside it.

A base that turns out to be damaged is passed over for the one before, with a longer log. When neither leads
to the newest version, the session answers StateCorrupt until somebody looks at it: nothing of it is removed.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy, session_facts
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.replay import Rebuilt, ReplayDiffers, replay
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.snapshot import Contents, SessionState, Snapshots, contents_of
from rlstm_server.engine.snapshot_policy import Lead
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import Gone, NotFound, ServerError, StateCorrupt, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import Base, Head, SessionKey, SnapshotRef

PAGE: Final = 64
"""Records of the log that are read, and done again, at once."""

LARGE_AT_ONCE: Final = 4
"""So many snapshots are on their way between memory and the store: each is there a few times meanwhile."""

READS: Final = 4
"""How often a head is read again because what it points to was gone, before that is taken for damage."""

FAULTS: Final = {"checksum": "checksum", "nonfinite": "not finite", "missing": "not there"}
"""What is wrong with a state that cannot be used, by a word of the message; anything else is its schema."""


class _Moved(Exception):
    """The session is elsewhere, or has another base, by now; what the old one needed may be gone."""


@dataclass(eq=False)
class Loader:
    """Rebuilds sessions from the store, and puts states there. One load of a session serves all who wait."""

    store: MeteredStore
    cache: SessionCache
    snapshots: Snapshots
    runner: Runner
    metrics: Metrics
    _loads: "WeakValueDictionary[SessionKey, asyncio.Lock]" = field(default_factory=WeakValueDictionary)
    _large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_AT_ONCE))

    # ---- from the store -----------------------------------------------------------------------------------

    async def load(self, key: SessionKey, caller: Caller, known: SessionCopy | None) -> SessionCopy:
        """The newest version: `known` where that is it, else a copy that is made, and cached.

        Raises NotFound, Gone, StateCorrupt, ModelMismatch.
        """
        for _ in range(READS):
            began = time.perf_counter()
            head = await self._head(key, known)
            if head.base is None and known is not None:
                return known
            try:
                async with self._loads.setdefault(key, asyncio.Lock()):
                    made = self.cache.get(key)
                    if made is not None and made.position == head.position:
                        return made
                    copy = await self._restore(key, head, caller)
                    self.cache.put(copy)
            except _Moved:
                continue
            self.metrics.load_seconds.observe(time.perf_counter() - began)
            return copy
        raise StoreUnavailable("the session changes faster than it can be read", retry_after=1)

    async def open_snapshot(
        self, key: SessionKey, snapshot: SnapshotRef, version: int, caller: Caller
    ) -> SessionState:
        """The state that was put for `key` at `version`. Raises StateCorrupt, ModelMismatch."""
        return (await self._open(key, Base(version=version, state=snapshot), caller)).state

    async def _head(self, key: SessionKey, known: SessionCopy | None) -> Head:
        try:
            return await self.store.load_head(key, known=None if known is None else known.position)
        except (Gone, NotFound):
            self.cache.drop(key)
            raise

    async def _restore(self, key: SessionKey, head: Head, caller: Caller) -> SessionCopy:
        if head.base is None:
            raise StateCorrupt("the session has no state in the store")
        failed: StateCorrupt | None = None
        for base in _newest_first(head.base):
            try:
                return await self._rebuild(key, head, base, caller)
            except StateCorrupt as error:
                await self._look_again(key, head)
                self._count_failure(error)
                failed = error
            except ServerError as error:
                self._count_failure(error)
                raise
        raise failed or StateCorrupt("the session has no state in the store")

    async def _look_again(self, key: SessionKey, seen: Head) -> None:
        """Raise _Moved when the session is elsewhere by now, or has another base.

        A failover may have taken it back: its log is shorter then, and nothing is damaged.
        """
        head = await self.store.load_head(key)
        if (head.position, head.base) != (seen.position, seen.base):
            raise _Moved

    async def _rebuild(self, key: SessionKey, head: Head, base: Base, caller: Caller) -> SessionCopy:
        rebuilt, seconds = await self._open(key, base, caller), 0.0
        at, position = base.version, rebuilt.state.adapted.position
        while at < head.version:
            page = await self.store.read_log(key, after=at, limit=min(PAGE, head.version - at))
            if [record.version for record in page] != [*range(at + 1, at + 1 + len(page))] or not page:
                raise StateCorrupt("the session's log lacks operations since its base")
            steps = replay(rebuilt, [record.record for record in page])
            ran = await self.runner.run(steps, caller, rebuilt.state.adapted.expert_config.rows)
            rebuilt, at, seconds = ran.result, at + len(page), seconds + ran.compute
        if head.version > base.version:
            self.metrics.log_replays.labels("exact" if rebuilt.exact else "approx").inc()
            self.metrics.log_replay_seconds.observe(seconds)
        lead = Lead(
            base=base.version,
            records=head.version - base.version,
            tokens=max(0, rebuilt.state.adapted.position - position),
            seconds=seconds,
        )
        return SessionCopy(
            key=key, position=head.position, state=rebuilt.state, facts=session_facts(head), lead=lead
        )

    async def _open(self, key: SessionKey, base: Base, caller: Caller) -> Rebuilt:
        if isinstance(base.state, bytes):
            return (
                await self.runner.run(_opened(self.snapshots, key, base.version, base.state), caller)
            ).result
        async with self._large:
            value = await self.store.get_snapshot(key, base.state)
            contents = await asyncio.to_thread(self.snapshots.unseal, key, base.version, value)
            del value
            return (await self.runner.run(_restored(self.snapshots, contents), caller)).result

    def _count_failure(self, error: ServerError) -> None:
        if isinstance(error, ReplayDiffers):
            self.metrics.log_replays.labels("differs").inc()
        elif isinstance(error, StateCorrupt):
            reason = next((name for name, word in FAULTS.items() if word in error.detail), "schema")
            self.metrics.restore_failures.labels(reason).inc()
            self.metrics.snapshot_corrupt.inc()
        elif error.code == "model_mismatch":
            self.metrics.restore_failures.labels("model_mismatch").inc()

    # ---- to the store -------------------------------------------------------------------------------------

    async def save(
        self, key: SessionKey, version: int, state: SessionState, *, brought: bool = False
    ) -> SnapshotRef:
        """Put a state beside its session, in chunks. Raises StoreFull, StateCorrupt, Gone."""
        async with self._large:
            caller = _ourselves(key)
            contents = (await self.runner.run(_fetched(state), caller)).result
            value = await asyncio.to_thread(self.snapshots.seal, key, version, contents)
            del contents
            return await self.store.put_snapshot(key, value, brought=brought)

    async def creation_state(self, key: SessionKey, state: SessionState) -> bytes | SnapshotRef:
        """What a session is created with: the whole state, its origin, or where it was put."""
        steps = _for_creation(self.snapshots, key, state)
        value = (await self.runner.run(steps, _ourselves(key))).result
        return await self.save(key, 0, state, brought=True) if value is None else value


def _newest_first(base: Base) -> Iterator[Base]:
    """A base and the one before."""
    yield base
    if base.previous is not None:
        yield base.previous


def _ourselves(key: SessionKey) -> Caller:
    """Who asks when no request does: the session's tenant, so that it has its share of the device."""
    return Caller(tenant=key.tenant, request_id="")


def _opened(snapshots: Snapshots, key: SessionKey, version: int, value: bytes) -> Steps[Any, Rebuilt]:
    """Open a small state on the device thread."""
    return (yield from _restored(snapshots, snapshots.unseal(key, version, value)))


def _restored(snapshots: Snapshots, contents: Contents) -> Steps[Any, Rebuilt]:
    yield from ()
    return Rebuilt(snapshots.restore(contents), contents.same_numerics)


def _fetched(state: SessionState) -> Steps[Any, Contents]:
    yield from ()
    return contents_of(state)


def _for_creation(snapshots: Snapshots, key: SessionKey, state: SessionState) -> Steps[Any, bytes | None]:
    """What fits into the creation itself; None for a state that does not."""
    yield from ()
    if state.is_inline:
        return snapshots.pack(key, 0, state)
    return snapshots.origin(key, state) if snapshots.is_new(state) else None
