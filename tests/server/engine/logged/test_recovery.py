"""Bases and logs of the store lead back to every session, and snapshots keep the logs short."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from rlstm_server.engine.snapshot_policy import SnapshotPolicy
from rlstm_server.engine.snapshotter import AT_ONCE
from rlstm_server.errors import StateCorrupt, StoreFull
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import AdaptationRequest, RestoreRequest, SnapshotRequest
from rlstm_server.store.base import Base, Limits, SnapshotRef
from rlstm_server.store.in_memory import MemoryStore

TEXT = "the cat sat on the mat\nthe dog ran\n"


async def test_a_crash_after_any_commit_loses_nothing(tools, logs, store, served_by):
    """Whoever goes on after each commit scores the probe as the one before did, to the bit."""
    served = served_by()
    program = [("append", "the c", True, False), ("generate", 17, True), ("reset", "fast_weights")]
    program += [("append", "at sat", True, True), ("reset", "recurrent"), ("append", TEXT, False, False)]
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4))
    for operation in program:
        async with tools.engine_on(store, served=served) as engine:
            await logs.perform(talk.at(engine), [operation])
            probe = await talk.at(engine).probe()
        async with tools.engine_on(store, served=served) as engine:
            assert await talk.at(engine).probe() == probe


async def test_a_new_large_session_is_stored_without_tensors(tools, logs, store, served_by):
    """Its origin is a header; the state that is made of it is the one it began with."""
    served = served_by()
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4, rate_scale=2.5))
        fresh = logs.cached(engine, talk)
    base = (await store.load_head(logs.key_of(talk))).base
    copy, found = await logs.rebuilt(store, served, talk)

    assert isinstance(base.state, bytes)
    assert len(base.state) < fresh.state.adapted.nbytes + 1_500
    assert b"now.h" not in base.state
    assert (found, copy.state.choice) == (logs.digest(fresh.state), fresh.state.choice)


async def test_the_store_says_when_a_snapshot_is_due(tools, logs, served_by):
    """The commit that finds the log full is repeated with a snapshot, under the same operation id, once."""
    store, served, metrics = MemoryStore(limits=Limits(log_records=3)), served_by(), Metrics()
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        talk = await tools.Talk.begin(engine)
        answers = [await talk.append("the cat sat", key=f"k{number}") for number in range(5)]
        again = await talk.append("the cat sat", key="k3")
        live = logs.digest(logs.cached(engine, talk).state)
        assert logs.cached(engine, talk).lead.records == 1
    base = (await store.load_head(logs.key_of(talk))).base
    _, found = await logs.rebuilt(store, served, talk)

    assert [answer.version for answer in answers] == [1, 2, 3, 4, 5]
    assert again.replayed
    assert (base.version, type(base.state), base.previous.version) == (4, SnapshotRef, 0)
    assert found == live


async def test_a_snapshot_is_taken_in_the_background_when_it_is_due(tools, logs, store, served_by):
    """The base moves, the session does not wait; the next one is due only after as much again."""
    served, metrics = served_by(), Metrics()
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        engine.sessions.snapshotter.policy = SnapshotPolicy(most_records=3)
        talk = await tools.Talk.begin(engine)
        for _ in range(4):
            await talk.append("the cat sat")
            await engine.sessions.snapshotter.settle()
        live, lead = logs.digest(logs.cached(engine, talk).state), logs.cached(engine, talk).lead
    base = (await store.load_head(logs.key_of(talk))).base
    copy, found = await logs.rebuilt(store, served, talk)

    assert (base.version, base.previous.version) == (3, 0)
    assert (lead.base, lead.records, lead.tokens) == (3, 1, 11)
    assert (copy.lead.base, copy.lead.records, copy.lead.tokens) == (3, 1, 11)
    assert tools.value(metrics, "snapshots_total", outcome="kept") == 1
    assert found == live


async def test_a_snapshot_that_fails_is_counted_and_nothing_else(tools, logs, served_by, monkeypatch):
    """The store refuses it; the session goes on, and no task is left behind."""
    store, served, metrics, refused = MemoryStore(), served_by(), Metrics(), asyncio.Event()

    async def refuse(key, state, **options):
        refused.set()
        raise StateCorrupt("no")

    monkeypatch.setattr(store, "put_snapshot", refuse)
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        engine.sessions.snapshotter.policy = SnapshotPolicy(most_records=1)
        talk = await tools.Talk.begin(engine)
        assert [(await talk.append("the cat")).version for _ in range(3)] == [1, 2, 3]
        await refused.wait()
        await asyncio.sleep(0)
    assert tools.value(metrics, "snapshots_total", outcome="failed") == 1


@pytest.fixture
def stalled(tools, served_by):
    """An engine whose snapshots, due with each append, wait for the store until it is told to answer."""
    store, opened, reached, puts = MemoryStore(), asyncio.Event(), asyncio.Event(), []
    real = store.put_snapshot

    async def wait(key, state, **options):
        puts.append(key)
        reached.set()
        await opened.wait()
        if store.refuses:
            raise StoreFull("no room")
        return await real(key, state, **options)

    store.put_snapshot, store.refuses = wait, False

    @asynccontextmanager
    async def running(**options):
        async with tools.engine_on(store, served=served_by(), **options) as engine:
            engine.sessions.snapshotter.policy = SnapshotPolicy(most_records=1)
            engine.opened, engine.reached, engine.puts = opened, reached, puts
            engine.refuse = partial(setattr, store, "refuses", True)
            yield engine

    return running


async def learned(tools, logs, engine):
    """A session whose snapshot is due, and its state as it can be seen and not held."""
    talk = await tools.Talk.begin(engine)
    await talk.append("the cat sat")
    copy = logs.cached(engine, talk)
    return talk, None if copy is None else weakref.ref(copy.state)


async def seen(states):
    """How many of these are still in memory."""
    await asyncio.sleep(0)
    gc.collect()
    return sum(state() is not None for state in states)


async def test_who_waits_for_his_snapshot_holds_no_state(tools, logs, stalled):
    """Of twelve that left the cache only those in memory are whose snapshots are being written."""
    async with stalled() as engine:
        states = [(await learned(tools, logs, engine))[1] for _ in range(12)]
        waiting = len(engine.sessions.snapshotter._tasks)
        for copy in engine.sessions.cache.copies():
            engine.sessions.cache.drop(copy.key)
        del copy
        assert (waiting, len(engine.puts), await seen(states)) == (12, AT_ONCE, AT_ONCE)
        engine.opened.set()
        await engine.sessions.snapshotter.settle()
        assert await seen(states) == 0


async def test_a_snapshot_that_waited_is_of_the_newest_state(tools, logs, stalled, served_by):
    """The later its turn comes, the shorter the log after it."""
    async with stalled() as engine:
        others = [await learned(tools, logs, engine) for _ in range(AT_ONCE)]
        talk, _ = await learned(tools, logs, engine)
        await talk.append(" on the mat")
        engine.opened.set()
        await engine.sessions.snapshotter.settle()
        base = (await engine.sessions.store.load_head(logs.key_of(talk))).base
    assert len(others) == AT_ONCE
    assert base.version == 2


async def test_a_snapshot_that_failed_holds_nothing_while_it_pauses(tools, logs, stalled):
    """The pause is the session's; its state may leave memory."""
    async with stalled() as engine:
        engine.refuse()
        engine.opened.set()
        talk, state = await learned(tools, logs, engine)
        await asyncio.wait_for(engine.reached.wait(), 5.0)
        await asyncio.sleep(0.01)
        engine.sessions.cache.drop(logs.key_of(talk))
        assert (len(engine.sessions.snapshotter._tasks), await seen([state])) == (1, 0)


async def test_the_end_of_a_session_ends_its_snapshot(tools, logs, stalled):
    """Nothing is written any more of what was deleted, and nothing of it kept."""
    async with stalled() as engine:
        talk, state = await learned(tools, logs, engine)
        await asyncio.wait_for(engine.reached.wait(), 5.0)
        await engine.delete(talk.caller.tenant, talk.session)
        await engine.sessions.snapshotter.settle()
        assert await seen([state]) == 0


# ---- damage -----------------------------------------------------------------------------------------------


class Damaging(MemoryStore):
    """A store whose snapshots come back with a bit flipped, or as another's."""

    def __init__(self):
        super().__init__()
        self.flipped, self.swapped = set(), {}

    async def get_snapshot(self, key, snapshot):
        """Read one, or what stands in its place."""
        owner, place = self.swapped.get(snapshot, (key, snapshot))
        state = bytearray(await super().get_snapshot(owner, place))
        if snapshot in self.flipped:
            state[len(state) // 2] ^= 1
        return bytes(state)


async def with_two_snapshots(tools, logs, store, served):
    """A session with a base, one before, and records after both."""
    async with tools.engine_on(store, served=served) as engine:
        engine.sessions.snapshotter.policy = SnapshotPolicy(most_records=2)
        talk = await tools.Talk.begin(engine)
        for _ in range(5):
            await talk.append("the cat sat")
            await engine.sessions.snapshotter.settle()
        live = logs.digest(logs.cached(engine, talk).state)
    base = (await store.load_head(logs.key_of(talk))).base
    assert (base.version, base.previous.version) == (4, 2)
    return talk, base, live


async def test_a_damaged_base_is_passed_over_for_the_one_before(tools, logs, served_by):
    """A longer log leads to the same state, and the damage is counted."""
    store, served, metrics = Damaging(), served_by(), Metrics()
    talk, base, live = await with_two_snapshots(tools, logs, store, served)
    store.flipped = {base.state}
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        copy = await engine.sessions.read(logs.key_of(talk), talk.caller)

    assert logs.digest(copy.state) == live
    assert (copy.lead.base, copy.lead.records) == (2, 3)
    assert tools.value(metrics, "snapshot_corrupt_total") == 1


async def test_when_both_bases_are_damaged_the_session_stands_still(tools, logs, served_by):
    """500 `state_corrupt` for every call; what the store has stays, and works again once it is whole."""
    store, served = Damaging(), served_by()
    talk, base, live = await with_two_snapshots(tools, logs, store, served)
    store.flipped = {base.state, base.previous.state}
    async with tools.engine_on(store, served=served) as engine:
        for call in (talk.at(engine).probe(), talk.at(engine).append("the cat")):
            with pytest.raises(StateCorrupt):
                await call
    assert (await store.load_head(logs.key_of(talk))).base == base
    store.flipped = set()
    _, found = await logs.rebuilt(store, served, talk)
    assert found == live


async def test_a_damaged_base_of_a_restore_is_not_passed_over(tools, logs, served_by):
    """No log leads from the one before through the restore: better no state than the one it undid."""
    store, served = Damaging(), served_by()
    talk, _, _ = await with_two_snapshots(tools, logs, store, served)
    async with tools.engine_on(store, served=served) as engine:
        named = {"caller": talk.caller, "session": talk.session}
        await engine.take_snapshot(SnapshotRequest(**named, name="n"))
        await talk.at(engine).append("the dog ran")
        await engine.restore(RestoreRequest(**named, snapshot="n"))
    store.flipped = {(await store.load_head(logs.key_of(talk))).base.state}
    other = replace(served)
    object.__setattr__(other, "numerics", "another machine")
    for loading in (served, other):
        async with tools.engine_on(store, served=loading) as engine:
            with pytest.raises(StateCorrupt):
                await talk.at(engine).probe()


async def test_another_sessions_snapshot_is_refused(tools, logs, served_by):
    """Snapshots that were swapped are not opened: each names its session and its version."""
    store, served = Damaging(), served_by()
    talk, base, _ = await with_two_snapshots(tools, logs, store, served)
    other, others_base, _ = await with_two_snapshots(tools, logs, store, served)
    store.swapped = {
        base.state: (logs.key_of(other), others_base.state),
        base.previous.state: (logs.key_of(talk), base.state),
    }
    async with tools.engine_on(store, served=served) as engine:
        with pytest.raises(StateCorrupt, match="names another"):
            await talk.at(engine).probe()


async def test_a_base_that_moved_while_it_was_read_is_no_damage(tools, logs, served_by):
    """What the old base needs is gone by then: the head is read again."""
    store, served, metrics = MemoryStore(), served_by(), Metrics()
    talk, _, live = await with_two_snapshots(tools, logs, store, served)
    real, heads = store.load_head, []

    async def behind(key, **options):
        head = await real(key, **options)
        heads.append(head)
        if len(heads) == 1:
            return replace(head, base=Base(version=1, state=SnapshotRef(generation="a", size=1)))
        return head

    store.load_head = behind
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        copy = await engine.sessions.read(logs.key_of(talk), talk.caller)

    assert logs.digest(copy.state) == live
    assert tools.value(metrics, "snapshot_corrupt_total") == 0


async def test_one_load_serves_all_who_wait(tools, logs, store, served_by):
    """Ten readers of a session that nobody has: its log is done again once."""
    served, metrics = served_by(), Metrics()
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
    async with tools.engine_on(store, served=served, metrics=metrics) as engine:
        await asyncio.gather(*(talk.at(engine).probe() for _ in range(10)))
    assert tools.value(metrics, "log_replays_total", outcome="exact") == 1
