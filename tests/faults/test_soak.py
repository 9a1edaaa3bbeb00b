"""Half an hour at 60 % of what a server can do: it holds no more memory, descriptors or states at its end.

RLSTM_SOAK_MINUTES sets how long (30); the first third is warm-up. Every few minutes all sessions are ended:
what is left then is what the server keeps for itself.
"""

import asyncio
import os
import time
from statistics import median
from typing import NamedTuple

import pytest

from .load import Clients

MINUTES = float(os.environ.get("RLSTM_SOAK_MINUTES", "30"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(60 * MINUTES + 900)]

WORKERS = 8
LOAD = 0.6
MEASURE_SECONDS = 20.0
CYCLE_SECONDS = min(120.0, 6 * MINUTES)
SETTLE_SECONDS = 31.0
"""A copy that somebody's last word brought back is dropped within half a minute."""
MAX_GROWTH_MB = 8.0
MAX_MORE_OBJECTS = 0.01


class Sample(NamedTuple):
    """What a server holds when nobody uses it."""

    resident_mb: float
    descriptors: int
    objects: int
    states: int


async def sample(replica, folder):
    """Have a server that has nothing to do count what it holds, once what has ended is gone."""
    await replica.counts(folder)
    await asyncio.sleep(SETTLE_SECONDS)
    return Sample(replica.resident_bytes / 2**20, replica.descriptors, **await replica.counts(folder))


def stored(store):
    """Heads of sessions that are stored, and all keys of sessions that do not go by themselves."""
    with store.admin() as admin:
        keys = [key for key in admin.scan_iter("rlstm:{*/*}:*", count=1000) if admin.pttl(key) == -1]
    return sum(key.endswith(b":head") for key in keys), len(keys)


async def test_a_server_does_not_grow(serve, tmp_path):
    """Memory +< 8 MB after warm-up; descriptors and states constant; the store has the live sessions."""
    samples = []
    async with serve(seats=1) as service:
        [replica] = service.replicas.seats
        async with Clients(
            service.replicas, service.history, seed=31, workers=WORKERS, timeout=30
        ) as clients:
            await asyncio.sleep(MEASURE_SECONDS)
            capacity = service.history.statuses.total() / MEASURE_SECONDS
            clients.workers.pace = WORKERS / (LOAD * capacity)
            ends = time.monotonic() + 60 * MINUTES
            while time.monotonic() < ends:
                await asyncio.sleep(CYCLE_SECONDS)
                await clients.workers.rest()
                assert stored(service.store)[0] == len(service.history.living)
                await clients.end_sessions()
                assert stored(service.store) == (0, 0)
                samples.append(await sample(replica, tmp_path))
                clients.workers.go_on()
            requests, wrong = service.history.statuses.total(), service.history.wrong

    warm, last = samples[len(samples) // 3], samples[-1]
    growth = median(s.resident_mb for s in samples[-3:]) - median(
        s.resident_mb for s in samples[len(samples) // 3 :][:3]
    )
    print(
        f"soak {MINUTES:g} min: memory {growth:+.1f} MB after warm-up,"
        f" descriptors {last.descriptors - warm.descriptors:+d}, states {last.states - warm.states:+d},"
        f" keys = live sessions ({requests:,} requests, {LOAD:.0%} of {capacity:.0f} a second,"
        f" objects {last.objects - warm.objects:+d} of {warm.objects:,})"
    )
    assert wrong == []
    assert growth < MAX_GROWTH_MB
    assert last.descriptors <= warm.descriptors
    assert last.states == warm.states
    assert last.objects <= warm.objects * (1 + MAX_MORE_OBJECTS)
