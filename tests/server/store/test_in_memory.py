"""What only the store in memory has: a limit of its own."""

import pytest

from rlstm_server.errors import StoreFull
from rlstm_server.store.base import Committed, Head, Replayed
from rlstm_server.store.memory_store import MemoryStore


async def test_a_full_store_refuses_before_anything_changed(build):
    """Over the limit there are no new sessions and no larger states; what is there goes on."""
    store = MemoryStore(max_bytes=10_000)
    key, start = await build.session(store, state=b"x" * 6_000)
    done = build.commit(key, start, state=b"x" * 7_000)
    at = (await store.commit(done)).revision

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
    assert isinstance(await store.create(build.creation(brought=True)), Head)
    with pytest.raises(StoreFull):
        await store.create(build.creation(brought=True, state=b"x" * 1_000))
