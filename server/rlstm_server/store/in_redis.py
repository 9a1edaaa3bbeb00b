"""RedisStore: sessions in Redis 7 or Valkey, shared by any number of replicas.

functions.lua does everything that must be atomic; this file only speaks to it. Creating a session touches
keys of the session and of the tenant, which may lie on different machines, so it takes three steps, each safe
to repeat: place the session under an expiry, claim its name and operation id, then make it permanent. A crash
in between leaves nothing but hints that point nowhere, and whoever meets one removes it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rlstm_server.errors import (
    Gone,
    InvalidField,
    NotFound,
    OutcomeUnknown,
    SessionExists,
    StoreFull,
    StoreUnavailable,
)
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Committed,
    Created,
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
    Page,
    Position,
    Replayed,
    SessionKey,
    Stale,
    Usage,
)
from rlstm_server.store.cursor import read_cursor, write_cursor
from rlstm_server.store.redis_check import check_settings, install_functions
from rlstm_server.store.redis_functions import RedisFunctions, session_key, tenant_key
from rlstm_server.store.redis_link import Argument, RedisLink, Reply

_TENANTS: Final = "rlstm:tenants"
_CREATE_TRIES: Final = 3


class RedisStore:
    """Sessions in the server at `url` (redis://, rediss:// or unix://).

    timeout_s       how long one try of a command may take; each gets two
    allow_weaker    accept, in `check`, a server that can lose acknowledged operations; `durability` says so
    install         let `check` install the function library (needs a user who may)
    """

    def __init__(
        self,
        url: str,
        *,
        limits: Limits | None = None,
        timeout_s: float = 1.5,
        connections: int = 8,
        allow_weaker: bool = False,
        install: bool = True,
    ) -> None:
        self._link = RedisLink(url, timeout_s=timeout_s, connections=connections)
        self._functions = RedisFunctions(self._link)
        self._limits = limits or Limits()
        self._allow_weaker = allow_weaker
        self._install = install
        self._durability: Durability = "memory"

    @property
    def durability(self) -> Durability:
        """What `check` found: ``fsync``, or ``memory`` for a server that may lose the last operations."""
        return self._durability

    async def check(self) -> None:
        """Check settings and function library; on errors.StartupError, which names all faults, close."""
        try:
            self._durability = await check_settings(self._link, allow_weaker=self._allow_weaker)
            await install_functions(self._link, install=self._install)
        except BaseException:
            await self.close()
            raise

    async def ping(self) -> None:
        """Return if the store answers. Raises errors.StoreUnavailable."""
        await self._link.call("PING", changes=False)

    async def create(self, creation: Creation) -> CreationOutcome:
        """Place the session, claim its name and operation, make it permanent."""
        await self._admit()
        await self._link.call("SADD", _TENANTS, creation.key.tenant, changes=False)
        for _ in range(_CREATE_TRIES):
            head = await self._place(creation)
            outcome = await self._claim(creation, head)
            if outcome is not None:
                return outcome
        raise StoreUnavailable("the store changed under the creation of a session; try again")

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
            commit.state,
            commit.ttl_ms,
            commit.answer,
            commit.summary,
            limits.operations,
            limits.operation_age_ms,
            limits.answers,
            limits.answer_bytes,
            limits.log_records,
            limits.tombstone_ms,
        )
        try:
            reply = await self._functions.session("commit", commit.key, *arguments, changes=True)
        except StoreFull:
            # "not applied" would be a lie if an earlier try of the same operation was
            reply = await self._recall(commit)
            if reply.content[0] == b"UNKNOWN":
                raise
        if reply.content[0] == b"OK" and reply.content[3] == b"1":
            await self._reindex(commit.key, reply.content[2])
        return _commit_outcome(commit, reply)

    async def read_log(self, key: SessionKey, *, after: int, limit: int = 100) -> Sequence[LogRecord]:
        """Return the records kept with a version above `after`, oldest first."""
        reply = await self._functions.session(
            "read_log", key, after, limit, self._limits.tombstone_ms, changes=False
        )
        fields = reply.content[1:]
        rows = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
        return [LogRecord(version=int(v), operation_id=o.decode(), record=r) for v, o, r in rows]

    async def delete(self, key: SessionKey) -> None:
        """End the session, then remove the hints that lead to it."""
        reply = await self._functions.session("delete", key, self._limits.tombstone_ms, changes=True)
        await self._release(key, reply.content[1])

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

    async def sweep(self, *, limit: int = 100) -> int:
        """Visit the sessions that are due by the index; one that lives on is indexed anew."""
        buried = 0
        tenants = await self._link.call("SMEMBERS", _TENANTS, changes=False)
        for tenant in tenants.content:
            due = await self._functions.tenant("due", tenant.decode(), limit, changes=False)
            for session_id in due.content[1:]:
                buried += await self._bury_if_due(SessionKey(tenant.decode(), session_id.decode()))
        return buried

    async def usage(self) -> Usage:
        """Read the server's memory figures."""
        reply = await self._link.call("INFO", "memory", "stats", changes=False)
        lines = reply.content.decode().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return Usage(
            used_bytes=int(fields["used_memory"]),
            max_bytes=int(fields["maxmemory"]),
            evicted_keys=int(fields["evicted_keys"]),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._link.close()

    async def _admit(self) -> None:
        usage = await self.usage()
        if usage.max_bytes and usage.used_bytes > self._limits.create_below * usage.max_bytes:
            raise StoreFull("the store has no room for new sessions; live sessions stay as they are")

    async def _place(self, creation: Creation) -> Head:
        position = creation.position
        reply = await self._functions.session(
            "create",
            creation.key,
            position.chain,
            (creation.name or "").encode(),
            creation.info,
            creation.state,
            creation.ttl_ms,
            creation.answer,
            self._limits.provisional_ms,
            changes=False,  # nobody knows of it yet
        )
        return Head(
            position=position,
            name=creation.name,
            info=creation.info,
            state=creation.state,
            created_at_ms=int(reply.content[1]),
            expires_at_ms=int(reply.content[2]),
            ttl_ms=creation.ttl_ms,
        )

    async def _claim(self, creation: Creation, head: Head) -> CreationOutcome | None:
        """Claim and confirm; None when a claim that led nowhere was removed and all must be tried again."""
        key = creation.key
        reply = await self._functions.tenant(
            "claim",
            key.tenant,
            creation.operation_id.encode(),
            creation.body_hash.hex(),
            key.session_id,
            (creation.name or "").encode(),
            head.created_at_ms,
            head.expires_at_ms,
            self._limits.operations,
            self._limits.operation_age_ms,
            changes=True,
        )
        word = reply.content[0]
        if word == b"OK":
            return await self._make_permanent(creation, head)
        await self._link.call("UNLINK", session_key(key, "head"), changes=False)
        if word == b"MISMATCH":
            return Mismatch()
        other = SessionKey(key.tenant, reply.content[1].decode())
        if word == b"TAKEN":
            await self._raise_if_taken(creation, other)
            return None
        answer = await self._confirm(creation, other)
        return None if answer is None else CreationReplayed(session_id=other.session_id, answer=answer)

    async def _make_permanent(self, creation: Creation, head: Head) -> Created | None:
        try:
            answer = await self._confirm(creation, creation.key)
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                "the store did not confirm the new session; repeat with the same key"
            ) from error
        return None if answer is None else Created(head=head)

    async def _confirm(self, creation: Creation, key: SessionKey) -> bytes | None:
        """Make a placed session permanent; None, and its hints removed, when it is not there any more."""
        try:
            reply = await self._functions.session("confirm", key, self._limits.tombstone_ms, changes=True)
        except NotFound:
            await self._release(key, (creation.name or "").encode(), creation.operation_id)
            return None
        return bytes(reply.content[1])

    async def _raise_if_taken(self, creation: Creation, other: SessionKey) -> None:
        try:
            await self.load_head(other, with_state=False)
        except (Gone, NotFound):
            await self._release(other, (creation.name or "").encode())
            return
        raise SessionExists("another session has this name")

    async def _recall(self, commit: Commit) -> Reply:
        return await self._functions.session(
            "recall",
            commit.key,
            commit.operation_id.encode(),
            commit.body_hash.hex(),
            self._limits.operation_age_ms,
            self._limits.answers,
            self._limits.tombstone_ms,
            changes=False,
        )

    async def _listed(self, key: SessionKey) -> Listed | None:
        try:
            head = await self.load_head(key, with_state=False)
        except (Gone, NotFound):
            return None
        return Listed(session_id=key.session_id, head=head)

    async def _bury_if_due(self, key: SessionKey) -> bool:
        reply = await self._functions.session_or_absence(
            "load", key, self._limits.tombstone_ms, 0, "", b"", changes=False
        )
        fields = reply.content
        if fields[0] == b"OK":
            await self._reindex(key, fields[4])
            return False
        await self._release(key, fields[3] if fields[0] == b"GONE" else b"")
        return True

    async def _reindex(self, key: SessionKey, expires_at_ms: bytes) -> None:
        with suppress(StoreUnavailable):  # a hint: the sweeper comes later than it could
            await self._functions.tenant("reindex", key.tenant, key.session_id, expires_at_ms, changes=False)

    async def _release(self, key: SessionKey, name: bytes, operation_id: str = "") -> None:
        with suppress(StoreUnavailable):  # a hint: whoever meets it next removes it
            await self._functions.tenant(
                "release", key.tenant, key.session_id, name, operation_id.encode(), changes=False
            )


def _head(reply: Sequence[Any]) -> Head:
    _, version, chain, created_at, expires_at, ttl, name, info, state = reply
    return Head(
        position=Position(int(version), chain),
        name=name.decode() or None,
        info=info,
        state=state or None,
        created_at_ms=int(created_at),
        expires_at_ms=int(expires_at),
        ttl_ms=int(ttl),
    )


def _commit_outcome(commit: Commit, reply: Reply) -> CommitOutcome:
    fields = reply.content
    match fields[0]:
        case b"OK":
            return Committed(position=commit.position, expires_at_ms=int(fields[2]))
        case b"REPLAY":
            current = Position(int(fields[5]), fields[6])
            if reply.resent and current == commit.position:
                # our first try was applied, only its reply was lost
                return Committed(position=current, expires_at_ms=int(fields[7]))
            return Replayed(
                version=int(fields[1]),
                answer=fields[3] if fields[2] == b"1" else None,
                summary=fields[4],
                current=current,
            )
        case b"MISMATCH":
            return Mismatch()
        case b"MOVED":
            return Moved(current=int(fields[1]))
        case _:
            return Stale(current=Position(int(fields[1]), fields[2]))
