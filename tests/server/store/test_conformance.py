"""What every store promises, where random programs (test_conformance_machine) cannot see it.

Times and limits of age, calls at the same moment, listings, other tenants, and the rules that faults are put
into (tests/mutation). Each claim runs on each store.
"""

import asyncio
from dataclasses import replace

import pytest

from rlstm_server.errors import Gone, InvalidField, NotFound, SessionExists, TooLarge, VersionMismatch
from rlstm_server.store.base import (
    Committed,
    CreationReplayed,
    Head,
    NamedSnapshot,
    Replayed,
    Retention,
    Revision,
    SessionKey,
    Stale,
    new_id,
)


def calls_on(store, build, key, at):
    """Every call on one session."""
    return (
        store.load_head(key),
        store.load_head(key, known=at),
        store.commit(build.commit(key, at)),
        store.recall(key, "key", b"b" * 32),
        store.name_snapshot(key, "n", at, b"{}"),
        store.named_snapshots(key),
        store.read_snapshot(key, "n"),
        store.drop_snapshot(key, "n"),
    )


# ---- reading -----------------------------------------------------------------------------------------------


async def test_a_known_head_comes_without_its_state(store, build):
    """The state is left out when the caller has it or wants none, and only then."""
    key, start = await build.session(store)
    one = (await store.commit(build.commit(key, start))).revision
    elsewhere = Revision(1, b"z" * 32)

    states = [(await store.load_head(key, known=known)).state for known in (one, start, elsewhere)]

    assert states == [None, b"state 1", b"state 1"]
    assert (await store.load_head(key, with_state=False)).state is None


async def test_an_unknown_session_is_not_found(store, build):
    """Every call on a session that never was, or is another tenant's, says the same."""
    key, start = await build.session(store)
    for absent in (SessionKey(build.tenant, new_id()), SessionKey("other", key.session_id)):
        for call in (*calls_on(store, build, absent, start), store.delete(absent)):
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

    pages = [[listed.key.session_id for listed in page.sessions] for page in (first, second, third)]
    ids = [key.session_id for key in keys]
    assert pages == [ids[:3], ids[3:6], ids[6:]]
    assert third.cursor is None
    assert all(listed.state is None for listed in first.sessions)


async def test_sessions_of_the_same_millisecond_are_all_listed(store, build):
    """Sessions made at the same time are told apart by their id."""
    creations = [build.creation() for _ in range(20)]
    await asyncio.gather(*(store.create(creation) for creation in creations))

    listed, page = [], await store.list(build.tenant, limit=3)
    listed += page.sessions
    while page.cursor is not None:
        page = await store.list(build.tenant, limit=3, cursor=page.cursor)
        listed += page.sessions

    assert sorted(one.key.session_id for one in listed) == sorted(one.key.session_id for one in creations)


async def test_a_wrong_cursor_is_refused(store, build):
    """A cursor that no page gave is named as the field at fault."""
    for cursor in ("", "1", "x.y", "1.A", "1." + "a" * 65, "-1.a", "1.a\n"):
        with pytest.raises(InvalidField, match="cursor"):
            await store.list(build.tenant, cursor=cursor)


async def test_usage_is_told(store, build):
    """A store says how many bytes it uses, and that it dropped nothing by itself."""
    before = await store.usage()
    await build.session(store, state=b"x" * 2_000_000)
    after = await store.usage()

    assert after.used_bytes - before.used_bytes > 1_000_000
    assert after.evicted_keys == 0
    await store.ping()


async def test_sessions_of_all_tenants_are_counted(store, build):
    """Whoever owns them; what has ended is not among them."""
    before = await store.total()
    key, _ = await build.session(store)
    await build.session(store)
    await build.of_another_tenant().session(store)
    among = await store.total()
    await store.delete(key)

    assert (among - before, await store.total() - before) == (3, 2)


# ---- creations ---------------------------------------------------------------------------------------------


async def test_many_creations_at_once_make_one_session(store, build):
    """Twenty creations with the same operation id, at the same time, make one session."""
    creations = [build.creation(operation_id="key") for _ in range(20)]

    outcomes = await asyncio.gather(*(store.create(creation) for creation in creations))

    ids = {o.revision.chain if isinstance(o, Head) else None for o in outcomes} - {None}
    assert len(ids) == 1
    assert sum(isinstance(outcome, CreationReplayed) for outcome in outcomes) == 19
    assert len((await store.list(build.tenant)).sessions) == await store.count(build.tenant) == 1


async def test_old_creations_are_forgotten(kit, build):
    """A creation is not known by its operation id after its time."""
    store = kit.make(Retention(operation_age_ms=50))
    await store.create(build.creation(operation_id="key"))
    kit.wait(60)

    assert isinstance(await store.create(build.creation(operation_id="key")), Head)
    await store.close()


async def test_one_of_many_takes_a_name(store, build):
    """Of ten creations of one name at the same time, one succeeds; another tenant's may have it too."""
    creations = [build.creation(name="diary") for _ in range(10)]

    outcomes = await asyncio.gather(*(store.create(c) for c in creations), return_exceptions=True)

    assert sum(isinstance(outcome, Head) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == 9
    assert isinstance(await store.create(build.of_another_tenant().creation(name="diary")), Head)


# ---- commits -----------------------------------------------------------------------------------------------


async def test_a_commit_on_another_history_is_stale(store, build):
    """The right number with another chain, or the reverse, is another history: it changes nothing."""
    key, start = await build.session(store)

    other_chain = await store.commit(build.commit(key, Revision(0, b"z" * 32)))
    other_number = await store.commit(build.commit(key, Revision(1, start.chain)))

    assert other_chain == other_number == Stale(current=start)
    assert (await store.load_head(key)).version == 0


async def test_a_repeat_gets_the_stored_answer(store, build):
    """An operation takes effect once: its repeat gets the first answer, whatever it was computed on."""
    key, start = await build.session(store)
    first = build.commit(key, start, operation_id="key", details=b"the scores")
    one = await store.commit(first)
    two = await store.commit(build.commit(key, one.revision))

    on_old = await store.commit(first)
    on_new = await store.commit(build.commit(key, two.revision, operation_id="key"))

    assert on_old == on_new
    known = Replayed(
        version=1,
        details=b"the scores",
        summary=b"summary 1",
        current=two.revision,
        expires_at_ms=two.expires_at_ms,
    )
    assert on_old == known
    assert (await store.load_head(key)).version == 2


async def test_if_match_refuses_another_version(store, build):
    """The version that a client insists on is compared with the store's, before anything else is."""
    key, start = await build.session(store)
    one = await store.commit(build.commit(key, start))

    for stale_too, wrong in ((start, 0), (one.revision, 7)):
        with pytest.raises(VersionMismatch) as moved:
            await store.commit(build.commit(key, stale_too, if_match=wrong))
        assert moved.value.facts == {"wanted": wrong, "version": 1}
    right = await store.commit(build.commit(key, one.revision, if_match=1))

    assert right.revision.version == 2


async def test_old_operations_are_forgotten_but_not_their_successors(kit, build):
    """After its time an id may be used anew, and is then known for as long as any other."""
    store = kit.make(Retention(operations=4, operation_age_ms=800))
    key, at = await build.session(store)
    at = (await store.commit(build.commit(key, at, operation_id="key"))).revision
    kit.wait(810)

    again = await store.commit(build.commit(key, at, operation_id="key"))
    at = again.revision
    for _ in range(3):  # the first use of the id leaves the window here
        at = (await store.commit(build.commit(key, at))).revision

    assert isinstance(again, Committed)
    assert (await store.commit(build.commit(key, at, operation_id="key"))).version == 2
    await store.close()


async def test_concurrent_commits_each_take_effect_once(store, build):
    """Fifty operations at once, each redone when it lost the race, make fifty versions."""
    key, _ = await build.session(store)

    async def append(number: int) -> int:
        while True:
            head = await store.load_head(key)
            state = head.state + b"," + str(number).encode()
            outcome = await store.commit(
                build.commit(key, head.revision, operation_id=f"key {number}", state=state)
            )
            if isinstance(outcome, Committed):
                return outcome.revision.version

    versions = await asyncio.gather(*(append(number) for number in range(50)))

    assert sorted(versions) == list(range(1, 51))
    applied = (await store.load_head(key)).state.split(b",")[1:]
    assert sorted(map(int, applied)) == list(range(50))


async def test_the_same_operation_sent_at_once_takes_effect_once(store, build):
    """Twenty copies of one commit at the same time make one version."""
    key, start = await build.session(store)
    commit = build.commit(key, start)

    outcomes = await asyncio.gather(*(store.commit(commit) for _ in range(20)))

    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Replayed) for outcome in outcomes) == 19
    assert (await store.load_head(key)).version == 1


# ---- named snapshots ---------------------------------------------------------------------------------------


async def test_only_the_present_can_be_named(store, build):
    """A state of another version or history is stale."""
    key, start = await build.session(store)
    at = (await store.commit(build.commit(key, start))).revision

    for wrong in (start, Revision(1, b"z" * 32), Revision(2, at.chain)):
        assert await store.name_snapshot(key, "n", wrong, b"{}") == Stale(current=at)

    assert isinstance(await store.name_snapshot(key, "n", at, b"{}"), NamedSnapshot)


async def test_named_snapshots_are_listed_by_version_and_limited(kit, build):
    """Oldest first; over the limit none is named, and both numbers are told."""
    store = kit.make(Retention(named_snapshots=2))
    key, start = await build.session(store)
    zero = await store.name_snapshot(key, "zero|0", start, b'{"a":"|"}')
    at = (await store.commit(build.commit(key, start))).revision
    one = await store.name_snapshot(key, "a", at, b"{}")

    with pytest.raises(TooLarge) as refused:
        await store.name_snapshot(key, "c", at, b"{}")

    assert (refused.value.facts["given"], refused.value.facts["limit"]) == (3, 2)
    assert await store.named_snapshots(key) == [zero, one]
    assert await store.read_snapshot(key, "zero|0") == (zero, b"state 0")
    await store.close()


# ---- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["deleted", "session_expired"])
async def test_what_has_ended_says_so_and_leaves_nothing(kit, store, build, reason):
    """Every call names the reason; name and id are free, and a session that has them begins with nothing."""
    creation = build.creation(name="diary")
    await store.create(creation)
    done = build.commit(creation.key, creation.revision)
    at = (await store.commit(done)).revision
    await store.name_snapshot(creation.key, "n", at, b"{}")
    if reason == "deleted":
        await store.delete(creation.key)
        await store.delete(creation.key)
    else:
        at = (await store.commit(build.commit(creation.key, at, ttl_ms=1))).revision
        kit.wait(3)

    for call in (*calls_on(store, build, creation.key, at), store.commit(done)):
        with pytest.raises(Gone) as gone:
            await call
        assert gone.value.reason == reason
    with pytest.raises(NotFound):
        await store.find(build.tenant, "diary")
    await store.create(replace(creation, operation_id="again"))
    assert await store.find(build.tenant, "diary") == creation.key.session_id
    assert await store.named_snapshots(creation.key) == []


async def test_a_tombstone_has_its_time(kit, build):
    """A deleted session is unknown after a while."""
    store = kit.make(Retention(tombstone_ms=50))
    key, _ = await build.session(store)
    await store.delete(key)
    kit.wait(60)

    for call in (store.load_head(key), store.delete(key)):
        with pytest.raises(NotFound):
            await call
    await store.close()


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


async def test_the_sweeper_ends_what_is_due(kit, store, build):
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
    assert [listed.key.session_id for listed in left] == [prolonged.session_id]
    with pytest.raises(Gone, match="session_expired"):
        await store.load_head(dead)
    assert isinstance(await store.create(build.creation(name="dead")), Head)
