"""The store as the engine calls it: every call is timed, every fault is counted."""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from rlstm_server.errors import OutcomeUnknown, ServerError, StateCorrupt, StoreFull, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Creation,
    CreationOutcome,
    Durability,
    Head,
    Page,
    Position,
    SessionKey,
    SessionStore,
)

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class MeteredStore:
    """Passes calls on to `store`; see :class:`rlstm_server.store.base.SessionStore`."""

    store: SessionStore
    metrics: Metrics

    @property
    def durability(self) -> Durability:
        """How safe a committed operation is."""
        return self.store.durability

    async def ping(self) -> None:
        """Return if the store answers."""
        await self._measured("ping", self.store.ping())

    async def create(self, creation: Creation) -> CreationOutcome:
        """Make a session."""
        return await self._measured("create", self.store.create(creation))

    async def load_head(
        self, key: SessionKey, *, known: Position | None = None, with_state: bool = True
    ) -> Head:
        """Fetch the newest version."""
        call = self.store.load_head(key, known=known, with_state=with_state)
        return await self._measured("load", call)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Apply one operation."""
        return await self._measured("commit", self.store.commit(commit))

    async def delete(self, key: SessionKey) -> None:
        """End a session."""
        await self._measured("delete", self.store.delete(key))

    async def list(self, tenant: str, *, limit: int, cursor: str | None) -> Page:
        """Fetch a page of a tenant's sessions."""
        return await self._measured("list", self.store.list(tenant, limit=limit, cursor=cursor))

    async def _measured(self, operation: str, call: Awaitable[Answer]) -> Answer:
        began = time.perf_counter()
        try:
            return await call
        except ServerError as error:
            reason = _reason(error)
            if reason is not None:
                self.metrics.store_errors.labels(operation, reason).inc()
            raise
        finally:
            self.metrics.store_seconds.labels(operation).observe(time.perf_counter() - began)


def _reason(error: ServerError) -> str | None:
    """Name the store's fault; None where the store did its work and the answer is an error."""
    reasons: tuple[tuple[type[ServerError], str], ...] = (
        (StoreUnavailable, "unavailable"),
        (StoreFull, "full"),
        (OutcomeUnknown, "timeout"),
        (StateCorrupt, "corrupt"),
    )
    return next((reason for kind, reason in reasons if isinstance(error, kind)), None)
