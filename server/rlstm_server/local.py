"""Without a server: the same application, called in this process.

Every command with ``--local`` comes here, so a local answer is the served answer. Nothing listens and nothing
is kept.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from rlstm_server.app import create_app
from rlstm_server.settings import load_settings


@asynccontextmanager
async def serving(model: str) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """A server for this process alone, as what carries a client's requests. Raises StartupError."""
    app = create_app(load_settings(model=(model,), durability="memory"))
    async with app.router.lifespan_context(app):
        yield httpx.ASGITransport(app=app)
