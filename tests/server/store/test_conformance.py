"""What every store promises of reading: heads, listings and usage. Each claim runs on each store."""

import asyncio

import pytest

from rlstm_server.errors import InvalidField, NotFound
from rlstm_server.store.base import Position, SessionKey, new_session_id


async def test_a_known_head_comes_without_its_state(store, build):
    """The state is left out when the caller has it or wants none, and only then."""
    key, start = await build.session(store)
    one = (await store.commit(build.commit(key, start))).position
    elsewhere = Position(1, b"z" * 32)

    states = [(await store.load_head(key, known=known)).state for known in (one, start, elsewhere)]

    assert states == [None, b"state 1", b"state 1"]
    assert (await store.load_head(key, with_state=False)).state is None


async def test_an_unknown_session_is_not_found(store, build):
    """Every call on a session that never was, or is another tenant's, says the same."""
    key, start = await build.session(store)
    for absent in (SessionKey(build.tenant, new_session_id()), SessionKey("other", key.session_id)):
        for call in (
            store.load_head(absent),
            store.commit(build.commit(absent, start)),
            store.named_snapshots(absent),
            store.read_snapshot(absent, "n"),
            store.drop_snapshot(absent, "n"),
            store.name_snapshot(absent, "n", start, b"{}"),
            store.delete(absent),
        ):
            with pytest.raises(NotFound):
                await call
    assert (await store.load_head(key)).version == 0


async def test_a_listing_is_paged_in_the_order_of_creation(kit, store, build):
    """Pages follow each other without gap or repetition, even when a session on their border is deleted."""
    keys = []
    for _ in range(7):
        keys.append((await build.session(store))[0])
        kit.wait(2)
    first = await store.list(build.tenant, limit=3)
    await store.delete(keys[2])
    second = await store.list(build.tenant, limit=3, cursor=first.cursor)
    third = await store.list(build.tenant, limit=3, cursor=second.cursor)

    pages = [[listed.session_id for listed in page.sessions] for page in (first, second, third)]
    ids = [key.session_id for key in keys]
    assert pages == [ids[:3], ids[3:6], ids[6:]]
    assert third.cursor is None
    assert all(listed.head.state is None for listed in first.sessions)


async def test_sessions_of_the_same_millisecond_are_all_listed(store, build):
    """Sessions made at the same time are told apart by their id."""
    creations = [build.creation() for _ in range(20)]
    await asyncio.gather(*(store.create(creation) for creation in creations))

    listed, cursor = [], None
    for _ in range(20):
        page = await store.list(build.tenant, limit=3, cursor=cursor)
        listed += [one.session_id for one in page.sessions]
        cursor = page.cursor
        if cursor is None:
            break

    assert sorted(listed) == sorted(creation.key.session_id for creation in creations)


async def test_a_wrong_cursor_is_refused(store, build):
    """A cursor that no page gave is named as the field at fault."""
    for cursor in ("", "1", "x.y", "1.A", "1." + "a" * 65, "-1.a", "1.a\n"):
        with pytest.raises(InvalidField, match="cursor"):
            await store.list(build.tenant, cursor=cursor)
    with pytest.raises(InvalidField, match="limit"):
        await store.list(build.tenant, limit=0)


async def test_usage_is_told(store, build):
    """A store says how many bytes it uses, and that it dropped nothing by itself."""
    before = await store.usage()
    await build.session(store, state=b"x" * 2_000_000)
    after = await store.usage()

    assert after.used_bytes - before.used_bytes > 1_000_000
    assert after.evicted_keys == 0
    await store.ping()
