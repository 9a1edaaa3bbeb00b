"""What a session costs in memory: by a formula, and as a server's process grows."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import numpy as np

from benchmarks.serving.load import AT_ONCE, each
from benchmarks.serving.process import Server
from benchmarks.serving.targets import HttpTarget
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_server.engine.models import ServedModel
from rlstm_server.schemas.text import AdaptationRequest

OBJECTS: Final = 11_000
"""Bytes of a session beside its tensors' elements: Python's and torch's own, the cache's.

Measured as what a server grows by for each of 10,000 sessions whose tensors have next to no elements.
"""

SEGMENTS: Final = 1.5
"""Of text a session gets: it has learned, and is in the middle of a segment, where its state is largest."""

WARM: Final = 256
"""Sessions that are made before memory is looked at."""

SETTLE_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class SessionBytes:
    """Memory of one session.

    deltas   fast weights of each row that learns, in the precision they are kept in
    states   the recurrent state of every row now, and at the start of the unfinished segment
    mixture  weights and count, of several experts
    objects  all that is in no tensor
    """

    deltas: int
    states: int
    mixture: int
    objects: int = OBJECTS

    @property
    def tensors(self) -> int:
        """All but objects."""
        return self.deltas + self.states + self.mixture

    @property
    def total(self) -> int:
        """All."""
        return self.tensors + self.objects


def session_bytes(
    served: ServedModel, rule: AdaptationConfig, experts: int, *, static: bool = True
) -> SessionBytes:
    """What a session that learns by ``rule`` with so many experts takes in a server's memory, at most.

    Raises InvalidField for a rule that the model does not have.
    """
    asked = AdaptationRequest(
        kind=rule.kind, num_fast_weights=rule.num_fast_weights, experts=experts, static=static
    )
    choice = served.choose(asked)
    element = np.dtype(served.evaluator(rule.kind, rule.num_fast_weights).backend.dtype).itemsize
    deltas = len(choice.expert_config.rates) * rule.num_fast_weights * element
    return SessionBytes(
        deltas=deltas,
        states=served.state_bytes(choice) - deltas,
        mixture=8 * (experts + 1) if experts > 1 else 0,
    )


@dataclass(frozen=True, kw_only=True)
class Resident:
    """So many sessions at rest in a server's memory: bytes of each, as measured and as predicted."""

    sessions: int
    measured: float
    predicted: SessionBytes

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted.total

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        parts = {name: getattr(self.predicted, name) for name in ("deltas", "states", "mixture", "objects")}
        return {
            "sessions": self.sessions,
            "bytes_each": self.measured,
            "predicted": parts | {"total": self.predicted.total},
            "ratio": self.ratio,
        }


async def measure_resident(
    server: Server, served: ServedModel, asked: AdaptationRequest, sessions: int
) -> Resident:
    """Make so many sessions, each with a little text, and see by how much the server's process grows.

    The server must have room for copies of them all. Some more are made before: what they leave behind for
    others is no session's. Still some 10 MB of the heap come and go, so take thousands of sessions.
    """
    rule = served.evaluator(asked.kind, asked.num_fast_weights).calibration.config
    predicted = session_bytes(served, rule, asked.expert_config.experts, static=asked.static)
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=None) as client:  # noqa: S113
        target = HttpTarget(client=client, key=server.keys[0], asked=asked, scores="none")
        count = round(SEGMENTS * rule.segment)
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
