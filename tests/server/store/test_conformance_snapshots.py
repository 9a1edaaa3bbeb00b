"""What every store promises of states in chunks: whole or not at all, and there while they are needed."""

import asyncio
import dataclasses

import pytest
from tests.memory_store import MemoryStore

from rlstm_server.errors import (
    Gone,
    NotFound,
    SnapshotExists,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
    TooLarge,
)
from rlstm_server.store.base import (
    Base,
    Committed,
    Created,
    Limits,
    NamedSnapshot,
    Position,
    Replayed,
    SessionKey,
    SnapshotDue,
    SnapshotRef,
    Stale,
    new_generation,
    new_session_id,
)

SMALL = Limits(log_records=3, log_bytes=100, named_snapshots=2, chunk_bytes=10, snapshot_ms=60_000)


@pytest.fixture
async def small(kit):
    """A store with chunks of ten bytes and a log of three records."""
    made = kit.make(SMALL)
    yield made
    await made.close()


async def go_on(store, build, key, at, commits, **changes):
    """Commit so often without a state."""
    for _ in range(commits):
        at = (await store.commit(build.commit(key, at, **({"state": None} | changes)))).position
    return at


async def is_there(store, key, snapshot):
    """Say whether a snapshot can be read."""
    try:
        await store.get_snapshot(key, snapshot)
    except StateCorrupt:
        return False
    return True


async def versions(store, key):
    """Return the versions that the log still has."""
    return [record.version for record in await store.read_log(key, after=0)]


@pytest.mark.parametrize("size", [1, 9, 10, 11, 20, 255])
async def test_a_snapshot_comes_back_whole(small, build, size):
    """Whatever its size is to that of a chunk, before its session exists and after."""
    key, state = build.creation().key, bytes(range(256))
    snapshot = await small.put_snapshot(key, state[:size])

    assert snapshot.size == size
    assert await small.get_snapshot(key, snapshot) == state[:size]


async def test_a_snapshot_is_found_only_as_what_it_is(small, build):
    """Of another session, of another size or of none, a snapshot is damage."""
    key = build.creation().key
    snapshot = await small.put_snapshot(key, b"x" * 25)

    for wrong in (
        (SessionKey(build.tenant, new_session_id()), snapshot),
        (SessionKey("other", key.session_id), snapshot),
        (key, dataclasses.replace(snapshot, size=24)),
        (key, dataclasses.replace(snapshot, size=26)),
        (key, dataclasses.replace(snapshot, generation=new_generation())),
    ):
        with pytest.raises(StateCorrupt):
            await small.get_snapshot(*wrong)


async def test_an_empty_state_is_none(small, build):
    """There is no snapshot of nothing."""
    with pytest.raises(ValueError, match="size"):
        await small.put_snapshot(build.creation().key, b"")


async def test_a_commit_without_a_state_leaves_the_base(small, build):
    """The head moves on; the base stays, and the records lead from it to the head."""
    key, start = await build.session(small, state=b"origin")

    at = await go_on(small, build, key, start, 3, info=b"new")

    head = await small.load_head(key)
    assert (head.position, head.info) == (at, b"new")
    assert head.base == Base(version=0, state=b"origin")
    assert await versions(small, key) == [1, 2, 3]
    assert (await small.load_head(key, known=at)).base is None


async def test_a_full_log_asks_for_a_snapshot(small, build):
    """No more records than the log may hold follow a base; with a newer base it goes on."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 3)
    due = build.commit(key, at, state=None)

    assert await small.commit(due) == await small.commit(due) == SnapshotDue()
    assert (await small.load_head(key)).position == at
    snapshot = await small.put_snapshot(key, b"state 3")
    assert await small.keep_snapshot(key, at, snapshot)
    assert isinstance(await small.commit(due), Committed)


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_state_makes_room_in_a_full_log(small, build, in_chunks):
    """A commit that brings a state, of either kind, needs no room in the log."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 3)
    state = await small.put_snapshot(key, b"state 4") if in_chunks else b"state 4"

    outcome = await small.commit(build.commit(key, at, state=state))

    assert isinstance(outcome, Committed)
    base = (await small.load_head(key)).base
    assert (base.version, base.state) == (4, state)


async def test_a_snapshot_in_a_commit_becomes_the_base(small, build):
    """The base before becomes the previous one, and the one before that is removed."""
    key, at = await build.session(small, state=b"origin")
    snapshots = [await small.put_snapshot(key, b"state" * n) for n in (1, 2, 3)]
    bases = []
    for snapshot in snapshots:
        at = (await small.commit(build.commit(key, at, state=snapshot))).position
        bases.append((await small.load_head(key)).base)

    first, second, third = snapshots
    origin = Base(version=0, state=b"origin")
    assert bases[0] == Base(version=1, state=first, previous=origin)
    assert bases[1] == Base(version=2, state=second, previous=Base(version=1, state=first))
    assert bases[2] == Base(version=3, state=third, previous=Base(version=2, state=second))
    assert [await is_there(small, key, snapshot) for snapshot in snapshots] == [False, True, True]


async def test_an_inline_state_replaces_all_bases(small, build):
    """A session that became small needs no snapshot any more."""
    key, at = await build.session(small)
    snapshots = [await small.put_snapshot(key, b"state") for _ in range(2)]
    for snapshot in snapshots:
        at = (await small.commit(build.commit(key, at, state=snapshot))).position

    await small.commit(build.commit(key, at, state=b"inline"))

    assert (await small.load_head(key)).base == Base(version=3, state=b"inline")
    assert not any([await is_there(small, key, snapshot) for snapshot in snapshots])


async def test_a_snapshot_of_the_past_can_become_the_base(small, build):
    """The session has moved on since; the same again changes nothing."""
    key, start = await build.session(small, state=b"origin")
    past = await go_on(small, build, key, start, 1)
    at = await go_on(small, build, key, past, 2)
    snapshot = await small.put_snapshot(key, b"state 1")

    assert await small.keep_snapshot(key, past, snapshot)
    assert await small.keep_snapshot(key, past, snapshot)

    head = await small.load_head(key)
    assert head.position == at
    assert head.base == Base(version=1, state=snapshot, previous=Base(version=0, state=b"origin"))
    assert await is_there(small, key, snapshot)


async def test_a_snapshot_of_another_history_is_not_kept(small, build):
    """Another chain, a version to come, one not after the base: nothing happens, nothing is left."""
    key, start = await build.session(small, state=b"origin")
    past = await go_on(small, build, key, start, 1)
    at = await go_on(small, build, key, past, 1)

    for wrong in (
        Position(1, b"z" * 32),
        Position(2, b"z" * 32),
        Position(2, past.chain),
        Position(3, at.chain),
        start,
    ):
        snapshot = await small.put_snapshot(key, b"state")
        assert not await small.keep_snapshot(key, wrong, snapshot)
        assert not await is_there(small, key, snapshot)

    assert (await small.load_head(key)).base == Base(version=0, state=b"origin")
    assert await small.keep_snapshot(key, at, await small.put_snapshot(key, b"state"))


async def test_one_of_many_snapshots_of_a_version_is_kept(small, build):
    """Replicas that make the same version's snapshot at the same time do not harm each other."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 2)
    snapshots = [await small.put_snapshot(key, b"state 2") for _ in range(10)]

    kept = await asyncio.gather(*(small.keep_snapshot(key, at, snapshot) for snapshot in snapshots))

    assert sum(kept) == 1
    base = (await small.load_head(key)).base
    assert base.state == snapshots[kept.index(True)]
    assert await small.get_snapshot(key, base.state) == b"state 2"


async def test_the_log_keeps_what_a_base_needs(small, build):
    """Records since the previous base stay however many and long they are; the others go."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 3, record=b"r" * 90)
    await small.keep_snapshot(key, at, await small.put_snapshot(key, b"state 3"))
    at = await go_on(small, build, key, at, 3, record=b"r" * 90)
    before = await versions(small, key)

    await small.keep_snapshot(key, at, await small.put_snapshot(key, b"state 6"))

    assert before == [1, 2, 3, 4, 5, 6]
    assert await versions(small, key) == [4, 5, 6]


async def test_an_inline_log_is_bounded_by_its_bytes(small, build):
    """The oldest records go when all are longer together than the limit, even the newest by itself."""
    key, at = await build.session(small)
    kept = []
    for length in (40, 40, 20, 1, 101, 100):
        at = await go_on(small, build, key, at, 1, state=b"s", record=b"r" * length)
        kept.append(await versions(small, key))

    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [], [6]]


async def test_a_long_log_is_read_whole(small, build):
    """However long the records are together, as many are read as were asked for."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 3, record=b"r" * 9)
    await small.keep_snapshot(key, at, await small.put_snapshot(key, b"s"))
    await go_on(small, build, key, at, 3, record=b"R" * 30)

    records = await small.read_log(key, after=1, limit=4)

    assert [(r.version, len(r.record)) for r in records] == [(2, 9), (3, 9), (4, 30), (5, 30)]
    assert [r.version for r in await small.read_log(key, after=1)] == [2, 3, 4, 5, 6]


async def test_a_session_can_be_made_of_a_snapshot(kit, build):
    """Then it needs no inline state, and is there as long as the session is."""
    store = kit.make(dataclasses.replace(SMALL, snapshot_ms=400, provisional_ms=400))
    creation = build.creation()
    snapshot = await store.put_snapshot(creation.key, b"from elsewhere")
    creation = dataclasses.replace(creation, state=snapshot, brought=True)

    outcome = await store.create(creation)
    kit.wait(420)

    head = await store.load_head(creation.key)
    assert outcome == Created(head=head)
    assert head.base == Base(version=0, state=snapshot)
    assert await store.get_snapshot(creation.key, snapshot) == b"from elsewhere"
    await store.close()


async def test_what_nothing_points_to_vanishes(kit, build):
    """A snapshot has a while until it must be pointed to; then it lasts."""
    store = kit.make(dataclasses.replace(SMALL, snapshot_ms=400))
    key, start = await build.session(store)
    lost, committed, kept, named = [await store.put_snapshot(key, b"some state") for _ in range(4)]
    at = (await store.commit(build.commit(key, start, state=committed))).position
    at = await go_on(store, build, key, at, 1)
    await store.keep_snapshot(key, at, kept)
    await store.name_snapshot(key, "n", at, b"{}", named)
    kit.wait(420)
    await store.sweep()

    there = [await is_there(store, key, snapshot) for snapshot in (lost, committed, kept, named)]

    assert there == [False, True, True, True]
    await store.close()


@pytest.mark.parametrize("wrong", ["expired", "of another size", "of another session", "taken", "none"])
async def test_nothing_points_to_a_snapshot_that_is_not_there(kit, build, wrong):
    """Commit, keep, name and create refuse it, and change nothing."""
    store = kit.make(dataclasses.replace(SMALL, snapshot_ms=60_000 if wrong != "expired" else 30))
    key, start = await build.session(store, state=b"origin")
    at = await go_on(store, build, key, start, 1)
    creation = build.creation()

    async def put(owner):
        other = build.creation().key if wrong == "of another session" else owner
        snapshot = await store.put_snapshot(other, b"x" * 25)
        if wrong == "of another size":
            return dataclasses.replace(snapshot, size=35)
        if wrong == "none":
            return SnapshotRef(generation=new_generation(), size=25)
        return snapshot

    snapshot = await put(key)
    if wrong == "taken":
        await store.name_snapshot(key, "owner", at, b"{}", snapshot)
    elsewhere = await put(creation.key) if wrong != "taken" else snapshot
    kit.wait(40 if wrong == "expired" else 0)
    creation = dataclasses.replace(creation, state=elsewhere, name="diary")

    for call in (
        store.commit(build.commit(key, at, state=snapshot)),
        store.keep_snapshot(key, at, snapshot),
        store.name_snapshot(key, "name", at, b"{}", snapshot),
        store.create(creation),
    ):
        with pytest.raises(StoreUnavailable, match="nothing changed"):
            await call

    head = await store.load_head(key)
    assert (head.position, head.base) == (at, Base(version=0, state=b"origin"))
    assert [named.name for named in await store.named_snapshots(key)] == ["owner"] * (wrong == "taken")
    with pytest.raises(NotFound):
        await store.find(build.tenant, "diary")
    await store.close()


async def test_a_refused_commit_leaves_no_snapshot(small, build):
    """Stale, moved or a repeat: what it brought is gone; a base stays one when it is sent again."""
    key, start = await build.session(small)
    first = build.commit(key, start, operation_id="key", state=await small.put_snapshot(key, b"first"))
    at = (await small.commit(first)).position
    for changes in ({"expects": start}, {"if_match": 7}, {"operation_id": "key"}):
        snapshot = await small.put_snapshot(key, b"state")
        commit = dataclasses.replace(build.commit(key, at, state=snapshot), **changes)
        assert not isinstance(await small.commit(commit), Committed)
        assert not await is_there(small, key, snapshot)

    assert isinstance(await small.commit(first), Replayed)
    assert await small.get_snapshot(key, first.state) == b"first"


async def test_what_comes_from_elsewhere_is_refused_first(kit, build):
    """A state that is brought finds no room where a session's own still does."""
    store = kit.make(dataclasses.replace(SMALL, import_below=1e-9))
    if kit.kind == "memory":
        store = MemoryStore(limits=dataclasses.replace(SMALL, import_below=1e-9), max_bytes=1 << 20)
    key, _ = await build.session(store)

    await store.put_snapshot(key, b"its own")
    with pytest.raises(StoreFull):
        await store.put_snapshot(key, b"brought", brought=True)
    await store.close()


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_nothing_can_be_put_beside_a_session_that_ended(kit, build, end):
    """Also what was under way to it is gone with it."""
    store = kit.make(SMALL)
    key, _ = await build.session(store, ttl_ms=60_000 if end == "delete" else 500)
    snapshot = await store.put_snapshot(key, b"a state of some chunks")
    if end == "delete":
        await store.delete(key)
    kit.wait(0 if end == "delete" else 520)
    await store.sweep()

    assert not await is_there(store, key, snapshot)
    with pytest.raises(Gone):
        await store.put_snapshot(key, b"a state of some chunks")
    await store.close()


async def test_a_snapshot_can_be_named(small, build):
    """It is a copy of its own, with the info of the session at that time; no version is made."""
    key, start = await build.session(small)
    first = await small.put_snapshot(key, b"state 0")
    named = await small.name_snapshot(key, "zero|0", start, b'{"a":"|"}', first)
    at = await go_on(small, build, key, start, 1)
    second = await small.name_snapshot(key, "a", at, b"{}", await small.put_snapshot(key, b"state 1"))

    assert (named.name, named.version, named.info, named.state) == ("zero|0", 0, b'{"a":"|"}', first)
    assert await small.named_snapshots(key) == [named, second]
    assert (await small.load_head(key)).position == at
    assert await small.get_snapshot(key, named.state) == b"state 0"


async def test_the_same_name_for_the_same_version_changes_nothing(small, build):
    """Sent again, with a new copy, or when the session has moved on; another version may not have it."""
    key, start = await build.session(small)
    snapshot = await small.put_snapshot(key, b"state 0")
    named = await small.name_snapshot(key, "n", start, b"first", snapshot)
    copy = await small.put_snapshot(key, b"state 0")
    with_a_copy = await small.name_snapshot(key, "n", start, b"second", copy)
    at = await go_on(small, build, key, start, 1)

    later = await small.name_snapshot(key, "n", start, b"first", snapshot)

    assert named == with_a_copy == later
    assert await small.name_snapshot(key, "n", start, b"first", copy) == Stale(current=at)
    with pytest.raises(SnapshotExists):
        await small.name_snapshot(key, "n", at, b"{}", await small.put_snapshot(key, b"state 1"))
    assert await small.named_snapshots(key) == [named]


async def test_only_the_present_can_be_named(small, build):
    """A state of another version or history is stale."""
    key, start = await build.session(small)
    at = await go_on(small, build, key, start, 1)

    for wrong in (start, Position(1, b"z" * 32), Position(2, at.chain)):
        snapshot = await small.put_snapshot(key, b"state")
        assert await small.name_snapshot(key, "n", wrong, b"{}", snapshot) == Stale(current=at)
        assert not await is_there(small, key, snapshot)

    snapshot = await small.put_snapshot(key, b"state")
    assert isinstance(await small.name_snapshot(key, "n", at, b"{}", snapshot), NamedSnapshot)


async def test_named_snapshots_are_limited(small, build):
    """Over the limit none is named, and both numbers are told; one dropped makes room for another."""
    key, start = await build.session(small)
    snapshots = [await small.put_snapshot(key, b"state") for _ in range(3)]
    for name, snapshot in zip("ab", snapshots, strict=False):
        await small.name_snapshot(key, name, start, b"{}", snapshot)

    with pytest.raises(TooLarge) as refused:
        await small.name_snapshot(key, "c", start, b"{}", snapshots[2])
    await small.drop_snapshot(key, "a")
    await small.drop_snapshot(key, "a")
    assert not await is_there(small, key, snapshots[2])
    await small.name_snapshot(key, "c", start, b"{}", await small.put_snapshot(key, b"state"))

    assert (refused.value.given, refused.value.limit) == (3, 2)
    assert [named.name for named in await small.named_snapshots(key)] == ["b", "c"]
    assert not await is_there(small, key, snapshots[0])


@pytest.mark.parametrize(("name", "info"), [("", b"{}"), ("é" * 128, b"{}"), ("n", b"x" * (1 << 20 | 1))])
async def test_a_name_or_info_that_cannot_be_stored_is_refused(small, build, name, info):
    """Before anything is sent."""
    key, start = await build.session(small)
    snapshot = await small.put_snapshot(key, b"state")

    with pytest.raises(ValueError, match=r"name|info"):
        await small.name_snapshot(key, name, start, info, snapshot)


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_all_snapshots_end_with_their_session(kit, small, build, end):
    """Base, previous and named: nothing in chunks outlives the session."""
    key, at = await build.session(small)
    snapshots = [await small.put_snapshot(key, b"some state") for _ in range(4)]
    for snapshot in snapshots[:2]:
        at = (await small.commit(build.commit(key, at, state=snapshot))).position
    for name, snapshot in zip("ab", snapshots[2:], strict=True):
        await small.name_snapshot(key, name, at, b"{}", snapshot)
    if end == "delete":
        await small.delete(key)
    else:
        await small.commit(build.commit(key, at, state=None, ttl_ms=1))
        kit.wait(3)
        await small.sweep()

    assert not any([await is_there(small, key, snapshot) for snapshot in snapshots])
    for call in (
        small.keep_snapshot(key, at, snapshots[0]),
        small.name_snapshot(key, "n", at, b"{}", snapshots[0]),
        small.named_snapshots(key),
        small.drop_snapshot(key, "a"),
    ):
        with pytest.raises(Gone):
            await call


async def test_an_unknown_session_has_no_snapshots(small, build):
    """Every call says that there is no such session."""
    absent = build.creation()
    snapshot = await small.put_snapshot(absent.key, b"state")

    for call in (
        small.keep_snapshot(absent.key, absent.position, snapshot),
        small.name_snapshot(absent.key, "n", absent.position, b"{}", snapshot),
        small.named_snapshots(absent.key),
        small.drop_snapshot(absent.key, "n"),
    ):
        with pytest.raises(NotFound):
            await call
