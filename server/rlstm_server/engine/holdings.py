"""What tenants keep in the store, against what their keys allow: sessions, and bytes of their states.

A session's state has the size it was made with, so only what makes sessions asks here. Other servers on the
same store are seen as late as a count is old, which is seconds; this server's own sessions are seen at once.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rlstm_server.engine.description import session_info
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.quotas import Allowance
from rlstm_server.errors import RateLimited

COUNT_SECONDS: Final = 2.0
"""How long the bytes that a tenant keeps need not be counted again."""

PAGE: Final = 1_000
RETRY_SECONDS: Final = 30.0
"""A session that ends makes room, and nobody knows when: this is how often asking again is reasonable."""


@dataclass(eq=False)
class _Tenant:
    """Sessions being made, and the bytes of those that were made since the last count."""

    coming: int = 0
    coming_bytes: int = 0
    stored_bytes: int = 0
    counted_at: float = -COUNT_SECONDS


@dataclass(eq=False)
class Holdings:
    """Whether there is room for one more session of a tenant. Knows only tenants whose keys have limits."""

    store: MeteredStore
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    @asynccontextmanager
    async def room(
        self, tenant: str, allowance: Allowance, state_bytes: int, *, repeatable: bool
    ) -> AsyncIterator[None]:
        """Keep room for a session while it is made.

        Raises RateLimited where there is none; of a `repeatable` request it is not known then whether it made
        its session before.
        """
        if allowance.sessions is None and allowance.stored_bytes is None:
            yield
            return
        held = self._tenants.setdefault(tenant, _Tenant())
        held.coming += 1
        held.coming_bytes += state_bytes
        made = False
        try:
            try:
                await self._check(tenant, held, allowance)
            except RateLimited as error:
                error.applied = "unknown" if repeatable else "no"
                raise
            yield
            made = True
        finally:
            held.coming -= 1
            held.coming_bytes -= state_bytes
            held.stored_bytes += state_bytes if made else 0

    async def _check(self, tenant: str, held: _Tenant, allowance: Allowance) -> None:
        if allowance.sessions is not None:
            _within("sessions", await self.store.count(tenant) + held.coming, allowance.sessions)
        if allowance.stored_bytes is not None:
            if time.monotonic() - held.counted_at >= COUNT_SECONDS:
                held.stored_bytes = await self._stored_bytes(tenant)
                held.counted_at = time.monotonic()
            _within("stored bytes", held.stored_bytes + held.coming_bytes, allowance.stored_bytes)

    async def _stored_bytes(self, tenant: str) -> int:
        total, cursor = 0, None
        while True:
            page = await self.store.list(tenant, limit=PAGE, cursor=cursor)
            total += sum(session_info(listed.session_id, listed.head).state_bytes for listed in page.sessions)
            if (cursor := page.cursor) is None:
                return total


def _within(what: str, given: int, limit: int) -> None:
    if given > limit:
        raise RateLimited(
            f"{what}: {given:,} wanted, at most {limit:,} allowed",
            quota=what,
            given=given,
            limit=limit,
            retry_after=RETRY_SECONDS,
        )
