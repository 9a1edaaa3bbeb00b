"""The Python client of a server whose language models go on learning as they read.

from rlstm_client import Client

with Client("http://127.0.0.1:8000") as client:
session = client.sessions.create()
totals = session.append("a text of any length").totals
print(totals.static_bits_per_byte, totals.bits_per_byte)
"""

from rlstm_client import errors
from rlstm_client._retries import Retries
from rlstm_client.async_client import AsyncClient
from rlstm_client.async_connection import AsyncEventStream
from rlstm_client.async_sessions import AsyncSession, AsyncSessions
from rlstm_client.client import Client
from rlstm_client.connection import EventStream
from rlstm_client.errors import RLSTMError
from rlstm_client.models import (
    Alternatives,
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
    TokenEvent,
    Totals,
    WordColumns,
)
from rlstm_client.sessions import Session, Sessions

__all__ = [
    "Alternatives",
    "AppendResult",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncSession",
    "AsyncSessions",
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
    "TokenEvent",
    "Totals",
    "WordColumns",
    "errors",
]
