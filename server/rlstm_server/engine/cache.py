"""Copies of sessions in memory: an LRU by bytes. Nothing lives only here, so dropping a copy is free."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlstm_server.engine.state import SessionState
from rlstm_server.metrics import Memory, Metrics
from rlstm_server.schemas import Ancestor
from rlstm_server.store.base import Position, SessionKey


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What was said when the session was made, or since: it does not depend on the text.

    learning     whether appends may learn
    forked_from  of a fork, or of an import: where its history began
    """

    name: str | None
    created_at_ms: int
    ttl_ms: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    forked_from: Ancestor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionCopy:
    """One replica's copy of a session, and whose it is and at which place of its history."""

    key: SessionKey
    position: Position
    state: SessionState
    facts: SessionFacts


@dataclass(eq=False)
class SessionCache:
    """The newest copies that fit into `max_bytes` of the memory `tier`. Each says whose it is, and where."""

    max_bytes: int
    metrics: Metrics
    tier: Memory = "host"
    _copies: "OrderedDict[SessionKey, SessionCopy]" = field(default_factory=OrderedDict)
    _bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all copies together."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, key: SessionKey) -> SessionCopy | None:
        """The copy of `key`, which becomes the most recently used; None when there is none."""
        copy = self._copies.get(key)
        if copy is not None:
            self._copies.move_to_end(key)
        return copy

    def put(self, copy: SessionCopy) -> None:
        """Keep a copy in place of an older one of the same session; the least recently used go first.

        A copy larger than the whole cache is not kept.
        """
        self._remove(copy.key)
        if copy.state.nbytes <= self.max_bytes:
            self._copies[copy.key] = copy
            self._bytes += copy.state.nbytes
        while self._bytes > self.max_bytes:
            self._remove(next(iter(self._copies)))
            self.metrics.evictions.labels(self.tier).inc()
        self.metrics.sessions.labels(self.tier).set(len(self._copies))

    def drop(self, key: SessionKey) -> None:
        """Forget the copy of `key`, if there is one."""
        self._remove(key)
        self.metrics.sessions.labels(self.tier).set(len(self._copies))

    def check(self) -> None:
        """Raise ValueError unless every copy is filed under its own key and the bytes add up."""
        for key, copy in self._copies.items():
            if copy.key != key:
                raise ValueError("a copy is filed under another session's key")
        total = sum(copy.state.nbytes for copy in self._copies.values())
        if total != self._bytes:
            raise ValueError(f"the copies have {total} bytes, {self._bytes} are counted")

    def _remove(self, key: SessionKey) -> None:
        copy = self._copies.pop(key, None)
        self._bytes -= 0 if copy is None else copy.state.nbytes
