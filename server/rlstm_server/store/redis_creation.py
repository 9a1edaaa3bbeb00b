"""Creating a session in Redis, whose keys and those of its tenant may lie on different machines.

So it takes three steps, each safe to repeat: place the session under an expiry, claim its name and operation
id, then make it permanent. A crash in between leaves nothing but hints that point nowhere, and whoever meets
one removes it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rlstm_server.errors import IdempotencyMismatch, NotFound, OutcomeUnknown, SessionExists, StoreUnavailable
from rlstm_server.store.base import (
    Creation,
    CreationOutcome,
    CreationReplayed,
    Head,
    Retention,
    SessionKey,
)
from rlstm_server.store.redis_client import RedisLink

_TRIES: Final = 3


class RedisCreations:
    """Creations, and the hints of a tenant that lead to its sessions."""

    def __init__(self, link: RedisLink, limits: Retention) -> None:
        self._link = link
        self._limits = limits

    async def _create(self, creation: Creation) -> CreationOutcome:
        """Place the session, claim its name and operation, make it permanent."""
        for _ in range(_TRIES):
            head = await self._place(creation)
            outcome = await self._claim(creation, head)
            if outcome is not None:
                return outcome
        raise StoreUnavailable("the store changed under the creation of a session; try again")

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | None:
        """Ask for the session that an operation made; a placed one is made permanent."""
        reply = await self._link.tenant(
            "recall_creation",
            tenant,
            operation_id.encode(),
            body_hash.hex(),
            self._limits.operation_age_ms,
            changes=True,
        )
        match reply.content[0]:
            case b"UNKNOWN":
                return None
            case b"MISMATCH":
                raise IdempotencyMismatch
        made = SessionKey(tenant, reply.content[1].decode())
        answer = await self._confirm(made, b"", operation_id)
        reply.require_replicas()
        return None if answer is None else CreationReplayed(session_id=made.session_id, answer=answer)

    async def _release(self, key: SessionKey, name: bytes, operation_id: str = "") -> None:
        """Remove the hints that lead to a session which is not there."""
        with suppress(StoreUnavailable):  # a hint: whoever meets it next removes it
            await self._link.tenant(
                "release", key.tenant, key.session_id, name, operation_id.encode(), changes=False
            )

    async def _place(self, creation: Creation) -> Head:
        """Write the session; it vanishes by itself unless it is made permanent."""
        revision = creation.revision
        reply = await self._link.session(
            "create",
            creation.key,
            revision.chain,
            (creation.name or "").encode(),
            creation.info,
            creation.state,
            creation.ttl_ms,
            creation.answer,
            self._limits.provisional_ms,
            changes=False,  # nobody knows of it yet
        )
        return Head(
            key=creation.key,
            revision=revision,
            name=creation.name,
            info=creation.info,
            state=creation.state,
            created_at_ms=int(reply[1]),
            expires_at_ms=int(reply[2]),
            ttl_ms=creation.ttl_ms,
        )

    async def _claim(self, creation: Creation, head: Head) -> CreationOutcome | None:
        """Claim and confirm; None when a claim that led nowhere was removed and all must be tried again."""
        key = creation.key
        reply = await self._link.tenant(
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
            created = await self._make_permanent(creation, head)
            reply.require_replicas()
            return created
        if word == b"MISMATCH":
            await self._withdraw(key)
            raise IdempotencyMismatch
        name, other = (creation.name or "").encode(), SessionKey(key.tenant, reply.content[1].decode())
        if word == b"TAKEN":
            if (await self._look_at(other))[0] not in (b"GONE", b"NOT_FOUND"):
                await self._withdraw(key)
                raise SessionExists("another session has this name")
            await self._release(other, name)
            return None
        answer = await self._confirm(other, name, creation.operation_id)
        reply.require_replicas()
        if answer is None:
            return None
        await self._withdraw(key)
        return CreationReplayed(session_id=other.session_id, answer=answer)

    async def _withdraw(self, key: SessionKey) -> None:
        """Take back a session that was placed."""
        with suppress(StoreUnavailable):  # it has an expiry
            await self._link.session("withdraw", key, changes=False)

    async def _make_permanent(self, creation: Creation, head: Head) -> Head | None:
        try:
            name = (creation.name or "").encode()
            answer = await self._confirm(creation.key, name, creation.operation_id)
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                "the store did not confirm the new session; repeat with the same key"
            ) from error
        return None if answer is None else head

    async def _confirm(self, key: SessionKey, name: bytes, operation_id: str) -> bytes | None:
        """Make a placed session permanent; None, and its hints removed, when it is not there any more."""
        try:
            reply = await self._link.session("confirm", key, self._limits.tombstone_ms, changes=True)
        except NotFound:
            await self._release(key, name, operation_id)
            return None
        return bytes(reply[1])

    async def _look_at(self, key: SessionKey) -> Sequence[Any]:
        """Return a session's head without its state, or the reply that says why there is none."""
        return await self._link.session(
            "load", key, self._limits.tombstone_ms, 0, "", b"", changes=False, absent=True
        )
