"""Quotas: what a key may use up in a second, and how much its tenant may keep in the store.

Work is charged when it is accepted, before it is done. A charge may be larger than what is left: the key then
waits until it is paid off. So a long text costs no more waiting than the same text in pieces, and no rate
forbids a text for its length. What took no effect is given back, and so is what was charged for tokens that
were not generated after all. But a reader that was shown the first of a text has had what was read for it,
and as much of the text as it took.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from rlstm_server.caller import Call, Quota, TokenBucket
from rlstm_server.errors import Gone, NotFound, RateLimited, ServerError, StateCorrupt
from rlstm_server.store.base import Listed, SessionKey, SessionStore

COUNT_SECONDS: Final = 2.0
"""How long the bytes that a tenant keeps need not be counted again."""

COUNT_SHARE: Final = 1 / 10
"""How much of the time is spent on that at most: of many sessions a count may be older."""

PAGE: Final = 100
RETRY_SECONDS: Final = 30.0
"""A session that ends makes room, and nobody knows when: this is how often asking again is reasonable."""


# ---- tokens a second --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Charge:
    """What one piece of work was charged so far, in tokens."""

    quota: Quota
    _charged: dict[TokenBucket, int] = field(default_factory=dict)
    _kept: bool = False

    def add(
        self, *, tokens: int | None = None, learned: int | None = None, generated: int | None = None
    ) -> None:
        """Charge so much in all: work that is done again is charged once, and less than before given back.

        Raises RateLimited, having charged nothing.
        """
        limits = self.quota
        wanted = ((limits.tokens, tokens), (limits.learned, learned), (limits.generated, generated))
        due = [(bucket, count) for bucket, count in wanted if bucket is not None and count is not None]
        for bucket, count in due:
            if count and bucket not in self._charged:
                bucket.check()
        for bucket, count in due:
            bucket.use(count - self._charged.get(bucket, 0))
            self._charged[bucket] = count

    def keep(self) -> None:
        """Give nothing back from now on: the work was of use."""
        self._kept = True

    def refund(self) -> None:
        """Give everything back, unless it is kept."""
        if self._kept:
            return
        for bucket, count in self._charged.items():
            bucket.use(-count)
        self._charged.clear()


@contextmanager
def charging(quota: Quota) -> Iterator[Charge]:
    """A charge for the work inside; it is given back when that fails and was not applied."""
    charge = Charge(quota)
    try:
        yield charge
    except ServerError as error:
        if error.applied == "no":
            charge.refund()
        raise


# ---- what tenants keep ------------------------------------------------------------------------------------


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
class StorageQuota:
    """Whether there is room for one more state of a tenant, where its key has limits.

    A session counts with what its state may come to (`state_bytes`), and with its named snapshots, so only
    what makes one of these asks here. This server's own are seen at once, those of others as late as a count
    is old. Nobody is refused for what is on its way and may fail: that is waited for. Nor for what may have
    been counted twice: then it is counted again.
    """

    store: SessionStore
    state_bytes: Callable[[Listed], int]
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    @asynccontextmanager
    async def reserve(self, caller: Call, size: int, *, sessions: int) -> AsyncIterator[None]:
        """Keep room for so many bytes of a state, and for so many sessions, while they are stored.

        Raises RateLimited where there is none.
        """
        quota = caller.quota
        if quota.sessions is None and quota.stored_bytes is None:
            yield
            return
        held = self._tenants.setdefault(caller.tenant, _Tenant())
        async with held.turn:
            while not await self._fits(caller.tenant, held, quota, size, sessions):
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

    async def _fits(self, tenant: str, held: _Tenant, quota: Quota, size: int, sessions: int) -> bool:
        """Whether it fits beside all that is coming. Raises RateLimited if it does not fit anyway."""
        held.ended.clear()
        # Taken before anything is counted: what arrives meanwhile is counted twice, rather than not at all.
        coming, coming_bytes = held.coming, held.coming_bytes
        try:
            if sessions and quota.sessions is not None:
                _within("sessions", await self.store.count(tenant) + coming + sessions, quota.sessions)
            if quota.stored_bytes is not None:
                most = quota.stored_bytes - coming_bytes - size
                kept = await self._kept_bytes(tenant, held, most)
                _within("stored bytes", kept + coming_bytes + size, quota.stored_bytes)
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
            total += sum(self.state_bytes(listed) for listed in page.sessions)
            keys = (SessionKey(tenant, listed.session_id) for listed in page.sessions)
            total += sum(await asyncio.gather(*(self._named_bytes(key) for key in keys)))
            if (cursor := page.cursor) is None:
                break
        ended = time.monotonic()
        held.counted_bytes = total
        held.made_bytes -= made_before
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
