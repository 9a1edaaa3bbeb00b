"""kill -9 of a server and of the store that it runs itself: the next server on the folder has everything."""

import json
import os
import signal

import pytest

from rlstm_server.store.embedded import EmbeddedValkey

from . import replicas
from .checker import judge
from .history import History
from .load import Clients
from .nemesis import Nemesis

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


async def test_an_embedded_store_survives_kill_9(sizes, tiny_checkpoint, tmp_path):
    """In turn: the store, which its server starts again; and the server, which takes the store along."""
    data, history = tmp_path / "data", History()
    settings = {"model": str(tiny_checkpoint), "threads": 1, "data_dir": str(data)}
    kills = sizes.other_kills
    async with replicas.running(tmp_path, settings, [0]) as fleet:
        nemesis = Nemesis(fleet, None, seed=37)
        async with Clients(fleet, history, seed=37, workers=6, sessions=8) as clients:
            for kill in range(kills):
                await nemesis.some_work(clients)
                if kill % 2:
                    fleet.kill(0)
                    await fleet.start(0)
                else:
                    os.kill(json.loads((data / "store.json").read_text())["pid"], signal.SIGKILL)
        assert await fleet.end(0) == 0
    store = EmbeddedValkey(data)
    await store.start()
    try:
        verdict = await judge(history, store.url, tiny_checkpoint)
    finally:
        await store.stop()
    print(f"{kills} kill -9 of a server and its embedded store in turn: {verdict.counts}")

    assert verdict.faults == []
