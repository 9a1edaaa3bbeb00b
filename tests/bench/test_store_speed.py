"""What a session costs its store, and a large one the others: on Valkey, with every change on disk."""

import asyncio
import os
import sys
import time

import pytest

from rlstm_server.store.base import Commit, Creation, Position, SessionKey, new_operation_id, new_session_id
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_store import RedisStore

SNAPSHOT_BYTES = 64 << 20
SECONDS = 5.0

PUT_AND_READ = f"""
import asyncio, secrets, sys, time
from rlstm_server.store.base import SessionKey, new_session_id
from rlstm_server.store.redis_store import RedisStore

async def main():
    store = RedisStore(sys.argv[1])
    key, state = SessionKey("large", new_session_id()), secrets.token_bytes({SNAPSHOT_BYTES})
    await store.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    snapshot = await store.put_snapshot(key, state)
    put = time.perf_counter()
    same = await store.get_snapshot(key, snapshot) == state
    print(put - began, time.perf_counter() - put, same, flush=True)
    await store.close()

asyncio.run(main())
"""


class Session:
    """A session that commits states of one size, and how long each took."""

    def __init__(self, store, state_bytes):
        self.store = store
        self.key = SessionKey("bench", new_session_id())
        self.state = b"s" * state_bytes
        self.at = None
        self.took_ms = []

    async def create(self):
        """Make it."""
        creation = Creation(
            key=self.key, operation_id=new_operation_id(), body_hash=b"b" * 32, name=None, info=b"{}",
            state=b"s", ttl_ms=3_600_000, answer=b"",
        )  # fmt: skip
        await self.store.create(creation)
        self.at = creation.position

    async def commit(self):
        """Commit once."""
        assert isinstance(self.at, Position)
        commit = Commit(
            key=self.key, operation_id=new_operation_id(), body_hash=b"b" * 32, if_match=None,
            expects=self.at, record=b"r" * 300, info=b"i" * 500, state=self.state, ttl_ms=3_600_000,
            answer=b"a" * 500, summary=b"s" * 50,
        )  # fmt: skip
        began = time.perf_counter()
        self.at = (await self.store.commit(commit)).position
        self.took_ms.append((time.perf_counter() - began) * 1_000)

    def percentile(self, share):
        """Return a percentile of what commits took, in milliseconds."""
        return sorted(self.took_ms)[min(len(self.took_ms) - 1, int(share * len(self.took_ms)))]


@pytest.fixture
async def url(tmp_path):
    """The address of an embedded Valkey of its own."""
    server = EmbeddedValkey(tmp_path, maxmemory_bytes=1 << 30)
    await server.start()
    store = RedisStore(server.url)
    await store.check()
    assert store.durability == "fsync"
    await store.close()
    yield server.url
    await server.stop()


def disk_ms(folder, size):
    """Return how long the disk itself takes for so many bytes, at the median."""
    took = []
    with (folder / "disk").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"d" * size)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1_000)
    return sorted(took)[100]


@pytest.mark.bench
@pytest.mark.timeout(300)
async def test_commits_of_small_and_larger_states(url, tmp_path):
    """One session after the other, each change on disk before it is told; beside it what the disk takes."""
    store = RedisStore(url)
    for size in (2_000, 256 << 10):
        session = Session(store, size)
        await session.create()
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            await session.commit()
        p50, p99 = session.percentile(0.5), session.percentile(0.99)
        print(
            f"\ncommit of {size:,} bytes, fsync: p50 {p50:.2f}, p99 {p99:.2f} ms"
            f" ({len(session.took_ms):,} commits; the disk alone: p50 {disk_ms(tmp_path, size):.2f} ms)"
        )
    await store.close()


@pytest.mark.bench
@pytest.mark.timeout(300)
async def test_a_large_snapshot_lets_others_pass(url):
    """Another process writes and reads 64 MB while four sessions commit 2 kB without pause."""
    store = RedisStore(url)
    sessions = [Session(store, 2_000) for _ in range(4)]
    for session in sessions:
        await session.create()
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUT_AND_READ, url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    await writer.stdout.readline()
    done = asyncio.Event()

    async def go_on(session):
        while not done.is_set():
            await session.commit()

    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(go_on(session))
        await asyncio.sleep(1)
        for session in sessions:
            session.took_ms.clear()
        writer.stdin.write(b"go\n")
        put_s, read_s, same = (await writer.stdout.readline()).split()
        done.set()
    await writer.communicate()
    await store.close()

    together = Session(store, 1)
    together.took_ms = [took for session in sessions for took in session.took_ms]
    p50, p99, most = (together.percentile(share) for share in (0.5, 0.99, 1))
    print(
        f"\n64 MB snapshot: put {float(put_s):.2f} s, read {float(read_s):.2f} s; other clients' commit"
        f" latency meanwhile p50/p99/max {p50:.1f}/{p99:.1f}/{most:.1f} ms"
        f" ({len(together.took_ms):,} commits)"
    )
    assert same == b"True"
