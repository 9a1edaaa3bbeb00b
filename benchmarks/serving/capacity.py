"""What a session costs in memory: by a formula, and as a server's process grows."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx

from benchmarks.serving.load import AT_ONCE, each
from benchmarks.serving.process import Server
from benchmarks.serving.targets import HttpTarget
from rlstm_server.engine.models import ServedModel
from rlstm_server.schemas.text import AdaptationRequest

OBJECTS: Final = 11_000
"""Bytes of a session beside its arrays' elements: Python's own, the cache's.

Measured as what a server grows by for each of 10,000 sessions whose arrays have next to no elements.
"""

SEGMENTS: Final = 1.5
"""Of text a session gets: it has learned, and is in the middle of a segment, where its state is largest."""

WARM: Final = 256
"""Sessions that are made before memory is looked at."""

SETTLE_SECONDS: Final = 2.0


def session_bytes(served: ServedModel, asked: AdaptationRequest) -> int:
    """What a session's arrays take in a server's memory, at most: its state, and weights of a mixture.

    Raises InvalidField for a rule that the model does not have.
    """
    choice = served.choose(asked)
    return served.state_bytes(choice) + (8 * (choice.experts + 1) if choice.experts > 1 else 0)


@dataclass(frozen=True, kw_only=True)
class Resident:
    """So many sessions at rest in a server's memory: bytes of each, as measured and as predicted."""

    sessions: int
    measured: float
    predicted: int

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "sessions": self.sessions,
            "bytes_each": self.measured,
            "predicted": self.predicted,
            "ratio": self.ratio,
        }


async def measure_resident(
    server: Server, served: ServedModel, asked: AdaptationRequest, sessions: int
) -> Resident:
    """Make so many sessions, each with a little text, and see by how much the server's process grows.

    The server must have room for copies of them all. Some more are made before: what they leave behind for
    others is no session's. Still some 10 MB of the heap come and go, so take thousands of sessions.
    """
    segment = served.evaluator(asked.kind, asked.num_fast_weights).segment
    predicted = session_bytes(served, asked) + OBJECTS
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=None) as client:  # noqa: S113
        target = HttpTarget(client=client, key=server.keys[0], asked=asked, scores="none")
        count = round(SEGMENTS * segment)
        vocabulary = served.vocab.size
        await _make(target, [_tokens(count, vocabulary, seed) for seed in range(min(WARM, sessions))])
        before = await _settled(server)
        await _make(target, [_tokens(count, vocabulary, WARM + seed) for seed in range(sessions)])
        grown = await _settled(server) - before
    return Resident(sessions=sessions, measured=grown / sessions, predicted=predicted)


async def _make(target: HttpTarget, texts: Sequence[Sequence[int]]) -> None:
    await each([partial(target.create, text) for text in texts])


async def _settled(server: Server) -> int:
    """The memory of a server that has had time to let go of what nobody uses."""
    await asyncio.sleep(SETTLE_SECONDS)
    return server.resident_bytes()


def _tokens(count: int, vocabulary: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(count)]
