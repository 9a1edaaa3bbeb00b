"""What only the store in memory has: a limit of its own, and a clock."""

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


async def test_creations_cost_the_same_however_many_there_were(build):
    """What is remembered of creations is dropped one by one, in the order of their time."""
    store = MemoryStore(limits=Limits(operations=3))
    for number in range(5):
        await store.create(build.creation(operation_id=f"key {number}"))

    assert list(store._creations[build.tenant]) == ["key 2", "key 3", "key 4"]


async def test_it_says_that_it_forgets():
    """Its answers never claim to be safe."""
    store = MemoryStore()
    await store.check()

    assert store.durability == "memory"


async def test_sweeping_forgets_old_tombstones(build):
    """A store that runs for long does not grow with the sessions that have ended."""
    now = [0]
    store = MemoryStore(clock_ms=lambda: now[0])
    key, _ = await build.session(store)
    await store.delete(key)
    with pytest.raises(Gone):
        await store.load_head(key)
    now[0] = 25 * 3_600_000

    await store.sweep()

    assert not store._tombstones
    assert not store._creations
