"""What only the asyncio client can do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

from rlstm_client import AsyncClient


async def test_texts_may_come_from_an_asynchronous_source(server: Any) -> None:
    """An asynchronous iterable of texts is appended as it comes."""

    async def texts() -> AsyncIterator[str]:
        for text in ("ab", "cd"):
            await asyncio.sleep(0)
            yield text

    async with AsyncClient(transport=httpx.MockTransport(server)) as client:
        session = await client.sessions.create()
        answers = [answer async for answer in session.append_stream(texts(), gather_bytes=1)]

    assert [answer.position for answer in answers] == [2, 4]


async def test_sessions_side_by_side(server: Any) -> None:
    """Many appends at once, each to its own session, do not mix."""
    async with AsyncClient(transport=httpx.MockTransport(server)) as client:
        sessions = [await client.sessions.create() for _ in range(8)]
        await asyncio.gather(*(session.append(session.id * 3) for session in sessions))

    assert server.texts == {session.id: session.id * 3 for session in sessions}
