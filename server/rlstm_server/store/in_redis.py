"""RedisStore: sessions in Redis 7 or Valkey, shared by any number of replicas.

functions.lua does everything that must be atomic; this file, and those of creations and snapshots, only speak
to it. No reply is large: a state in one piece has a limit, and logs and snapshots are read piece by piece.
"""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rlstm_server.errors import (
    Gone,
    InternalError,
    InvalidField,
    NotFound,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
)
from rlstm_server.logs import LOGGER
from rlstm_server.store.base import (
    CHAIN_BYTES,
    Base,
    Commit,
    CommitOutcome,
    Committed,
    Creation,
    CreationOutcome,
    CreationReplayed,
    Durability,
    Head,
    Limits,
    Listed,
    LogRecord,
    Mismatch,
    Moved,
    NamedSnapshot,
    Page,
    Position,
    Replayed,
    SessionKey,
    SnapshotDue,
    SnapshotRef,
    Stale,
    Usage,
    first_position,
    next_position,
)
from rlstm_server.store.cursor import read_cursor, write_cursor
from rlstm_server.store.redis_check import (
    check_functions,
    check_settings,
    ensure_functions,
    find_concerns,
    read_servers,
)
from rlstm_server.store.redis_creation import RedisCreations
from rlstm_server.store.redis_functions import LIBRARY, RedisFunctions, tenant_key
from rlstm_server.store.redis_link import RedisLink, Replicas, Reply
from rlstm_server.store.redis_server import Argument
from rlstm_server.store.redis_snapshots import RedisSnapshots, read, written

_TENANTS: Final = "rlstm:tenants"


class RedisStore:
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
        limits: Limits | None = None,
        timeout_s: float = 1.5,
        connections: int = 8,
        durability: Durability = "fsync",
        allow_weaker: bool = False,
        install: bool = True,
        shared: bool = True,
        replica_s: float = 1.0,
    ) -> None:
        self._link = RedisLink(url, timeout_s=timeout_s, connections=connections)
        self._limits = limits or Limits()
        self._functions = RedisFunctions(self._link)
        self._creations = RedisCreations(self._link, self._functions, self._limits)
        self._snapshots = RedisSnapshots(self._link, self._functions, self._limits)
        self._wanted = durability
        self._allow_weaker = allow_weaker
        self._install = install
        self._shared = shared
        self._replicas = Replicas(number=1, within_s=replica_s, mark=f"{LIBRARY}_mark")
        self._durability: Durability = "memory"

    @property
    def durability(self) -> Durability:
        """What `check` found: as asked for, or less where `allow_weaker` accepted that."""
        return self._durability

    async def check(self) -> None:
        """Check settings and function library; on errors.StartupError, which names all faults, close."""
        try:
            servers = await read_servers(self._link)
            self._durability = await check_settings(
                self._link, servers, wanted=self._wanted, allow_weaker=self._allow_weaker
            )
            await (ensure_functions if self._install else check_functions)(self._link)
            for concern in await find_concerns(self._link) if self._shared else ():
                logging.getLogger(LOGGER).warning(concern)
        except BaseException:
            await self.close()
            raise
        if self._durability == "replica":
            self._link.wait_for_replicas(self._replicas)

    async def ping(self) -> None:
        """Return if the store answers. Raises errors.StoreUnavailable."""
        await self._link.call_all("PING")

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session, in three steps."""
        limits = self._limits
        await self._admit(limits.import_below if creation.brought else limits.create_below)
        await self._link.call("SADD", _TENANTS, creation.key.tenant, changes=False)
        return await self._creations.create(creation)

    async def load_head(
        self, key: SessionKey, *, known: Position | None = None, with_state: bool = True
    ) -> Head:
        """Return the newest version, in one round trip."""
        version, chain = (known.version, known.chain) if known else ("", b"")
        reply = await self._functions.session(
            "load", key, self._limits.tombstone_ms, int(with_state), version, chain, changes=False
        )
        return _head(reply.content)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation, in one round trip."""
        limits = self._limits
        arguments: tuple[Argument, ...] = (
            commit.operation_id.encode(),
            commit.body_hash.hex(),
            "" if commit.if_match is None else commit.if_match,
            commit.expects.version,
            commit.expects.chain,
            commit.position.chain,
            commit.record,
            commit.info,
            commit.state if isinstance(commit.state, bytes) else b"",
            written(commit.state),
            commit.ttl_ms,
            commit.answer,
            commit.summary,
            limits.operations,
            limits.operation_age_ms,
            limits.answers,
            limits.answer_bytes,
            limits.log_records,
            limits.log_bytes,
            limits.tombstone_ms,
        )
        try:
            reply = await self._functions.session("commit", commit.key, *arguments, changes=True)
        except StoreFull:
            # "not applied" would be a lie if an earlier try of the same operation was
            reply = await self._recall(commit.key, commit.operation_id, commit.body_hash, changes=True)
            if reply.content[0] == b"UNKNOWN":
                raise
        if reply.content[0] == b"OK" and reply.content[3] == b"1":
            await self._reindex(commit.key, reply.content[2])
        return _commit_outcome(commit, reply)

    async def recall(
        self, key: SessionKey, operation_id: str, body_hash: bytes
    ) -> Replayed | Mismatch | None:
        """Ask for an operation, in one round trip."""
        reply = await self._recall(key, operation_id, body_hash, changes=True)
        return None if reply.content[0] == b"UNKNOWN" else _known(reply.content)

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | Mismatch | None:
        """Ask for a creation, and finish it if it was not."""
        return await self._creations.recall(tenant, operation_id, body_hash)

    async def read_log(self, key: SessionKey, *, after: int, limit: int = 100) -> Sequence[LogRecord]:
        """Return the records kept with a version above `after`, oldest first, some at a time."""
        records, is_cut = await self._read_log(key, after, limit)
        while is_cut and len(records) < limit:
            last = records[-1].version
            more, is_cut = await self._read_log(key, last, limit - len(records))
            # behind a gap: what lay between was dropped meanwhile, and so was what came before
            records = more if more and more[0].version > last + 1 else [*records, *more]
        return records

    async def put_snapshot(self, key: SessionKey, state: bytes, *, brought: bool = False) -> SnapshotRef:
        """Write a state in chunks, if there is room for all of it."""
        await self._admit(self._limits.import_below if brought else 1.0, more=len(state))
        return await self._snapshots.put(key, state)

    async def get_snapshot(self, key: SessionKey, snapshot: SnapshotRef) -> bytes:
        """Read a state, chunk by chunk."""
        return await self._snapshots.get(key, snapshot)

    async def keep_snapshot(self, key: SessionKey, position: Position, snapshot: SnapshotRef) -> bool:
        """Move the base forward, in one round trip."""
        return await self._snapshots.keep(key, position, snapshot)

    async def name_snapshot(
        self, key: SessionKey, name: str, position: Position, info: bytes, snapshot: SnapshotRef
    ) -> NamedSnapshot | Stale:
        """Give the present state a name, in one round trip."""
        return await self._snapshots.name(key, name, position, info, snapshot)

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Return all that have a name."""
        return await self._snapshots.named(key)

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove one that has a name."""
        await self._snapshots.drop(key, name)

    async def delete(self, key: SessionKey) -> None:
        """End the session, then remove the hints that lead to it; should that fail, the sweep does."""
        await self._reindex(key, b"0")
        reply = await self._functions.session("delete", key, self._limits.tombstone_ms, changes=True)
        await self._creations.release(key, reply.content[1])

    async def find(self, tenant: str, name: str) -> str:
        """Return the id behind the name, if the session is there."""
        reply = await self._link.call("HGET", tenant_key(tenant, "names"), name.encode(), changes=False)
        if reply.content is None:
            raise NotFound
        key = SessionKey(tenant, reply.content.decode())
        try:
            await self.load_head(key, with_state=False)
        except (Gone, NotFound):
            await self._creations.release(key, name.encode())
            raise NotFound from None
        return key.session_id

    async def list(self, tenant: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page, without the sessions that ended since they were indexed."""
        if limit < 1:
            raise InvalidField("limit", "limit must be at least 1")
        created_at_ms, session_id = read_cursor(cursor)
        reply = await self._functions.tenant("page", tenant, created_at_ms, session_id, limit, changes=False)
        fields = reply.content[1:]
        rows = [(int(at), i.decode()) for i, at in zip(fields[::2], fields[1::2], strict=True)]
        found = [await self._listed(SessionKey(tenant, i)) for _, i in rows]
        return Page(
            sessions=tuple(listed for listed in found if listed is not None),
            cursor=write_cursor(*rows[-1]) if len(rows) == limit else None,
        )

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

    async def usage(self) -> Usage:
        """Read the memory figures of the fullest server."""
        servers = (await self._link.call_all("INFO")).values()
        return max(map(_usage, servers), key=lambda usage: usage.used_bytes / (usage.max_bytes or math.inf))

    async def close(self) -> None:
        """Close all connections."""
        await self._link.close()

    async def _tenants(self) -> Sequence[str]:
        reply = await self._link.call("SMEMBERS", _TENANTS, changes=False)
        return [tenant.decode() for tenant in reply.content]

    async def _admit(self, share: float, more: int = 0) -> None:
        usage = await self.usage()
        if usage.max_bytes and usage.used_bytes + more > share * usage.max_bytes:
            raise StoreFull("the store has no room for this; live sessions stay as they are")

    async def _read_log(self, key: SessionKey, after: int, limit: int) -> tuple[Sequence[LogRecord], bool]:
        """Return a chunk of the log, and whether more may follow."""
        limits = self._limits
        reply = await self._functions.session(
            "read_log", key, after, limit, limits.chunk_bytes, limits.tombstone_ms, changes=False
        )
        _, is_cut, version, chain, *fields = reply.content
        rows = [fields[start : start + 5] for start in range(0, len(fields), 5)]
        head = Position(int(version), chain)
        check_log(rows, first_position(key), head, is_end=is_cut == b"0" and len(rows) < limit)
        records = [LogRecord(version=int(v), operation_id=o.decode(), record=r) for v, o, r, _, _ in rows]
        return records, is_cut == b"1"

    async def _recall(self, key: SessionKey, operation_id: str, body_hash: bytes, *, changes: bool) -> Reply:
        """Ask for an operation; `changes` if a try of our own may be what is found."""
        return await self._functions.session(
            "recall",
            key,
            operation_id.encode(),
            body_hash.hex(),
            self._limits.operation_age_ms,
            self._limits.answers,
            self._limits.tombstone_ms,
            changes=changes,
        )

    async def _listed(self, key: SessionKey) -> Listed | None:
        try:
            head = await self.load_head(key, with_state=False)
        except (Gone, NotFound):
            await self._creations.release(key, b"")
            return None
        except StateCorrupt:
            return None
        return Listed(session_id=key.session_id, head=head)

    async def _sweep(self, tenant: str, at_once: int) -> int:
        """Bury all that are due; one that cannot be looked at now is passed by."""
        buried = 0
        while True:
            due = (await self._functions.tenant("due", tenant, at_once, changes=False)).content[1:]
            passed_by = 0
            for session_id in due:
                try:
                    buried += await self._bury_if_due(SessionKey(tenant, session_id.decode()))
                except InternalError:
                    passed_by += 1
            if len(due) < at_once or passed_by:
                return buried

    async def _bury_if_due(self, key: SessionKey) -> bool:
        reply = await self._functions.session_or_absence(
            "load", key, self._limits.tombstone_ms, 0, "", b"", changes=False
        )
        fields = reply.content
        if fields[0] in (b"OK", b"FORM"):
            await self._reindex(key, fields[4] if fields[0] == b"OK" else fields[1])
            return False
        await self._creations.release(key, fields[3] if fields[0] == b"GONE" else b"")
        return True

    async def _reindex(self, key: SessionKey, expires_at_ms: bytes) -> None:
        with suppress(StoreUnavailable):  # a hint: the sweeper comes later than it could
            await self._functions.tenant("reindex", key.tenant, key.session_id, expires_at_ms, changes=False)


def check_log(rows: Sequence[Sequence[bytes]], first: Position, head: Position, *, is_end: bool) -> None:
    """Follow the running hash through a piece of a log, from version 0 and to the head if it reaches them.

    Raises errors.StateCorrupt if a record was changed, left out, or belongs to another history.
    """
    at: Position | None = None
    for version, _, record, before, after in rows:
        expected = first if int(version) == 1 else at
        found = Position(int(version) - 1, before) if len(before) == CHAIN_BYTES else None
        at = next_position(found, record) if found else None
        if at is None or at.chain != after or expected not in (None, found):
            raise StateCorrupt("a stored record is damaged, or not of this session")
    if at and at != head and (is_end or at.version == head.version):
        raise StateCorrupt("the stored records do not lead to the session's version")


def _usage(info: bytes) -> Usage:
    lines = info.decode().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return Usage(
        used_bytes=int(fields["used_memory"]),
        max_bytes=int(fields["maxmemory"]),
        evicted_keys=int(fields["evicted_keys"]),
    )


def _head(reply: Sequence[Any]) -> Head:
    _, version, chain, created_at, expires_at, ttl, name, info, *bases = reply
    try:
        return Head(
            position=Position(int(version), chain),
            name=name.decode() or None,
            info=info,
            base=_base(*bases) if bases else None,
            created_at_ms=int(created_at),
            expires_at_ms=int(expires_at),
            ttl_ms=int(ttl),
        )
    except ValueError as error:
        raise StateCorrupt("the session's head in the store cannot be read") from error


def _base(version: bytes, snapshot: bytes, state: bytes, *previous: bytes) -> Base:
    return Base(
        version=int(version),
        state=read(snapshot) if snapshot else state,
        previous=_base(*previous) if previous else None,
    )


def _commit_outcome(commit: Commit, reply: Reply) -> CommitOutcome:
    fields = reply.content
    match fields[0]:
        case b"OK":
            return Committed(position=commit.position, expires_at_ms=int(fields[2]))
        case b"REPLAY" | b"MISMATCH":
            known = _known(fields)
            here = commit.position
            if (
                reply.resent
                and isinstance(known, Replayed)
                and (known.version, known.current) == (here.version, here)
            ):
                # our first try was applied, only its reply was lost
                return Committed(position=here, expires_at_ms=int(fields[7]))
            return known
        case b"MOVED":
            return Moved(current=int(fields[1]))
        case b"SNAPSHOT_DUE":
            return SnapshotDue()
        case _:
            return Stale(current=Position(int(fields[1]), fields[2]))


def _known(fields: Sequence[Any]) -> Replayed | Mismatch:
    if fields[0] == b"MISMATCH":
        return Mismatch()
    try:
        return Replayed(
            version=int(fields[1]),
            answer=fields[3] if fields[2] == b"1" else None,
            summary=fields[4],
            current=Position(int(fields[5]), fields[6]),
        )
    except ValueError as error:
        raise StateCorrupt("the session's head in the store cannot be read") from error
