"""RedisStore: sessions in Redis 7 or Valkey, shared by any number of replicas.

functions.lua does everything that must be atomic; this file, and that of creations, only speak to it.
"""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rlstm_server.errors import (
    Gone,
    InternalError,
    NotFound,
    SnapshotExists,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    VersionMismatch,
)
from rlstm_server.logs import LOGGER
from rlstm_server.settings import Durability
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Creation,
    CreationOutcome,
    Head,
    NamedSnapshot,
    Replayed,
    Retention,
    Revision,
    SessionKey,
    SessionStore,
    Stale,
    StoreUsage,
)
from rlstm_server.store.redis_check import (
    check_functions,
    check_settings,
    ensure_functions,
    find_concerns,
    read_servers,
)
from rlstm_server.store.redis_client import RedisLink, tenant_key
from rlstm_server.store.redis_creation import RedisCreations

_TENANTS: Final = "rlstm:tenants"


class RedisStore(RedisCreations, SessionStore):
    """Sessions in the servers at `url` (see `redis_address`).

    timeout_s       how long one try of a command may take; each gets two
    durability      what a change must survive; with ``replica`` it is told once a replica has it, too
    allow_weaker    accept, in `check`, a store that can lose acknowledged operations; `durability` says so
    install         let `check` install the function library, where the store's user may
    shared          others can reach the store: `check` warns of what they could do
    replica_s       how long a replica may take to have a change
    """

    def __init__(
        self,
        url: str,
        *,
        limits: Retention | None = None,
        timeout_s: float = 1.5,
        connections: int = 8,
        durability: Durability = "fsync",
        allow_weaker: bool = False,
        install: bool = True,
        shared: bool = True,
        replica_s: float = 1.0,
    ) -> None:
        link = RedisLink(url, timeout_s=timeout_s, connections=connections)
        super().__init__(link, limits or Retention())
        self._wanted = durability
        self._allow_weaker = allow_weaker
        self._install = install
        self._shared = shared
        self._replica_s = replica_s
        self.durability: Durability = "memory"
        """What `check` found: as asked for, or less where `allow_weaker` accepted that."""

    async def check(self) -> None:
        """Check settings and function library; on errors.StartupError, which names all faults, close."""
        try:
            servers = await read_servers(self._link)
            self.durability = await check_settings(
                self._link, servers, wanted=self._wanted, allow_weaker=self._allow_weaker
            )
            await (ensure_functions if self._install else check_functions)(self._link)
            for concern in await find_concerns(self._link) if self._shared else ():
                logging.getLogger(LOGGER).warning(concern)
        except BaseException:
            await self.close()
            raise
        if self.durability == "replica":
            self._link.wait_for_replicas(1, self._replica_s)

    async def ping(self) -> None:
        """Return if the store answers. Raises errors.StoreUnavailable."""
        await self._link.call_all("PING")

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session, in three steps."""
        limits = self._limits
        await self._admit(limits.import_below if creation.brought else limits.create_below)
        await self._link.call("SADD", _TENANTS, creation.key.tenant, changes=False)
        return await self._create(creation)

    async def load_head(
        self, key: SessionKey, *, known: Revision | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version, in one round trip."""
        version, chain = (known.version, known.chain) if known else ("", b"")
        reply = await self._link.session(
            "load", key, self._limits.tombstone_ms, int(with_state), version, chain, changes=False
        )
        return _head(key, reply)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation, in one round trip; one whose reply is lost is the caller's to send again."""
        limits = self._limits
        arguments = (
            commit.operation_id.encode(),
            commit.body_hash.hex(),
            "" if commit.if_match is None else commit.if_match,
            commit.expects.version,
            commit.expects.chain,
            commit.revision.chain,
            commit.info,
            commit.state,
            commit.ttl_ms,
            commit.summary,
            commit.details,
            limits.operations,
            limits.operation_age_ms,
            limits.details_bytes,
            limits.tombstone_ms,
        )
        try:
            reply = await self._link.session("commit", commit.key, *arguments, changes=True, again=False)
        except StoreFull:
            # "not applied" would be a lie if an earlier try of the same operation was
            reply = await self._recall(commit.key, commit.operation_id, commit.body_hash)
            if reply[0] == b"UNKNOWN":
                raise
        match reply[0]:
            case b"OK":
                if reply[3] == b"1":
                    await self._reindex(commit.key, reply[2])
                return Committed(revision=commit.revision, expires_at_ms=int(reply[2]))
            case b"REPLAY":
                return _replayed(reply)
            case b"MOVED":
                raise VersionMismatch(commit.if_match or 0, int(reply[1]))
            case _:
                return Stale(current=Revision(int(reply[1]), reply[2]))

    async def recall(self, key: SessionKey, operation_id: str, body_hash: bytes) -> Replayed | None:
        """Ask for an operation, in one round trip."""
        reply = await self._recall(key, operation_id, body_hash)
        return None if reply[0] == b"UNKNOWN" else _replayed(reply)

    async def name_snapshot(
        self, key: SessionKey, name: str, revision: Revision, info: bytes
    ) -> NamedSnapshot | Stale:
        """Copy the present state, in the store, in one round trip."""
        await self._admit(self._limits.import_below)
        reply = await self._link.session(
            "name_snapshot",
            key,
            name.encode(),
            revision.version,
            revision.chain,
            revision.chain.hex(),
            info,
            self._limits.named_snapshots,
            self._limits.tombstone_ms,
            changes=True,
        )
        match reply[0]:
            case b"STALE":
                return Stale(current=Revision(int(reply[1]), reply[2]))
            case b"EXISTS":
                raise SnapshotExists("another version of the session has a snapshot of this name")
            case b"FULL":
                raise TooLarge("named snapshots", int(reply[1]), self._limits.named_snapshots)
        return _named(name, reply[1], reply[2])

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all named snapshots, oldest version first."""
        reply = await self._link.session("named", key, self._limits.tombstone_ms, changes=False)
        rows = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        found = [_named(name.decode(), entry, size) for name, entry, size in rows]
        return sorted(found, key=lambda one: (one.version, one.created_at_ms, one.name))

    async def read_snapshot(self, key: SessionKey, name: str) -> tuple[NamedSnapshot, bytes]:
        """Return a named snapshot and its state, in one round trip."""
        reply = await self._link.session(
            "read_snapshot", key, name.encode(), self._limits.tombstone_ms, changes=False
        )
        if reply[0] == b"NO_SNAPSHOT":
            raise NotFound("the session has no such snapshot")
        _, entry, state = reply
        return _named(name, entry, len(state)), state

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove a named snapshot."""
        await self._link.session("drop_snapshot", key, name.encode(), self._limits.tombstone_ms, changes=True)

    async def delete(self, key: SessionKey) -> None:
        """End the session, then remove the hints that lead to it; should that fail, the sweep does."""
        await self._reindex(key, b"0")
        reply = await self._link.session("delete", key, self._limits.tombstone_ms, changes=True)
        await self._release(key, reply[1])

    async def find(self, tenant: str, name: str) -> str:
        """Return the id behind the name, if the session is there."""
        reply = await self._link.call("HGET", tenant_key(tenant, "names"), name.encode(), changes=False)
        if reply.content is None:
            raise NotFound
        key = SessionKey(tenant, reply.content.decode())
        try:
            await self.load_head(key, with_state=False)
        except (Gone, NotFound):
            await self._release(key, name.encode())
            raise NotFound from None
        return key.session_id

    async def _places(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[tuple[int, str]]:
        fields = (await self._link.tenant("page", tenant, *after, limit, changes=False)).content[1:]
        return [(int(at), i.decode()) for i, at in zip(fields[::2], fields[1::2], strict=True)]

    async def count(self, tenant: str) -> int:
        """Count the index."""
        reply = await self._link.call("ZCARD", tenant_key(tenant, "ids"), changes=False)
        return int(reply.content)

    async def total(self) -> int:
        """Count the indexes of all tenants."""
        return sum([await self.count(tenant) for tenant in await self._tenants()])

    async def sweep(self, *, limit: int = 100) -> int:
        """Visit the sessions that are due by the index; one that lives on is indexed anew."""
        return sum([await self._sweep(tenant, limit) for tenant in await self._tenants()])

    async def usage(self) -> StoreUsage:
        """Read the memory figures of the fullest server."""
        servers = (await self._link.call_all("INFO")).values()
        return max(map(_usage, servers), key=lambda usage: usage.used_bytes / (usage.max_bytes or math.inf))

    async def close(self) -> None:
        """Close all connections."""
        await self._link.aclose()

    async def _tenants(self) -> Sequence[str]:
        reply = await self._link.call("SMEMBERS", _TENANTS, changes=False)
        return [tenant.decode() for tenant in reply.content]

    async def _admit(self, share: float) -> None:
        usage = await self.usage()
        if usage.max_bytes and usage.used_bytes > share * usage.max_bytes:
            raise StoreFull("the store has no room for this; live sessions stay as they are")

    async def _recall(self, key: SessionKey, operation_id: str, body_hash: bytes) -> Sequence[Any]:
        """Ask for an operation; wait for replicas as a change does: it may find a try of our own."""
        return await self._link.session(
            "recall",
            key,
            operation_id.encode(),
            body_hash.hex(),
            self._limits.operation_age_ms,
            self._limits.tombstone_ms,
            changes=True,
        )

    async def _listed(self, key: SessionKey) -> Head | None:
        try:
            return await self.load_head(key, with_state=False)
        except (Gone, NotFound):
            await self._release(key, b"")
            return None
        except StateCorrupt:
            return None

    async def _sweep(self, tenant: str, at_once: int) -> int:
        """End all that are due; one that cannot be looked at now is passed by."""
        ended = 0
        while True:
            due = (await self._link.tenant("due", tenant, at_once, changes=False)).content[1:]
            passed_by = 0
            for session_id in due:
                try:
                    ended += await self._end_if_due(SessionKey(tenant, session_id.decode()))
                except InternalError:
                    passed_by += 1
            if len(due) < at_once or passed_by:
                return ended

    async def _end_if_due(self, key: SessionKey) -> bool:
        fields = await self._look_at(key)
        if fields[0] in (b"OK", b"FORM"):
            await self._reindex(key, fields[4] if fields[0] == b"OK" else fields[1])
            return False
        await self._release(key, fields[3] if fields[0] == b"GONE" else b"")
        return True

    async def _reindex(self, key: SessionKey, expires_at_ms: bytes) -> None:
        with suppress(StoreUnavailable):  # a hint: the sweeper comes later than it could
            await self._link.tenant("reindex", key.tenant, key.session_id, expires_at_ms, changes=False)


def _usage(info: bytes) -> StoreUsage:
    lines = info.decode().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return StoreUsage(
        used_bytes=int(fields["used_memory"]),
        max_bytes=int(fields["maxmemory"]),
        evicted_keys=int(fields["evicted_keys"]),
    )


def _head(key: SessionKey, reply: Sequence[Any]) -> Head:
    _, version, chain, created_at, expires_at, ttl, name, info, *state = reply
    try:
        return Head(
            key=key,
            revision=Revision(int(version), chain),
            name=name.decode() or None,
            info=info,
            state=state[0] if state else None,
            created_at_ms=int(created_at),
            expires_at_ms=int(expires_at),
            ttl_ms=int(ttl),
        )
    except ValueError as error:
        raise StateCorrupt("the session's head in the store cannot be read") from error


def _named(name: str, entry: bytes, state_bytes: int) -> NamedSnapshot:
    try:
        version, created_at, _, info = entry.split(b"|", 3)
        return NamedSnapshot(
            name=name,
            version=int(version),
            created_at_ms=int(created_at),
            info=info,
            state_bytes=int(state_bytes),
        )
    except ValueError as error:
        raise StateCorrupt("a named snapshot in the store cannot be read") from error


def _replayed(fields: Sequence[Any]) -> Replayed:
    try:
        return Replayed(
            version=int(fields[1]),
            details=fields[3] if fields[2] == b"1" else None,
            summary=fields[4],
            current=Revision(int(fields[5]), fields[6]),
            expires_at_ms=int(fields[7]),
        )
    except ValueError as error:
        raise StateCorrupt("the session's head in the store cannot be read") from error
