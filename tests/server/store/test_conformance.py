"""What every store promises; each claim runs on each store."""

import asyncio
import dataclasses

import pytest

from rlstm_server.errors import Gone, InvalidField, NotFound, SessionExists
from rlstm_server.store.base import (
    Committed,
    Created,
    CreationReplayed,
    Limits,
    Mismatch,
    Moved,
    Position,
    Replayed,
    SessionKey,
    Stale,
    new_session_id,
    next_position,
)

SMALL = Limits(operations=4, answers=2, answer_bytes=100, log_records=3)


# Creating --------------------------------------------------------------------------------------------


async def test_a_created_session_is_there(store, build):
    """A new session is at version 0 with what it was given."""
    creation = build.creation(name="diary", info=b'{"a":1}', state=b"\x00\xff", ttl_ms=60_000)

    outcome = await store.create(creation)

    head = await store.load_head(creation.key)
    assert outcome == Created(head=head)
    assert (head.version, head.name, head.info, head.state) == (0, "diary", b'{"a":1}', b"\x00\xff")
    assert head.expires_at_ms - head.created_at_ms == head.ttl_ms == 60_000


async def test_a_repeated_creation_makes_one_session(store, build):
    """The same operation id, even with a fresh session id, is told of the first session."""
    first = build.creation(operation_id="key", answer=b"first")
    await store.create(first)

    outcome = await store.create(build.creation(operation_id="key", answer=b"second"))

    assert outcome == CreationReplayed(session_id=first.key.session_id, answer=b"first")
    assert await store.count(build.tenant) == 1


async def test_a_creation_with_another_body_is_a_mismatch(store, build):
    """An operation id cannot be used for two different creations."""
    await store.create(build.creation(operation_id="key"))

    outcome = await store.create(build.creation(operation_id="key", body_hash=b"x" * 32))

    assert outcome == Mismatch()
    assert await store.count(build.tenant) == 1


async def test_a_repeated_creation_of_a_deleted_session_says_so(store, build):
    """A deleted session is not made again by a repeat of its creation."""
    first = build.creation(operation_id="key")
    await store.create(first)
    await store.delete(first.key)

    with pytest.raises(Gone, match="deleted"):
        await store.create(build.creation(operation_id="key"))


async def test_many_creations_at_once_make_one_session(store, build):
    """Twenty creations with the same operation id, at the same time, make one session."""
    creations = [build.creation(operation_id="key") for _ in range(20)]

    outcomes = await asyncio.gather(*(store.create(creation) for creation in creations))

    ids = {o.head.position.chain if isinstance(o, Created) else None for o in outcomes} - {None}
    assert len(ids) == 1
    assert sum(isinstance(outcome, CreationReplayed) for outcome in outcomes) == 19
    assert len((await store.list(build.tenant)).sessions) == 1


async def test_creations_are_remembered_up_to_a_limit(kit, build):
    """Only the newest creations of a tenant are known by their operation id."""
    store = kit.make(SMALL)
    for number in range(5):
        await store.create(build.creation(operation_id=f"key {number}"))

    forgotten = await store.create(build.creation(operation_id="key 0"))
    known = await store.create(build.creation(operation_id="key 4"))

    assert isinstance(forgotten, Created)
    assert isinstance(known, CreationReplayed)
    await store.close()


async def test_old_creations_are_forgotten(kit, build):
    """A creation is not known by its operation id after its time."""
    store = kit.make(Limits(operation_age_ms=50))
    await store.create(build.creation(operation_id="key"))
    kit.wait(60)

    outcome = await store.create(build.creation(operation_id="key"))

    assert isinstance(outcome, Created)
    await store.close()


async def test_names_are_unique_per_tenant(store, build):
    """A name is taken within its tenant, and free in every other."""
    await store.create(build.creation(name="diary"))
    other = dataclasses.replace(build, tenant=build.tenant + "x")

    with pytest.raises(SessionExists):
        await store.create(build.creation(name="diary"))

    assert isinstance(await store.create(other.creation(name="diary")), Created)
    assert await store.count(build.tenant) == 1


async def test_one_of_many_takes_a_name(store, build):
    """Of ten creations of one name at the same time, one succeeds."""
    creations = [build.creation(name="diary") for _ in range(10)]

    outcomes = await asyncio.gather(*(store.create(c) for c in creations), return_exceptions=True)

    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, SessionExists) for outcome in outcomes) == 9


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_a_name_is_free_when_its_session_has_ended(kit, store, build, end):
    """The name of a session that was deleted or has expired can be used again."""
    first = build.creation(name="diary", ttl_ms=200)
    await store.create(first)
    if end == "delete":
        await store.delete(first.key)
    kit.wait(210)
    with pytest.raises(NotFound):
        await store.find(build.tenant, "diary")

    second = build.creation(name="diary")
    await store.create(second)

    assert await store.find(build.tenant, "diary") == second.key.session_id


# Committing ------------------------------------------------------------------------------------------


async def test_a_commit_moves_the_session_on(store, build):
    """A commit gives the next version, its state and info, and a record in the log."""
    key, start = await build.session(store)
    commit = build.commit(key, start, operation_id="key", info=b'{"n":1}', record=b"\x00r")

    outcome = await store.commit(commit)

    head = await store.load_head(key)
    assert outcome == Committed(position=next_position(start, b"\x00r"), expires_at_ms=head.expires_at_ms)
    assert (head.position, head.info, head.state) == (outcome.position, b'{"n":1}', b"state 1")
    [record] = await store.read_log(key, after=0)
    assert (record.version, record.operation_id, record.record) == (1, "key", b"\x00r")


async def test_a_commit_on_an_old_version_is_stale(store, build):
    """Work done on a version that is not the head changes nothing."""
    key, start = await build.session(store)
    first = await store.commit(build.commit(key, start))

    outcome = await store.commit(build.commit(key, start, state=b"other"))

    assert outcome == Stale(current=first.position)
    assert (await store.load_head(key)).state == b"state 1"


async def test_a_commit_on_another_history_is_stale(store, build):
    """The right number with another chain, or the reverse, is another history: it changes nothing."""
    key, start = await build.session(store)

    other_chain = await store.commit(build.commit(key, Position(0, b"z" * 32)))
    other_number = await store.commit(build.commit(key, Position(1, start.chain)))

    assert other_chain == other_number == Stale(current=start)
    assert (await store.load_head(key)).version == 0


async def test_a_repeat_gets_the_stored_answer(store, build):
    """An operation takes effect once: its repeat gets the first answer, whatever it was computed on."""
    key, start = await build.session(store)
    first = build.commit(key, start, operation_id="key", answer=b"the answer")
    one = await store.commit(first)
    two = await store.commit(build.commit(key, one.position))

    on_old = await store.commit(first)
    on_new = await store.commit(build.commit(key, two.position, operation_id="key"))

    assert on_old == on_new
    assert on_old == Replayed(version=1, answer=b"the answer", summary=b"summary 1", current=two.position)
    assert (await store.load_head(key)).version == 2


async def test_a_known_id_with_another_body_is_a_mismatch(store, build):
    """An operation id cannot be used for two different operations."""
    key, start = await build.session(store)
    one = await store.commit(build.commit(key, start, operation_id="key"))

    outcome = await store.commit(build.commit(key, one.position, operation_id="key", body_hash=b"x" * 32))

    assert outcome == Mismatch()
    assert (await store.load_head(key)).version == 1


async def test_if_match_refuses_another_version(store, build):
    """The version that a client insists on is compared with the store's, before anything else is."""
    key, start = await build.session(store)
    one = await store.commit(build.commit(key, start))

    stale_too = await store.commit(build.commit(key, start, if_match=0))
    right_state = await store.commit(build.commit(key, one.position, if_match=7))
    right = await store.commit(build.commit(key, one.position, if_match=1))

    assert stale_too == right_state == Moved(current=1)
    assert right.position.version == 2


async def test_a_repeat_comes_before_if_match(store, build):
    """A repeat with the same If-Match, which has moved since, still gets its answer."""
    key, start = await build.session(store)
    first = build.commit(key, start, if_match=0)
    await store.commit(first)

    assert isinstance(await store.commit(first), Replayed)


async def test_only_recent_short_answers_are_kept_whole(kit, build):
    """Older or longer answers are gone, their summaries are not."""
    store = kit.make(SMALL)
    key, at = await build.session(store)
    commits = []
    for answer in (b"old", b"a" * 100, b"b" * 101):
        commits.append(build.commit(key, at, answer=answer))
        at = (await store.commit(commits[-1])).position

    repeats = [await store.commit(commit) for commit in commits]

    assert [repeat.answer for repeat in repeats] == [None, b"a" * 100, None]
    assert [repeat.summary for repeat in repeats] == [b"summary 1", b"summary 2", b"summary 3"]
    await store.close()


async def test_operations_are_remembered_up_to_a_limit(kit, build):
    """Only the newest operation ids are known; a forgotten one is an operation like any other."""
    store = kit.make(SMALL)
    key, at = await build.session(store)
    for number in range(5):
        at = (await store.commit(build.commit(key, at, operation_id=f"key {number}"))).position

    known = await store.commit(build.commit(key, at, operation_id="key 1"))
    forgotten = await store.commit(build.commit(key, at, operation_id="key 0"))

    assert isinstance(known, Replayed)
    assert isinstance(forgotten, Committed)
    await store.close()


async def test_old_operations_are_forgotten_but_not_their_successors(kit, build):
    """After its time an id may be used anew, and is then known for as long as any other."""
    store = kit.make(dataclasses.replace(SMALL, operation_age_ms=800))
    key, at = await build.session(store)
    at = (await store.commit(build.commit(key, at, operation_id="key"))).position
    kit.wait(810)

    again = await store.commit(build.commit(key, at, operation_id="key"))
    at = again.position
    for _ in range(3):  # the first use of the id leaves the window here
        at = (await store.commit(build.commit(key, at))).position

    assert isinstance(again, Committed)
    assert (await store.commit(build.commit(key, at, operation_id="key"))).version == 2
    await store.close()


async def test_the_log_keeps_the_newest_records(kit, build):
    """Reading after a version begins at the oldest record that is left, and stops at the limit."""
    store = kit.make(SMALL)
    key, at = await build.session(store)
    for _ in range(5):
        at = (await store.commit(build.commit(key, at))).position

    versions = {after: [r.version for r in await store.read_log(key, after=after)] for after in (0, 3, 5)}

    assert versions == {0: [3, 4, 5], 3: [4, 5], 5: []}
    assert [r.version for r in await store.read_log(key, after=0, limit=2)] == [3, 4]
    await store.close()


async def test_concurrent_commits_each_take_effect_once(store, build):
    """Fifty operations at once, each redone when it lost the race, make fifty versions."""
    key, _ = await build.session(store)

    async def append(number: int) -> int:
        while True:
            head = await store.load_head(key)
            state = head.state + b"," + str(number).encode()
            outcome = await store.commit(
                build.commit(key, head.position, operation_id=f"key {number}", state=state)
            )
            if isinstance(outcome, Committed):
                return outcome.position.version

    versions = await asyncio.gather(*(append(number) for number in range(50)))

    assert sorted(versions) == list(range(1, 51))
    applied = (await store.load_head(key)).state.split(b",")[1:]
    assert sorted(map(int, applied)) == list(range(50))
    assert [r.version for r in await store.read_log(key, after=0)] == list(range(1, 51))


async def test_the_same_operation_sent_at_once_takes_effect_once(store, build):
    """Twenty copies of one commit at the same time make one version."""
    key, start = await build.session(store)
    commit = build.commit(key, start)

    outcomes = await asyncio.gather(*(store.commit(commit) for _ in range(20)))

    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Replayed) for outcome in outcomes) == 19
    assert (await store.load_head(key)).version == 1


# Loading ---------------------------------------------------------------------------------------------


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
            store.read_log(absent, after=0),
            store.delete(absent),
        ):
            with pytest.raises(NotFound):
                await call
    assert (await store.load_head(key)).version == 0


# Ending ----------------------------------------------------------------------------------------------


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
        store.read_log(key, after=0),
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
        store.read_log(key, after=0),
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


# Listing ---------------------------------------------------------------------------------------------


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
    await build.session(store, state=b"x" * 4_000_000)
    after = await store.usage()

    assert after.used_bytes - before.used_bytes > 2_000_000
    assert after.evicted_keys == 0
    await store.ping()
