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
    from rlstm_client import errors as errors
    from rlstm_client import models as models
    from rlstm_client import options as options
    from rlstm_client._async.client import AsyncClient as AsyncClient
    from rlstm_client._async.client import AsyncSession as AsyncSession
    from rlstm_client._async.client import AsyncSessions as AsyncSessions
    from rlstm_client._async.connection import AsyncEventStream as AsyncEventStream
    from rlstm_client._async.streaming import AsyncTextStream as AsyncTextStream
    from rlstm_client._calls import Retries as Retries
    from rlstm_client._sync.client import Client as Client
    from rlstm_client._sync.client import Session as Session
    from rlstm_client._sync.client import Sessions as Sessions
    from rlstm_client._sync.connection import EventStream as EventStream
    from rlstm_client._sync.streaming import TextStream as TextStream
    from rlstm_client.errors import RLSTMError as RLSTMError
    from rlstm_client.models import *  # noqa: F403

_HOMES = {
    "_async.client": ("AsyncClient", "AsyncSession", "AsyncSessions"),
    "_async.connection": ("AsyncEventStream",),
    "_async.streaming": ("AsyncTextStream",),
    "_calls": ("Retries",),
    "_sync.client": ("Client", "Session", "Sessions"),
    "_sync.connection": ("EventStream",),
    "_sync.streaming": ("TextStream",),
    "errors": ("RLSTMError",),
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "models", "options"):
        return import_module(f"{__name__}.{name}")
    home = next((home for home, names in _HOMES.items() if name in names), "models")
    value = vars(import_module(f"{__name__}.{home}")).get(name)
    if value is None or name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
