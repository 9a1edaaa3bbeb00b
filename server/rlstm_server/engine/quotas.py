"""How much a tenant may keep in the store. What a key may use up in a second is in caller.py and queue.py."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rlstm_server.caller import Call
from rlstm_server.errors import Gone, NotFound, RateLimited, StateCorrupt
from rlstm_server.store.base import Head, SessionKey, SessionStore

COUNT_SECONDS: Final = 2.0
"""How long the bytes that a tenant keeps need not be counted again."""

COUNT_SHARE: Final = 1 / 10
"""How much of the time is spent on that at most: of many sessions a count may be older."""

PAGE: Final = 100
RETRY_SECONDS: Final = 30.0
"""A session that ends makes room, and nobody knows when: this is how often asking again is reasonable."""


@dataclass(eq=False)
class _Tenant:
    """What a tenant keeps in bytes, as far as is known, until when that is good, and who may add to it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept_bytes: int = 0
    counted: bool = False
    stale_at: float = 0.0


@dataclass(eq=False)
class StorageQuota:
    """Whether there is room for one more state of a tenant, where its key has limits.

    A session counts with what its state may come to (`state_bytes`), and with its named snapshots, so only
    what makes one of these asks here: one after the other, so that nobody is refused for what is on its way
    and may fail. This server's own are seen at once, those of others as late as a count is old.
    """

    store: SessionStore
    state_bytes: Callable[[Head], int]
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    @asynccontextmanager
    async def reserve(self, caller: Call, size: int, *, sessions: int) -> AsyncIterator[None]:
        """Keep room for so many bytes of a state, and for so many sessions, while they are stored.

        Raises RateLimited where there is none.
        """
        quota, tenant = caller.quota, caller.tenant
        if quota.sessions is None and quota.stored_bytes is None:
            yield
            return
        held = self._tenants.setdefault(tenant, _Tenant())
        async with held.turn:
            if sessions and quota.sessions is not None:
                _within("sessions", await self.store.count(tenant) + sessions, quota.sessions)
            if quota.stored_bytes is not None:
                over = held.kept_bytes + size > quota.stored_bytes
                if time.monotonic() >= held.stale_at or (over and not held.counted):
                    await self._count(tenant, held)
                _within("stored bytes", held.kept_bytes + size, quota.stored_bytes)
            yield
            held.kept_bytes += size
            held.counted = False

    async def _count(self, tenant: str, held: _Tenant) -> None:
        began, total, cursor = time.monotonic(), 0, None
        while True:
            page = await self.store.list(tenant, limit=PAGE, cursor=cursor)
            total += sum(self.state_bytes(head) for head in page.sessions)
            total += sum(await asyncio.gather(*(self._named_bytes(head.key) for head in page.sessions)))
            if (cursor := page.cursor) is None:
                break
        ended = time.monotonic()
        held.kept_bytes, held.counted = total, True
        held.stale_at = ended + max(COUNT_SECONDS, (ended - began) / COUNT_SHARE)

    async def _named_bytes(self, key: SessionKey) -> int:
        try:
            return sum(snapshot.state_bytes for snapshot in await self.store.named_snapshots(key))
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
