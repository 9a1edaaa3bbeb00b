"""What a server does by itself, beside all requests: it measures, and buries what has expired.

None of it ends before the server does: whatever goes wrong is logged, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rlstm_server.errors import ServerError
from rlstm_server.logs import LOGGER
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionStore

LAG_SECONDS = 0.1
"""How often the event loop's lateness is measured."""

STORE_SECONDS = 15.0
"""How often the store is asked how full it is."""

SWEEP_SECONDS = 30.0
"""How often expired sessions are buried."""


def all_of(store: SessionStore, metrics: Metrics) -> list[Coroutine[Any, Any, None]]:
    """Give all of it, each to be run until it is cancelled."""
    return [watch_lag(metrics), watch_store(store, metrics), sweep(store, metrics)]


async def watch_lag(metrics: Metrics) -> None:
    """Measure how late the event loop wakes: what health answers and pings wait for."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        metrics.loop_lag_seconds.observe(max(0.0, loop.time() - due))


async def watch_store(store: SessionStore, metrics: Metrics) -> None:
    """Ask the store how many sessions it has and how full it is."""
    while True:
        with _logged("the store's figures are not known", metrics.store_unknown):
            usage, sessions = await store.usage(), await store.total()
            metrics.store_measured(
                sessions=sessions, used=usage.used_bytes, most=usage.max_bytes, evicted=usage.evicted_keys
            )
        await asyncio.sleep(STORE_SECONDS)


async def sweep(store: SessionStore, metrics: Metrics) -> None:
    """Bury expired sessions now and then; one that is not buried yet is refused all the same."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        with _logged("the sweep failed"):
            metrics.sessions_ended.labels("idle_ttl").inc(await store.sweep())


@contextmanager
def _logged(message: str, failed: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Log what goes wrong, of what nobody expected also where; it is counted where the store is called."""
    log = logging.getLogger(LOGGER)
    try:
        yield
    except ServerError as error:
        log.warning(message, extra={"code": error.code})
        failed()
    except Exception as error:
        log.error(message, exc_info=error)
        failed()
