"""The Python client of a server whose language models go on learning as they read.

    from rlstm_client import Client

    with Client("http://127.0.0.1:8000") as client:
        session = client.sessions.create()
        totals = session.append("a text of any length").totals
        print(totals.static_bits_per_byte, totals.bits_per_byte)

Names are imported when they are first used, so that the command line, which lives in this package too, starts
without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstm_client import errors, models, options
    from rlstm_client._async.client import AsyncClient, AsyncSession, AsyncSessions
    from rlstm_client._async.connection import AsyncEventStream
    from rlstm_client._async.streaming import AsyncTextStream
    from rlstm_client._calls import Retries
    from rlstm_client._sync.client import Client, Session, Sessions
    from rlstm_client._sync.connection import EventStream
    from rlstm_client._sync.streaming import TextStream
    from rlstm_client.errors import RLSTMError
    from rlstm_client.models import (
        Adaptation,
        Alternatives,
        Ancestor,
        AppendResult,
        Candidate,
        Choice,
        EndEvent,
        Event,
        Generation,
        Health,
        Ranking,
        ScoredItem,
        ScoreResult,
        ServerInfo,
        SessionInfo,
        SessionPage,
        SessionTotals,
        Snapshot,
        TokenEvent,
        TokenizerInfo,
        Totals,
        WordScore,
    )

_HOMES = {
    "AsyncClient": "_async.client",
    "AsyncEventStream": "_async.connection",
    "AsyncSession": "_async.client",
    "AsyncSessions": "_async.client",
    "AsyncTextStream": "_async.streaming",
    "Client": "_sync.client",
    "EventStream": "_sync.connection",
    "RLSTMError": "errors",
    "Retries": "_calls",
    "Session": "_sync.client",
    "Sessions": "_sync.client",
    "TextStream": "_sync.streaming",
}
_MODULES = ("errors", "models", "options")
__all__ = [
    "Adaptation",
    "Alternatives",
    "Ancestor",
    "AppendResult",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncSession",
    "AsyncSessions",
    "AsyncTextStream",
    "Candidate",
    "Choice",
    "Client",
    "EndEvent",
    "Event",
    "EventStream",
    "Generation",
    "Health",
    "RLSTMError",
    "Ranking",
    "Retries",
    "ScoreResult",
    "ScoredItem",
    "ServerInfo",
    "Session",
    "SessionInfo",
    "SessionPage",
    "SessionTotals",
    "Sessions",
    "Snapshot",
    "TextStream",
    "TokenEvent",
    "TokenizerInfo",
    "Totals",
    "WordScore",
    "errors",
    "models",
    "options",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
