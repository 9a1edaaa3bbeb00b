"""What only the store in memory has: a limit of its own, and memory of its own."""

import asyncio
import multiprocessing
import resource
import sys
import tracemalloc
from pathlib import Path

import orjson
import pytest
from tests.memory_store import MemoryStore

from rlstm_server.errors import Gone, StoreFull
from rlstm_server.store.base import Committed, Created, Limits, Replayed


async def test_a_full_store_refuses_before_anything_changed(build):
    """Over the limit there are no new sessions and no larger states; what is there goes on."""
    store = MemoryStore(max_bytes=10_000)
    key, start = await build.session(store, state=b"x" * 6_000)
    done = build.commit(key, start, state=b"x" * 7_000)
    at = (await store.commit(done)).position

    with pytest.raises(StoreFull):
        await store.create(build.creation(state=b"x" * 2_000))
    with pytest.raises(StoreFull):
        await store.commit(build.commit(key, at, state=b"x" * 10_000))

    assert await store.count(build.tenant) == 1
    assert (await store.load_head(key)).version == 1
    assert isinstance(await store.commit(done), Replayed)
    assert isinstance(await store.commit(build.commit(key, at, state=b"x" * 9_000)), Committed)


async def test_what_is_brought_is_refused_later_than_what_is_new(build):
    """Between the two limits there is room for a fork or an import, and none for a fresh session."""
    store = MemoryStore(max_bytes=10_000)
    key, start = await build.session(store)
    await store.commit(build.commit(key, start, state=b"x" * 8_100))

    with pytest.raises(StoreFull):
        await store.create(build.creation())
    assert isinstance(await store.create(build.creation(brought=True)), Created)
    with pytest.raises(StoreFull):
        await store.create(build.creation(brought=True, state=b"x" * 1_000))


async def test_a_snapshot_needs_room(build):
    """A state that does not fit is not put; one that nothing points to makes room by itself."""
    now = [0]
    store = MemoryStore(max_bytes=10_000, clock_ms=lambda: now[0])
    key, _ = await build.session(store)
    await store.put_snapshot(key, b"x" * 9_000)

    with pytest.raises(StoreFull):
        await store.put_snapshot(key, b"x" * 9_000)
    now[0] = Limits().snapshot_ms
    await store.sweep()

    assert await store.put_snapshot(key, b"x" * 9_000)


async def test_creations_cost_the_same_however_many_there_were(build):
    """What is remembered of creations is dropped one by one, in the order of their time."""
    store = MemoryStore(limits=Limits(operations=3))
    for number in range(5):
        await store.create(build.creation(operation_id=f"key {number}"))

    assert list(store._births[build.tenant]) == ["key 2", "key 3", "key 4"]


async def test_it_says_that_it_forgets():
    """Its answers never claim to be safe."""
    store = MemoryStore()
    await store.check()

    assert store.durability == "memory"


async def test_sweeping_forgets_old_tombstones(build):
    """A store that runs for long does not grow with the sessions it has buried."""
    now = [0]
    store = MemoryStore(clock_ms=lambda: now[0])
    key, _ = await build.session(store)
    await store.delete(key)
    with pytest.raises(Gone):
        await store.load_head(key)
    now[0] = 25 * 3_600_000

    await store.sweep()

    assert not store._tombs
    assert not store._births


async def test_old_answers_are_let_go(build):
    """Of a hundred answers of 60 kB, the memory of the eight that a repeat may get."""
    store = MemoryStore()
    key, at = await build.session(store)
    tracemalloc.start()
    try:
        for _ in range(100):
            at = (await store.commit(build.commit(key, at, answer=bytes(60_000)))).position
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 10 * 60_000


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _commit_serialized(build, count, told):
    """Commit what orjson wrote, and say how many bytes the process grew by."""

    async def committed():
        store = MemoryStore()
        key, at = await build.session(store)
        before = _resident_bytes()
        for _ in range(count):
            parts = {name: orjson.dumps([0.125] * 100) for name in ("answer", "summary", "record")}
            at = (await store.commit(build.commit(key, at, **parts))).position
        return _resident_bytes() - before

    told.send(asyncio.run(committed()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_kept_takes_little_more_than_its_bytes(build):
    """A serializer's bytes lie in blocks of kilobytes; of a thousand commits, none of that is kept."""
    count, context = 1_000, multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=_commit_serialized, args=(build, count, tell))
    process.start()
    grown = told.recv()
    process.join()

    assert grown < 4_096 * count
