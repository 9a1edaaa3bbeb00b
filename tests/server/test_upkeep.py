import asyncio
import math

import pytest

from rlstm_server import upkeep
from rlstm_server.errors import StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.metrics import metered as measured
from rlstm_server.store.base import StoreUsage
from rlstm_server.store.memory_store import MemoryStore


class Store(MemoryStore):
    """A store with figures of its own, or that does not answer."""

    fault = None
    swept = 0

    async def usage(self):
        """Give the figures."""
        if self.fault:
            raise self.fault
        return StoreUsage(used_bytes=70, max_bytes=100, evicted_keys=2)

    async def total(self):
        """Count."""
        return 5

    async def sweep(self, *, limit=100):
        """Bury two, or fail."""
        self.swept += 1
        if self.fault:
            raise self.fault
        return 2


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"rlstm_{name}", labels)


async def run_until(work, reached):
    """Run something endless until it has done what is waited for."""
    task = asyncio.ensure_future(work)
    for _ in range(5_000):
        await asyncio.sleep(0.001)
        if reached():
            break
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert reached()


async def test_the_stores_figures_are_published_and_withdrawn(monkeypatch):
    """As long as it answers; the call that failed is counted."""
    monkeypatch.setattr(upkeep, "STORE_SECONDS", 0.0)
    store, metrics = Store(), Metrics()
    metered = measured(store, metrics)
    await run_until(upkeep.watch_store(metered, metrics), lambda: value(metrics, "store_bytes") == 70)
    assert value(metrics, "store_max_bytes") == 100
    assert value(metrics, "store_evicted_keys") == 2
    assert value(metrics, "sessions", tier="store") == 5
    store.fault = StoreUnavailable("lost")
    await run_until(upkeep.watch_store(metered, metrics), lambda: math.isnan(value(metrics, "store_bytes")))
    assert value(metrics, "store_errors_total", op="usage", reason="unavailable") >= 1


@pytest.mark.parametrize("fault", [StoreUnavailable("lost"), LookupError("canary")])
async def test_a_server_sweeps_while_it_runs(serve, monkeypatch, fault):
    """Also after a sweep that failed, for whatever reason; and no longer than it runs."""
    monkeypatch.setattr(upkeep, "SWEEP_SECONDS", 0.01)
    store = Store()
    store.fault = fault
    async with serve(store=store) as client, asyncio.timeout(60):
        metrics = client.app.state.metrics
        while store.swept < 2:  # noqa: ASYNC110 - the server sweeps
            await asyncio.sleep(0.01)
        assert value(metrics, "sessions_ended_total", reason="idle_ttl") == 0
        store.fault = None
        while value(metrics, "sessions_ended_total", reason="idle_ttl") < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
