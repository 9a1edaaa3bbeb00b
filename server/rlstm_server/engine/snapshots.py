"""Named snapshots: versions of a session that were given a name to go back to."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from rlstm_server.caller import Call
from rlstm_server.engine import requests
from rlstm_server.engine.queue import Task
from rlstm_server.engine.quotas import StorageQuota
from rlstm_server.engine.session import REDOS, Sessions
from rlstm_server.engine.state import SessionState
from rlstm_server.errors import (
    Conflict,
    IdempotencyMismatch,
    SnapshotExists,
    StateCorrupt,
    VersionMismatch,
)
from rlstm_server.schemas.sessions import SessionSnapshot, SessionTotals, SnapshotAnswer, SnapshotRequest
from rlstm_server.store.base import NamedSnapshot, SessionKey


class _Noted(BaseModel):
    """What is stored beside a snapshot: where the session stood, and the key of the request that named it."""

    position: int
    totals: SessionTotals
    key: str | None


@dataclass(frozen=True, eq=False)
class NamedSnapshots:
    """Names versions of sessions, and opens them again."""

    sessions: Sessions
    quota: StorageQuota

    async def name(self, request: SnapshotRequest) -> SnapshotAnswer:
        """Name the present version. Raises NotFound, Gone, SnapshotExists, VersionMismatch, Conflict."""

        async def work(task: Task[SnapshotAnswer]) -> SnapshotAnswer:
            for _ in range(1 + REDOS):
                task.check()
                answer = await self._try(request, task)
                if answer is not None:
                    return answer
            raise Conflict("other servers changed the session at the same time", retry_after=1)

        with self.sessions.taking(request.call.key):
            return await self.sessions.enqueue(request.call, requests.digest(request), work).wait()

    async def list(self, call: Call, min_version: int | None = None) -> Sequence[SessionSnapshot]:
        """All of a session, oldest first. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        if min_version is not None:
            await self.sessions.info(call, min_version)
        key = requests.session_key(call)
        return [_read(snapshot) for snapshot in await self.sessions.store.named_snapshots(key)]

    async def drop(self, call: Call, name: str) -> None:
        """Remove one, if it is there. Raises NotFound, Gone for the session."""
        await self.sessions.store.drop_snapshot(requests.session_key(call), name)

    async def open(self, key: SessionKey, name: str) -> tuple[SessionState, int]:
        """Return the state of one, and its version.

        Raises NotFound when there is none of this name, StateCorrupt, ModelMismatch, Gone.
        """
        snapshot, value = await self.sessions.store.read_snapshot(key, name)
        return await self.sessions.open(key, snapshot.version, value), snapshot.version

    async def _try(self, request: SnapshotRequest, task: Task[SnapshotAnswer]) -> SnapshotAnswer | None:
        """Name the version that is the newest now; None when that was overtaken."""
        key, copy = task.key, await self.sessions.read(task.key)
        if (known := await self._known(key, request, copy.revision.version)) is not None:
            return self._answer(known, replayed=True)
        if request.call.if_match not in (None, copy.revision.version):
            raise VersionMismatch(request.call.if_match or 0, copy.revision.version)
        noted = _Noted(position=copy.state.adapted.position, totals=copy.state.totals, key=request.call.key)
        store, written = self.sessions.store, noted.model_dump_json().encode()
        async with self.quota.reserve(request.call, copy.state.nbytes, sessions=0):
            named = await task.commit(store.name_snapshot(key, request.name, copy.revision, written))
        if not isinstance(named, NamedSnapshot):
            self.sessions.cache.drop(key)
            return None
        return self._answer(named, replayed=False)

    async def _known(self, key: SessionKey, request: SnapshotRequest, version: int) -> NamedSnapshot | None:
        """The snapshot that this request made before, or that is what it asks for.

        Naming makes no version, so the history knows nothing of the key: the snapshot remembers it itself.
        """
        snapshots = await self.sessions.store.named_snapshots(key)
        for snapshot in snapshots:
            if request.call.key is not None and _noted(snapshot).key == request.call.key:
                if snapshot.name != request.name:
                    raise IdempotencyMismatch
                return snapshot
        for snapshot in snapshots:
            if snapshot.name == request.name and snapshot.version != version:
                raise SnapshotExists(f"a snapshot of version {snapshot.version} has this name")
            if snapshot.name == request.name:
                return snapshot
        return None

    def _answer(self, snapshot: NamedSnapshot, *, replayed: bool) -> SnapshotAnswer:
        return SnapshotAnswer(
            snapshot=_read(snapshot), durability=self.sessions.durability, replayed=replayed
        )


def _read(snapshot: NamedSnapshot) -> SessionSnapshot:
    noted = _noted(snapshot)
    return SessionSnapshot(
        name=snapshot.name,
        version=snapshot.version,
        position=noted.position,
        created_at=snapshot.created_at_ms / 1000,
        state_bytes=snapshot.state_bytes,
        totals=noted.totals,
    )


def _noted(snapshot: NamedSnapshot) -> _Noted:
    try:
        return _Noted.model_validate_json(snapshot.info)
    except ValidationError as error:
        raise StateCorrupt("a snapshot's description cannot be read") from error
