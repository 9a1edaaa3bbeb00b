"""The store as the engine calls it: every call is timed, every fault is counted."""

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rlstm_server.errors import OutcomeUnknown, ServerError, StateCorrupt, StoreFull, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import (
    Commit,
    CommitOutcome,
    Creation,
    CreationOutcome,
    CreationReplayed,
    Durability,
    Head,
    Mismatch,
    NamedSnapshot,
    Page,
    Position,
    Replayed,
    SessionKey,
    SessionStore,
    Stale,
    Usage,
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

    async def recall(
        self, key: SessionKey, operation_id: str, body_hash: bytes
    ) -> Replayed | Mismatch | None:
        """Ask what a commit came to."""
        return await self._measured("recall", self.store.recall(key, operation_id, body_hash))

    async def recall_creation(
        self, tenant: str, operation_id: str, body_hash: bytes
    ) -> CreationReplayed | Mismatch | None:
        """Ask which session an operation made."""
        call = self.store.recall_creation(tenant, operation_id, body_hash)
        return await self._measured("recall_creation", call)

    async def name_snapshot(
        self, key: SessionKey, name: str, position: Position, info: bytes
    ) -> NamedSnapshot | Stale:
        """Keep a copy of the head's state under a name."""
        return await self._measured("name_snapshot", self.store.name_snapshot(key, name, position, info))

    async def read_snapshot(self, key: SessionKey, name: str) -> tuple[NamedSnapshot, bytes]:
        """Fetch a named snapshot and its state."""
        return await self._measured("read_snapshot", self.store.read_snapshot(key, name))

    async def named_snapshots(self, key: SessionKey) -> Sequence[NamedSnapshot]:
        """Fetch all named snapshots of a session."""
        return await self._measured("named_snapshots", self.store.named_snapshots(key))

    async def drop_snapshot(self, key: SessionKey, name: str) -> None:
        """Remove a named snapshot."""
        await self._measured("drop_snapshot", self.store.drop_snapshot(key, name))

    async def delete(self, key: SessionKey) -> None:
        """End a session."""
        await self._measured("delete", self.store.delete(key))

    async def list(self, tenant: str, *, limit: int, cursor: str | None) -> Page:
        """Fetch a page of a tenant's sessions."""
        return await self._measured("list", self.store.list(tenant, limit=limit, cursor=cursor))

    async def count(self, tenant: str) -> int:
        """Count a tenant's sessions."""
        return await self._measured("count", self.store.count(tenant))

    async def total(self) -> int:
        """Count all sessions."""
        return await self._measured("total", self.store.total())

    async def find(self, tenant: str, name: str) -> str:
        """Fetch the id of a tenant's session of that name."""
        return await self._measured("find", self.store.find(tenant, name))

    async def sweep(self) -> int:
        """Bury sessions that have expired."""
        return await self._measured("sweep", self.store.sweep())

    async def usage(self) -> Usage:
        """Say how full the store is."""
        return await self._measured("usage", self.store.usage())

    async def _measured(self, operation: str, call: Awaitable[Answer]) -> Answer:
        began = time.perf_counter()
        try:
            return await call
        except ServerError as error:
            reason = _reason(error)
            if reason is not None:
                self.metrics.store_errors.labels(operation, reason).inc()
            raise
        except Exception:
            self.metrics.store_errors.labels(operation, "other").inc()
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
