"""Without a server: the same application, called in this process.

``rlstm score``, ``generate`` and ``watch`` come here with ``--local``, so a local answer is the served
answer. Nothing listens and nothing is kept.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from rlstm_server.app import create_app
from rlstm_server.settings import load_settings

BASE_URL = "http://localhost"


class LocalError(Exception):
    """The problem document's title and detail, as a sentence."""


def score(model: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of ``POST /score`` to ``body`` by a shipped model or a checkpoint folder.

    Raises LocalError where the server would answer with a problem, StartupError when there is no model.
    """
    return asyncio.run(_post(model, "/score", body))


def generate(model: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of ``POST /generate``; raises as :func:`score`."""
    return asyncio.run(_post(model, "/generate", body))


@asynccontextmanager
async def serving(model: str) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """A server for this process alone, as what carries a client's requests. Raises StartupError."""
    app = create_app(load_settings(model=(model,), durability="memory"))
    async with app.router.lifespan_context(app):
        yield httpx.ASGITransport(app=app)


async def _post(model: str, route: str, body: dict[str, Any]) -> dict[str, Any]:
    async with (
        serving(model) as transport,
        httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=None) as client,  # noqa: S113
    ):
        response = await client.post(route, json=body)
    answer: dict[str, Any] = orjson.loads(response.content)
    if response.is_error:
        raise LocalError(f"{answer.get('title')}: {answer.get('detail')}")
    return answer
