"""Two replicas on one store behind nginx, as real processes."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from tests.deploy import proxy
from tests.faults import replicas
from tests.servers import free_ports

from rlstm_server.store.embedded import EmbeddedValkey


@dataclass
class Service:
    """What users reach at `nginx.url`."""

    nginx: proxy.Nginx
    fleet: replicas.Replicas
    addresses: list[str]

    def client(self):
        """A plain client."""
        return httpx.AsyncClient(base_url=self.nginx.url, timeout=60, trust_env=False)


@pytest.fixture(scope="session")
def nginx():
    """Skip where there is no nginx."""
    found = proxy.binary()
    if found is None:
        pytest.skip("there is no nginx here")
    return found


@pytest.fixture
def serve(nginx, tiny_checkpoint, tmp_path):
    """Give what starts a service, to be entered with `async with`; settings are those of each replica."""

    @asynccontextmanager
    async def running(**settings):
        store = EmbeddedValkey(tmp_path / "store", maxmemory_bytes=512 << 20)
        async with AsyncExitStack() as stack:
            await store.start()
            stack.push_async_callback(store.stop)
            common = {"model": str(tiny_checkpoint), "redis_url": store.url, "threads": 1, **settings}
            ports = free_ports(2)
            fleet = await stack.enter_async_context(replicas.running(tmp_path / "replicas", common, ports))
            addresses = [f"127.0.0.1:{port}" for port in ports]
            front = await stack.enter_async_context(proxy.running(tmp_path / "nginx", addresses))
            yield Service(front, fleet, addresses)

    return running
