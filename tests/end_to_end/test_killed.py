"""kill -9 of the server and of its store between appends: what was acknowledged is there afterwards.

RLSTM_KILLS sets the number of kills (20); every second one strikes the store instead of the server.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from rlstm_client import Client
from rlstm_server.store.embedded import EmbeddedValkey

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("RLSTM_KILLS", "20"))
PROBE = "the quick brown fox"


@pytest.fixture
def redis_url(tmp_path):
    """A Valkey of its own, as two servers of one service share it."""
    store = EmbeddedValkey(tmp_path / "shared", maxmemory_bytes=256 << 20)
    asyncio.run(store.start())
    yield store.url
    asyncio.run(store.stop())


def children(process_id):
    """The processes that `process_id` started, by the kernel's own list."""
    return [
        int(child)
        for task in Path(f"/proc/{process_id}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def some_text(dice):
    """Between one byte and some segments, so that kills fall into every phase of the grid."""
    return "".join(dice.choices("the quick brown fox\n", k=dice.randint(1, 40)))


def probe(session):
    """The log-probability of a fixed text after the session's present state."""
    return session.score([PROBE]).candidates[0].logprob


def version_after(session, seconds=30):
    """The session's version, once the store answers again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return session.info().version
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_nothing_acknowledged_is_lost_when_server_or_store_is_killed(start, tmp_path):
    """Version and probe score after each kill are those last acknowledged, to the last bit."""
    dice, lost = random.Random(7), []
    session_id, acknowledged = None, None
    for kill in range(0, KILLS, 2):
        with start(data_dir=tmp_path / "data") as server, Client(server.url) as client:
            session = client.sessions.get(session_id) if session_id else client.sessions.create()
            session_id = session.id
            if acknowledged and (session.info().version, probe(session)) != acknowledged:
                lost.append(f"server kill {kill}")
            acknowledged = session.append(some_text(dice)).version, probe(session)
            (store,) = children(server.process.pid)
            os.kill(store, signal.SIGKILL)
            if (version_after(session), probe(session)) != acknowledged:
                lost.append(f"store kill {kill + 1}")
            acknowledged = session.append(some_text(dice)).version, probe(session)
            server.end(signal.SIGKILL)
    with start(data_dir=tmp_path / "data") as server, Client(server.url) as client:
        session = client.sessions.get(session_id)
        if (session.info().version, probe(session)) != acknowledged:
            lost.append("last server kill")
    print(f"{KILLS} kill -9: version {acknowledged[0]}, {len(lost)} lost")

    assert lost == []
    assert acknowledged[0] == 2 * len(range(0, KILLS, 2))


def test_two_servers_on_one_store_are_one(start, tmp_path, redis_url):
    """Alternate appends to two servers on one Redis give the scores of one server."""
    dice = random.Random(11)
    texts = [some_text(dice) for _ in range(12)]
    with (
        start("--redis-url", redis_url) as left,
        start("--redis-url", redis_url) as right,
        Client(left.url) as first,
        Client(right.url) as second,
    ):
        alone = first.sessions.create()
        expected = [alone.append(text).logprobs for text in texts]
        shared = first.sessions.create()
        handles = [shared, second.sessions.get(shared.id)]
        found = [handles[turn % 2].append(text).logprobs for turn, text in enumerate(texts)]

    assert found == expected
