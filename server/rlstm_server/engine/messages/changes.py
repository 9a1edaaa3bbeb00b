"""Nouns of changes to a session that score nothing, and of its named snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlstm_server.engine.messages.sessions import SessionInfo, SessionTotals
from rlstm_server.engine.messages.shared import Caller

ResetScope = Literal["fast_weights", "recurrent", "both"]


@dataclass(frozen=True, kw_only=True)
class ResetRequest:
    """Forget the fast weights, the recurrent state, or both; totals and position go on."""

    caller: Caller
    session: str
    scope: ResetScope
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """Change what was said of a session at its creation; None leaves a thing as it is."""

    caller: Caller
    session: str
    ttl_seconds: float | None = None
    metadata: Mapping[str, Any] | None = None
    learning: bool | None = None
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """Go back to a named snapshot: to its state, position and totals, under a new version."""

    caller: Caller
    session: str
    snapshot: str
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeAnswer:
    """The outcome of a change without scores."""

    info: SessionInfo
    durability: str
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Give the present version a name to go back to; no version is made."""

    caller: Caller
    session: str
    name: str
    key: str | None = None
    if_match: int | None = None


@dataclass(frozen=True, kw_only=True)
class SessionSnapshot:
    """A named snapshot, and where the session stood when it was taken; seconds since 1970."""

    name: str
    version: int
    position: int
    created_at: float
    state_bytes: int
    totals: SessionTotals


@dataclass(frozen=True, kw_only=True)
class SnapshotAnswer:
    """A version that has a name now."""

    snapshot: SessionSnapshot
    durability: str
    replayed: bool
