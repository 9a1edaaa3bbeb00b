"""What every store promises of ends: deleted is final, expired is gone, and the rest lives on."""

from dataclasses import replace

import pytest

from rlstm_server.errors import Gone, NotFound
from rlstm_server.store.base import Created, Limits, SessionKey


async def test_delete_is_final(store, build):
    """After a delete nothing is left to load, commit to or repeat; deleting again is fine."""
    key, start = await build.session(store, name="diary")
    done = build.commit(key, start)
    at = (await store.commit(done)).position
    await store.delete(key)
    await store.delete(key)

    for call in (
        store.load_head(key),
        store.load_head(key, known=at),
        store.commit(done),
        store.commit(build.commit(key, at)),
        store.read_snapshot(key, "n"),
    ):
        with pytest.raises(Gone) as gone:
            await call
        assert gone.value.reason == "deleted"
    assert await store.count(build.tenant) == 0


async def test_a_tombstone_has_its_time(kit, build):
    """A deleted session is unknown after a while."""
    store = kit.make(Limits(tombstone_ms=50))
    key, _ = await build.session(store)
    await store.delete(key)
    kit.wait(60)

    with pytest.raises(NotFound):
        await store.load_head(key)
    with pytest.raises(NotFound):
        await store.delete(key)
    await store.close()


async def test_an_expired_session_says_so(kit, store, build):
    """A session whose time is over is gone for every call, and stays so."""
    key, start = await build.session(store, ttl_ms=200)
    kit.wait(210)

    for call in (
        store.commit(build.commit(key, start)),
        store.load_head(key),
        store.read_snapshot(key, "n"),
        store.delete(key),
    ):
        with pytest.raises(Gone) as gone:
            await call
        assert gone.value.reason == "session_expired"


async def test_a_commit_prolongs_a_session_and_a_load_does_not(kit, store, build):
    """The time to live starts again with each commit."""
    key, start = await build.session(store, ttl_ms=800)
    kit.wait(500)
    outcome = await store.commit(build.commit(key, start, ttl_ms=800))
    kit.wait(500)
    assert (await store.load_head(key)).expires_at_ms == outcome.expires_at_ms
    kit.wait(500)

    with pytest.raises(Gone):
        await store.load_head(key)


async def test_sessions_of_all_tenants_are_counted(store, build):
    """Whoever owns them; what has ended is not among them."""
    before = await store.total()
    key, _ = await build.session(store)
    await build.session(store)
    other = build.creation()
    await store.create(replace(other, key=SessionKey(f"{build.tenant[:31]}x", other.key.session_id)))
    among = await store.total()
    await store.delete(key)

    assert (among - before, await store.total() - before) == (3, 2)


async def test_the_sweeper_buries_what_is_due(kit, store, build):
    """It ends expired sessions, frees their names, and leaves alone those that were prolonged."""
    dead, _ = await build.session(store, ttl_ms=400, name="dead")
    prolonged, start = await build.session(store, ttl_ms=400)
    shortened, begin = await build.session(store)
    await store.commit(build.commit(prolonged, start))
    await store.commit(build.commit(shortened, begin, ttl_ms=400))
    kit.wait(420)
    before = await store.count(build.tenant)

    await store.sweep()

    left = (await store.list(build.tenant)).sessions
    assert (before, await store.count(build.tenant)) == (3, 1)
    assert [listed.session_id for listed in left] == [prolonged.session_id]
    with pytest.raises(Gone, match="session_expired"):
        await store.load_head(dead)
    assert isinstance(await store.create(build.creation(name="dead")), Created)
