"""Snapshots and logs in Redis: what a crash, a late command or another release leaves behind harms nobody."""

import asyncio
import dataclasses

import pytest
from redis import Redis

from rlstm_server.errors import Gone, OutcomeUnknown, SessionExists, StateCorrupt, StoreFull, StoreUnavailable
from rlstm_server.store.base import Base, Committed, Created, CreationReplayed, Limits, SnapshotRef
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_functions import session_key
from rlstm_server.store.redis_store import RedisStore

SMALL = Limits(chunk_bytes=10, log_records=3, log_bytes=100)


@pytest.fixture
async def store(embedded_url):
    """A store with chunks of ten bytes."""
    made = RedisStore(embedded_url, timeout_s=20, limits=SMALL)
    yield made
    await made.close()


@pytest.fixture
async def through(proxy):
    """The same behind the faulty proxy, impatient."""
    made = RedisStore(proxy.url, timeout_s=0.5, limits=SMALL)
    yield made
    await made.close()


@pytest.fixture
def admin(embedded_url):
    """A direct connection to the shared server."""
    with Redis.from_url(embedded_url, protocol=2) as client:
        yield client


def keys_of(admin, key):
    """Return the last parts of all keys of a session."""
    found = admin.scan_iter(f"*{key.session_id}*")
    return {name.decode().rpartition("}:")[2] for name in found}


def chunks_of(key, snapshot):
    """Return the key of a snapshot's chunks."""
    return session_key(key, f"snap:{snapshot.generation}")


@pytest.mark.parametrize("fault", ["cut", "swallow"])
@pytest.mark.parametrize("step", range(4))
async def test_a_snapshot_survives_a_lost_reply_at_any_chunk(through, proxy, build, step, fault):
    """A chunk that is sent again is the same chunk."""
    key = build.creation().key
    await through.ping()
    proxy.faults = ["none"] * step + [fault]

    snapshot = await through.put_snapshot(key, b"0123456789" * 3)

    assert await through.get_snapshot(key, snapshot) == b"0123456789" * 3


async def test_what_moved_the_base_is_known_when_it_is_sent_again(through, proxy, build):
    """A lost reply to any call that points to a snapshot is asked for again, with the same outcome."""
    key, at = await build.session(through)
    at = (await through.commit(build.commit(key, at, state=None))).position
    first, second, third = [await through.put_snapshot(key, b"state") for _ in range(3)]

    proxy.faults = ["cut"]
    assert await through.keep_snapshot(key, at, first)
    proxy.faults = ["cut"]
    named = await through.name_snapshot(key, "n", at, b"{}", second)
    proxy.faults = ["cut"]
    assert isinstance(await through.commit(build.commit(key, at, state=third)), Committed)

    head = await through.load_head(key)
    assert head.base == Base(version=2, state=third, previous=Base(version=1, state=first))
    assert await through.named_snapshots(key) == [named]
    proxy.faults = ["cut"]
    await through.drop_snapshot(key, "n")
    assert await through.named_snapshots(key) == []


async def test_two_lost_replies_leave_a_kept_snapshot_unknown(through, proxy, build):
    """The same call again finds out."""
    key, at = await build.session(through)
    at = (await through.commit(build.commit(key, at, state=None))).position
    snapshot = await through.put_snapshot(key, b"state")
    proxy.faults = ["cut", "cut"]

    with pytest.raises(OutcomeUnknown):
        await through.keep_snapshot(key, at, snapshot)

    assert await through.keep_snapshot(key, at, snapshot)


async def test_a_late_chunk_changes_nothing(store, admin, build):
    """A chunk that arrives again after the snapshot was pointed to gives it no expiry and no other bytes."""
    key, start = await build.session(store)
    snapshot = await store.put_snapshot(key, b"a state of two chunks")
    await store.commit(build.commit(key, start, state=snapshot))

    await store._functions.session("put_chunk", key, snapshot.generation, 0, b"late", 1000, changes=False)

    assert await store.get_snapshot(key, snapshot) == b"a state of two chunks"
    assert admin.ttl(chunks_of(key, snapshot)) == -1


async def test_a_creation_cut_short_takes_its_snapshot_along(embedded_url, admin, build):
    """A replica that dies before a session is confirmed leaves neither its head nor its chunks."""
    dead = RedisStore(embedded_url, limits=dataclasses.replace(SMALL, provisional_ms=50))
    dying = build.creation()
    snapshot = await dead.put_snapshot(dying.key, b"from elsewhere")
    await dead._creations.place(dataclasses.replace(dying, state=snapshot))
    await asyncio.sleep(0.1)

    assert keys_of(admin, dying.key) == set()
    await dead.close()


@pytest.mark.parametrize("step", range(6))
async def test_a_creation_from_a_snapshot_survives_a_lost_reply_at_any_step(through, proxy, build, step):
    """Whichever reply is lost, the session is there with its state, and a repeat finds it."""
    creation = build.creation(operation_id="key", name="diary")
    snapshot = await through.put_snapshot(creation.key, b"from elsewhere")
    creation = dataclasses.replace(creation, state=snapshot)
    proxy.faults = ["none"] * step + ["cut"]

    assert isinstance(await through.create(creation), Created)

    repeat = build.creation(operation_id="key", name="diary")
    copy = await through.put_snapshot(repeat.key, b"from elsewhere")
    replayed = await through.create(dataclasses.replace(repeat, state=copy))
    assert replayed == CreationReplayed(session_id=creation.key.session_id, answer=b"created")
    assert await through.get_snapshot(creation.key, snapshot) == b"from elsewhere"


async def test_a_snapshot_that_finds_no_room_leaves_nothing(tmp_path, build):
    """Refused before the first chunk where that can be known, else removed: a full store gets no fuller."""
    server = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await server.start()
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    key, _ = await build.session(store)
    kept = await store.put_snapshot(key, b"k" * 1_000_000)
    with Redis.from_url(server.url, protocol=2) as admin:
        with pytest.raises(StoreFull):
            await store.put_snapshot(key, b"x" * (64 << 20))
        before = keys_of(admin, key)
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 3_000_000)
        with pytest.raises(StoreFull):
            await store._snapshots.put(key, b"x" * 16_000_000)
        assert keys_of(admin, key) == before
    assert await store.get_snapshot(key, kept) == b"k" * 1_000_000
    await store.close()
    await server.stop()


async def test_a_snapshot_that_lacks_a_chunk_is_corrupt(store, admin, build):
    """A missing or cut chunk is noticed while reading, and nothing more can point to it."""
    key, start = await build.session(store)
    for number in range(3):
        snapshot = await store.put_snapshot(key, b"0123456789" * 3)
        admin.hdel(chunks_of(key, snapshot), str(number))
        with pytest.raises(StateCorrupt):
            await store.get_snapshot(key, snapshot)
        with pytest.raises(StoreUnavailable):
            await store.commit(build.commit(key, start, state=snapshot))


async def test_nothing_of_a_session_outlives_it(store, admin, build):
    """After a delete only the tombstone is left, whatever there was in chunks or on its way."""
    key, at = await build.session(store)
    for _ in range(3):
        snapshot = await store.put_snapshot(key, b"some state")
        at = (await store.commit(build.commit(key, at, state=snapshot))).position
    await store.name_snapshot(key, "n", at, b"{}", await store.put_snapshot(key, b"some state"))
    await store.put_snapshot(key, b"some state")
    before = keys_of(admin, key)

    await store.delete(key)

    assert len([part for part in before if part.startswith("snap:")]) == 4
    assert keys_of(admin, key) == {"tomb"}


async def test_the_log_bytes_are_counted_to_the_byte(store, admin, build):
    """The running count is what the records are long together, through commits, trims and moved bases."""
    key, at = await build.session(store)
    for number in range(40):
        state = {0: b"inline", 1: None, 2: None}.get(number % 5 % 3)
        if number % 7 == 3:
            state = await store.put_snapshot(key, b"in chunks")
        commit = build.commit(key, at, record=b"r" * (number * 7 % 31), state=state)
        outcome = await store.commit(commit)
        at = outcome.position if isinstance(outcome, Committed) else at
        if number % 11 == 10:
            await store.keep_snapshot(key, at, await store.put_snapshot(key, b"in chunks"))
        lengths = [len(entry[b"record"]) for _, entry in admin.xrange(session_key(key, "log"))]
        assert int(admin.hget(session_key(key, "head"), "log_bytes")) == sum(lengths)


@pytest.mark.parametrize("lost", [["log"], ["ops"], ["named"], ["log", "ops", "named"]])
async def test_a_session_goes_on_without_a_lost_key(store, admin, build, lost):
    """What a key said is gone with it; the head still says where the session stands, and it goes on."""
    key, at = await build.session(store, state=b"state 0")
    for _ in range(2):
        at = (await store.commit(build.commit(key, at, record=b"r" * 60))).position
    await store.name_snapshot(key, "n", at, b"{}", await store.put_snapshot(key, b"state"))
    admin.delete(*(session_key(key, part) for part in lost))

    for _ in range(2):
        at = (await store.commit(build.commit(key, at, record=b"r" * 60))).position

    kept = [record.version for record in await store.read_log(key, after=0)]
    assert (at.version, kept) == (4, [4])
    assert len(await store.named_snapshots(key)) == (0 if "named" in lost else 1)


@pytest.fixture(params=["of a release before", "of a release to come"])
async def other(request, store, admin, build):
    """A session as another release stores it."""
    key, _ = await build.session(store, name="other")
    head = session_key(key, "head")
    if request.param == "of a release to come":
        admin.hset(head, "form", "3")
        return key
    fields = admin.hgetall(head)
    kept = {b"version", b"chain", b"name", b"info", b"ttl", b"answer", b"created_at", b"expires_at"}
    admin.delete(head)
    admin.hset(head, mapping={name: fields[name] for name in kept} | {b"state": b"state"})
    return key


async def test_a_session_in_another_form_is_refused_clearly(store, build, other):
    """Every call on it says so, and changes nothing."""
    position = build.creation(key=other).position
    snapshot = SnapshotRef(generation="a", size=1)

    for call in (
        store.load_head(other),
        store.load_head(other, with_state=False),
        store.commit(build.commit(other, position)),
        store.read_log(other, after=0),
        store.keep_snapshot(other, position, snapshot),
        store.name_snapshot(other, "n", position, b"{}", snapshot),
        store.named_snapshots(other),
        store.drop_snapshot(other, "n"),
    ):
        with pytest.raises(StateCorrupt, match="form"):
            await call


async def test_a_session_in_another_form_is_in_nobodys_way(store, build, other):
    """Others are listed and swept beside it, its name stays taken, and it can be deleted."""
    with pytest.raises(SessionExists):
        await store.create(build.creation(name="other"))
    beside, _ = await build.session(store)

    await store.sweep()

    listed = await store.list(build.tenant)
    assert [one.session_id for one in listed.sessions] == [beside.session_id]
    await store.delete(other)
    with pytest.raises(Gone):
        await store.load_head(other)
    assert isinstance(await store.create(build.creation(name="other")), Created)


async def test_a_session_in_another_form_expires_like_any_other(store, admin, build, other):
    """The sweeper meets it when its time is over."""
    admin.hset(session_key(other, "head"), "expires_at", 1)
    admin.zadd(f"rlstm:{{{build.tenant}}}:index", {other.session_id: 1})

    await store.sweep()

    assert keys_of(admin, other) == {"tomb"}
    with pytest.raises(Gone, match="session_expired"):
        await store.load_head(other)


@pytest.mark.parametrize(("field", "value"), [("expires_at", ""), ("ttl", "soon"), ("base_version", "-1")])
async def test_a_head_that_cannot_be_read_is_in_nobodys_way(store, admin, build, field, value):
    """It is refused as damaged, can be deleted, and others are swept as ever."""
    damaged, _ = await build.session(store)
    other, _ = await build.session(store, ttl_ms=500)
    admin.hset(session_key(damaged, "head"), field, value)
    admin.zadd(f"rlstm:{{{build.tenant}}}:index", {damaged.session_id: 1})
    await asyncio.sleep(0.55)

    with pytest.raises(StateCorrupt):
        await store.load_head(damaged)
    await store.sweep()

    assert keys_of(admin, other) == {"tomb"}
    assert await store.count(build.tenant) == 1
    await store.delete(damaged)
    assert keys_of(admin, damaged) == {"tomb"}


async def test_many_expired_sessions_are_buried_in_one_sweep(store, build):
    """Not only the first hundred: a pass leaves none that is due."""
    for _ in range(7):
        await build.session(store, ttl_ms=600)
    await asyncio.sleep(0.65)

    assert await store.sweep(limit=2) >= 7
    assert await store.count(build.tenant) == 0


async def test_a_delete_cut_short_is_finished_by_the_sweep(store, build, monkeypatch):
    """A server that dies between the end of a session and that of its hints: it is counted no longer."""
    key, _ = await build.session(store)

    async def die(*_):
        raise StoreUnavailable("the server died")

    monkeypatch.setattr(store._creations, "release", die)
    with pytest.raises(StoreUnavailable):
        await store.delete(key)
    monkeypatch.undo()
    before = await store.count(build.tenant)
    await store.sweep()

    assert (before, await store.count(build.tenant)) == (1, 0)
