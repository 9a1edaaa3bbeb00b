"""Two replicas on one store behind nginx, as real processes."""

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from tests.deploy import proxy
from tests.faults import replicas

from rlstm_server.store.embedded import EmbeddedValkey


class Seat:
    """One replica, which keeps its port when it is started again."""

    def __init__(self, fleet, port):
        self._fleet = fleet
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"

    @property
    def replica(self):
        """Its process."""
        return self._fleet.seats[0]

    def kill(self):
        """End it by kill -9."""
        self._fleet.kill(0)

    async def end(self):
        """End it as an operator does; gives the exit code."""
        return await self._fleet.end(0)

    async def start(self):
        """Start it, also again."""
        await self._fleet.start(0)

    def close(self):
        """End it, if it runs."""
        self._fleet.close()


@dataclass
class Service:
    """What users reach at `nginx.url`."""

    nginx: proxy.Nginx
    seats: list[Seat]
    store_url: str

    def client(self, url=None):
        """A plain client of the service, or of one replica."""
        return httpx.AsyncClient(base_url=url or self.nginx.url, timeout=60, trust_env=False)


@pytest.fixture(scope="session")
def nginx():
    """Skip where there is no nginx."""
    found = proxy.binary()
    if found is None:
        pytest.skip("there is no nginx here")
    return found


@pytest.fixture(scope="session")
def context():
    """Give the fork server's context; one for all tests."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return replicas.fork_server()


@pytest.fixture
def serve(nginx, context, tiny_checkpoint, tmp_path):
    """Give what starts a service, to be entered with `async with`; settings are those of each replica."""

    @asynccontextmanager
    async def running(**settings):
        store = EmbeddedValkey(tmp_path / "store", maxmemory_bytes=512 << 20)
        async with AsyncExitStack() as stack:
            await store.start()
            stack.push_async_callback(store.stop)
            common = {"model": str(tiny_checkpoint), "redis_url": store.url, "threads": 1, **settings}
            seats = []
            for number, port in enumerate(proxy.free_ports(2)):
                folder = tmp_path / f"seat-{number}"
                folder.mkdir()
                seat = Seat(replicas.Replicas(context, folder, common | {"port": port}, 1), port)
                stack.callback(seat.close)
                seats.append(seat)
            await asyncio.gather(*(seat.start() for seat in seats))
            addresses = [seat.address for seat in seats]
            front = await stack.enter_async_context(proxy.running(tmp_path / "nginx", addresses))
            yield Service(front, seats, store.url)

    return running
