"""What tenants keep in the store, against what their keys allow: sessions, and bytes of states.

A session counts with what its state may come to, and with its named snapshots, so only what makes one of
these asks here. This server's own are seen at once, those of others as late as a count is old. Nobody is
refused for what is on its way and may fail: that is waited for. Nor for what may have been counted twice:
then it is counted again.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rlstm_server.engine.description import session_info
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.models import Models
from rlstm_server.engine.quotas import Allowance, Caller
from rlstm_server.errors import Gone, InvalidField, ModelMismatch, NotFound, RateLimited, StateCorrupt
from rlstm_server.store.base import Listed, SessionKey

COUNT_SECONDS: Final = 2.0
"""How long the bytes that a tenant keeps need not be counted again."""

COUNT_SHARE: Final = 1 / 10
"""How much of the time is spent on that at most: of many sessions a count may be older."""

PAGE: Final = 100
RETRY_SECONDS: Final = 30.0
"""A session that ends makes room, and nobody knows when: this is how often asking again is reasonable."""


@dataclass(eq=False)
class _Tenant:
    """What is known of a tenant.

    coming, coming_bytes    sessions that were let in and are on their way into the store, and bytes of states
    counted_bytes           what was there at the last count
    made_bytes              what this server has put there since that count began
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    coming: int = 0
    coming_bytes: int = 0
    counted_bytes: int = 0
    made_bytes: int = 0
    stale_at: float = 0.0


@dataclass(eq=False)
class Holdings:
    """Whether there is room for one more state of a tenant. Knows only tenants whose keys have limits."""

    store: MeteredStore
    models: Models
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    @asynccontextmanager
    async def room(self, caller: Caller, size: int, *, sessions: int) -> AsyncIterator[None]:
        """Keep room for so many bytes of a state, and for so many sessions, while they are stored.

        Raises RateLimited where there is none.
        """
        allowance = caller.allowance
        if allowance.sessions is None and allowance.stored_bytes is None:
            yield
            return
        held = self._tenants.setdefault(caller.tenant, _Tenant())
        async with held.turn:
            while not await self._fits(caller.tenant, held, allowance, size, sessions):
                await held.ended.wait()
            held.coming += sessions
            held.coming_bytes += size
        try:
            yield
            held.made_bytes += size
        finally:
            held.coming -= sessions
            held.coming_bytes -= size
            held.ended.set()

    async def _fits(self, tenant: str, held: _Tenant, allowance: Allowance, size: int, sessions: int) -> bool:
        """Whether it fits beside all that is coming. Raises RateLimited if it does not fit anyway."""
        held.ended.clear()
        # Taken before anything is counted: what arrives meanwhile is counted twice, rather than not at all.
        coming, coming_bytes = held.coming, held.coming_bytes
        try:
            if sessions and allowance.sessions is not None:
                _within("sessions", await self.store.count(tenant) + coming + sessions, allowance.sessions)
            if allowance.stored_bytes is not None:
                most = allowance.stored_bytes - coming_bytes - size
                kept = await self._kept_bytes(tenant, held, most)
                _within("stored bytes", kept + coming_bytes + size, allowance.stored_bytes)
        except RateLimited:
            if coming_bytes:
                return False
            raise
        return True

    async def _kept_bytes(self, tenant: str, held: _Tenant, most: int) -> int:
        """Bytes that the tenant keeps; if that seems to be more than `most`, none of them counted twice."""
        if time.monotonic() >= held.stale_at:
            await self._count(tenant, held)
        if held.made_bytes and held.counted_bytes + held.made_bytes > most:
            await self._count(tenant, held)
        return held.counted_bytes + held.made_bytes

    async def _count(self, tenant: str, held: _Tenant) -> None:
        began, made_before = time.monotonic(), held.made_bytes
        total, cursor = 0, None
        while True:
            page = await self.store.list(tenant, limit=PAGE, cursor=cursor)
            total += sum(self._state_bytes(listed) for listed in page.sessions)
            keys = (SessionKey(tenant, listed.session_id) for listed in page.sessions)
            total += sum(await asyncio.gather(*(self._named_bytes(key) for key in keys)))
            if (cursor := page.cursor) is None:
                break
        ended = time.monotonic()
        held.counted_bytes = total
        held.made_bytes -= made_before
        held.stale_at = ended + max(COUNT_SECONDS, (ended - began) / COUNT_SHARE)

    def _state_bytes(self, listed: Listed) -> int:
        """What a session's state may come to; of a damaged description nobody can say."""
        try:
            info = session_info(listed.session_id, listed.head)
        except StateCorrupt:
            return 0
        try:
            served = self.models.with_identity(info.fingerprint, info.adaptation_fingerprint)
            return max(info.state_bytes, served.state_bytes(info.adaptation))
        except (InvalidField, ModelMismatch):  # of a model that is not served here, or a calibration that was
            return info.state_bytes

    async def _named_bytes(self, key: SessionKey) -> int:
        try:
            return sum(snapshot.state.size for snapshot in await self.store.named_snapshots(key))
        except (Gone, NotFound, StateCorrupt):
            return 0


def _within(what: str, given: int, limit: int) -> None:
    if given > limit:
        raise RateLimited(
            f"{what}: {given:,} wanted, at most {limit:,} allowed",
            quota=what,
            given=given,
            limit=limit,
            retry_after=RETRY_SECONDS,
        )
