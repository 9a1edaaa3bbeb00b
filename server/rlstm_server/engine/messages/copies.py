"""Nouns of sessions that are made from another: forks, and files that travel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlstm_server.engine.messages.shared import Caller


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """Copy a session, as it is or as it was at a snapshot. What is None is the source's, but for the name.

    ``min_version`` refuses an older state of the source.
    """

    caller: Caller
    session: str
    snapshot: str | None = None
    name: str | None = None
    ttl_seconds: float | None = None
    metadata: Mapping[str, Any] | None = None
    min_version: int | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Make a session of an exported one. ``ttl_seconds`` None uses the server's default."""

    caller: Caller
    data: bytes
    name: str | None = None
    ttl_seconds: float | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportedSession:
    """A session as a file: the version it shows, its size, and its bytes in pieces, to be read once."""

    session: str
    version: int
    size: int
    pieces: Iterator[bytes]
