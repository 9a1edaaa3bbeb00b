"""How much is done: `RLSTM_FAULTS=short` is what CI does in a minute, else all of it."""

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from tests.server.store.servers import Server, program

from . import replicas
from .history import History
from .nemesis import Nemesis


@dataclass(frozen=True)
class Sizes:
    """How many faults of each kind are made."""

    kills: int
    other_kills: int
    pauses: int
    stalls: int
    stall_seconds: float


FULL = Sizes(kills=200, other_kills=50, pauses=70, stalls=12, stall_seconds=8.0)
SHORT = Sizes(kills=10, other_kills=5, pauses=4, stalls=2, stall_seconds=2.0)


@pytest.fixture(scope="session")
def sizes():
    """Give how much is to be done; RLSTM_KILLS says otherwise of kills."""
    chosen = SHORT if os.environ.get("RLSTM_FAULTS") == "short" else FULL
    kills = int(os.environ.get("RLSTM_KILLS", chosen.kills))
    return replace(chosen, kills=kills, other_kills=min(kills, chosen.other_kills))


@dataclass(frozen=True)
class Service:
    """Replicas on one store, what breaks them, and what their clients are told."""

    store: Server
    replicas: replicas.Replicas
    nemesis: Nemesis
    history: History


@pytest.fixture
def serve(tiny_checkpoint, tmp_path):
    """Give what runs a service, to be entered with `async with`.

    kind       of the store: `valkey` (the packaged one) or `redis` (the system's)
    address    where replicas look for the store, if not where it is
    """

    @asynccontextmanager
    async def running(
        kind="valkey",
        *,
        seats=3,
        seed=7,
        address=None,
        environment=None,
        settings=None,
        **options,
    ):
        folder = tmp_path / f"{kind}-store"
        options = {"enable-debug-command": "local", "maxmemory": 512 << 20, **options}
        store = Server(program(kind), folder, environment=environment, **options)
        try:
            await asyncio.to_thread(store.start)
            chosen = {
                "model": str(tiny_checkpoint),
                "threads": 1,
                "redis_url": address or store.url,
            } | (settings or {})
            async with replicas.running(tmp_path, chosen, [0] * seats) as fleet:
                yield Service(store, fleet, Nemesis(fleet, store, seed), History())
        finally:
            store.close()

    return running
