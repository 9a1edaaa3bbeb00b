"""A store that stands still for seconds: nothing is lost, nobody waits for ever, liveness is answered."""

import asyncio
import time

import httpx
import pytest

from .checker import judge
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

BOUND_SECONDS = 12.0
"""An answer takes no longer, whatever the store does: waiting for a connection, and two tries of a commit."""
ALIVE_SECONDS = 1.0


async def paused(store, seconds):
    """The process stops."""
    store.pause()
    await asyncio.sleep(seconds)
    store.resume()


async def asleep(store, seconds):
    """One command takes all the time there is."""
    await asyncio.to_thread(_tell, store, seconds + 5, "DEBUG", "SLEEP", seconds)


async def read_only(store, seconds):
    """Reads go on, writes wait."""
    await asyncio.to_thread(_tell, store, 5, "CLIENT", "PAUSE", int(seconds * 1000), "WRITE")
    await asyncio.sleep(seconds)


STALLS = (paused, asleep, read_only)


def _tell(store, patience, *command):
    with store.admin() as admin:
        admin.connection_pool.connection_kwargs["socket_timeout"] = patience
        admin.execute_command(*command)


async def watch(replicas, slowest):
    """Ask each replica all the time whether it is alive; note the longest that one took to say so."""
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            for replica in replicas.serving:
                began = time.monotonic()
                answer = await client.get(f"{replica.url}/health/live")
                assert answer.status_code == 200
                slowest.append(time.monotonic() - began)
            await asyncio.sleep(0.05)


async def test_a_store_that_stands_still_loses_nothing_and_holds_up_nobody_for_ever(
    serve, sizes, tiny_checkpoint
):
    """Stalls of one to eight seconds: each request is answered in bounded time, liveness always."""
    alive = []
    async with serve(seats=2) as service:
        watching = asyncio.create_task(watch(service.replicas, alive))
        async with Clients(
            service.replicas, service.history, seed=13, workers=48, timeout=2 * BOUND_SECONDS
        ) as clients:
            for number in range(sizes.stalls):
                await service.nemesis.some_work(clients)
                seconds = service.nemesis.dice.uniform(1.0, sizes.stall_seconds)
                await STALLS[number % len(STALLS)](service.store, seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(
            f"{sizes.stalls} stalls of the store of 1 to {sizes.stall_seconds:g} s:"
            f" {verdict.counts}, longest answer {max(service.history.waits):.1f} s,"
            f" liveness {max(alive):.2f} s at most"
        )

    assert verdict.faults == []
    assert max(service.history.waits) < BOUND_SECONDS
    assert max(alive) < ALIVE_SECONDS
