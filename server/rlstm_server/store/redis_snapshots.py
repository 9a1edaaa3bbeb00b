"""Snapshots in Redis: states in chunks, each a command of its own, and the names that some of them have."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rlstm_server.errors import SnapshotExists, StateCorrupt, StoreFull, StoreUnavailable, TooLarge
from rlstm_server.store.base import (
    Limits,
    NamedSnapshot,
    Position,
    SessionKey,
    SnapshotRef,
    Stale,
    new_generation,
)
from rlstm_server.store.redis_functions import RedisFunctions, session_key
from rlstm_server.store.redis_link import Link

READS: Final = 4
CHUNKS_A_READ: Final = 4


class RedisSnapshots:
    """Snapshots of all sessions. One chunk at a time is on its way to the store: others come in between."""

    def __init__(self, link: Link, functions: RedisFunctions, limits: Limits) -> None:
        self._link = link
        self._functions = functions
        self._limits = limits

    async def put(self, key: SessionKey, state: bytes) -> SnapshotRef:
        """Write a state; nothing of it is left when there is no room for all of it."""
        snapshot = SnapshotRef(generation=new_generation(), size=len(state))
        view, size = memoryview(state), self._limits.chunk_bytes
        try:
            for number, start in enumerate(range(0, len(state), size)):
                await self._functions.session(
                    "put_chunk",
                    key,
                    snapshot.generation,
                    number,
                    bytes(view[start : start + size]),
                    self._limits.snapshot_ms,
                    changes=False,  # nobody knows of it yet
                )
        except StoreFull:
            with suppress(StoreUnavailable):  # it has an expiry
                await self._link.call("UNLINK", _place(key, snapshot), changes=False)
            raise
        return snapshot

    async def get(self, key: SessionKey, snapshot: SnapshotRef) -> bytes:
        """Read a state, some chunks at a time: a store that syncs its disk lets each reply wait for that."""
        count = int((await self._link.call("HLEN", _place(key, snapshot), changes=False)).content)
        chunks: list[bytes | None] = []
        for start in range(0, count, READS * CHUNKS_A_READ):
            numbers = range(start, min(start + READS * CHUNKS_A_READ, count))
            groups = [
                numbers[first : first + CHUNKS_A_READ] for first in range(0, len(numbers), CHUNKS_A_READ)
            ]
            for found in await asyncio.gather(*(self._read(key, snapshot, group) for group in groups)):
                chunks += found
        whole = [chunk for chunk in chunks if chunk is not None]
        if len(whole) < count or sum(map(len, whole)) != snapshot.size:
            raise StateCorrupt("a stored snapshot is not there whole")
        return await asyncio.to_thread(b"".join, whole)

    async def keep(self, key: SessionKey, position: Position, snapshot: SnapshotRef) -> bool:
        """Move the base forward, where the position is one of this history."""
        reply = await self._functions.session(
            "keep",
            key,
            position.version,
            position.chain,
            written(snapshot),
            self._limits.log_records,
            self._limits.log_bytes,
            self._limits.tombstone_ms,
            changes=True,
        )
        return bool(reply.content[0] == b"OK")

    async def name(
        self, key: SessionKey, name: str, position: Position, info: bytes, snapshot: SnapshotRef
    ) -> NamedSnapshot | Stale:
        """Give the present state a name."""
        named = NamedSnapshot(name=name, version=position.version, created_at_ms=0, info=info, state=snapshot)
        reply = await self._functions.session(
            "name_snapshot",
            key,
            named.name.encode(),
            position.version,
            position.chain,
            named.info,
            written(snapshot),
            self._limits.named_snapshots,
            self._limits.tombstone_ms,
            changes=True,
        )
        fields = reply.content
        match fields[0]:
            case b"STALE":
                return Stale(current=Position(int(fields[1]), fields[2]))
            case b"EXISTS":
                raise SnapshotExists("another version of the session has a snapshot of this name")
            case b"FULL":
                raise TooLarge("named snapshots", int(fields[1]), self._limits.named_snapshots)
        return _named(name, fields[1])

    async def named(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all that have a name, oldest version first."""
        reply = await self._functions.session("named", key, self._limits.tombstone_ms, changes=False)
        rows = zip(reply.content[1::2], reply.content[2::2], strict=True)
        found = [_named(name.decode(), entry) for name, entry in rows]
        return sorted(found, key=lambda one: (one.version, one.created_at_ms, one.name))

    async def drop(self, key: SessionKey, name: str) -> None:
        """Remove one that has a name."""
        await self._functions.session("drop", key, name.encode(), self._limits.tombstone_ms, changes=True)

    async def _read(self, key: SessionKey, snapshot: SnapshotRef, numbers: range) -> Sequence[bytes | None]:
        reply = await self._link.call("HMGET", _place(key, snapshot), *numbers, changes=False)
        return list(reply.content)


def written(state: bytes | SnapshotRef | None) -> str:
    """Return how a snapshot is written in the store; empty for anything else."""
    return f"{state.generation}:{state.size}" if isinstance(state, SnapshotRef) else ""


def read(snapshot: bytes) -> SnapshotRef:
    """Return what `written` wrote."""
    generation, size = snapshot.decode().split(":")
    return SnapshotRef(generation=generation, size=int(size))


def _place(key: SessionKey, snapshot: SnapshotRef) -> str:
    return session_key(key, f"snap:{snapshot.generation}")


def _named(name: str, entry: bytes) -> NamedSnapshot:
    try:
        version, created_at, snapshot, info = entry.split(b"|", 3)
        return NamedSnapshot(
            name=name, version=int(version), created_at_ms=int(created_at), info=info, state=read(snapshot)
        )
    except ValueError as error:
        raise StateCorrupt("a named snapshot in the store cannot be read") from error
