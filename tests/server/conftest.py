"""A whole server around a small random model, talked to without a port."""

from contextlib import asynccontextmanager

import httpx
import pytest
from tests.memory_store import MemoryStore

from rlstm_server.app import create_app
from rlstm_server.settings import Settings

from .documented import checks


@pytest.fixture
def serve(tiny_checkpoint):
    """Give what runs an application and makes a client of it, to be entered with `async with`."""

    @asynccontextmanager
    async def running(*, store=None, headers=None, tracer_provider=None, **settings):
        app = create_app(
            Settings(**{"model": str(tiny_checkpoint), **settings}),
            store=store or MemoryStore(),
            tracer_provider=tracer_provider,
        )
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
        ):
            client.app = app
            client.event_hooks = {"response": [checks(app)]}
            yield client

    return running


@pytest.fixture
async def client(serve):
    """A client of a server with default settings."""
    async with serve() as client:
        yield client
