"""A large state is in no commit: base and log lead to it, to the last bit, whatever the guards did."""

import asyncio
import random
from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlstm_server.engine import snapshot as snapshot_module
from rlstm_server.engine.replay import Rebuilt, ReplayDiffers, replay
from rlstm_server.engine.served import ServedModel
from rlstm_server.errors import StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import AdaptationRequest, RestoreRequest, SnapshotRequest
from rlstm_server.store.in_memory import MemoryStore

TEXT = "the cat sat on the mat\nthe dog ran\n"
HOSTILE = "".join(chr(33 + number % 90) * 5 for number in range(80))
GUARDS = {"projected": {"projected"}, "skipped": {"step_skipped", "restarted"}, "broken": {"restarted"}}


texts = st.text(alphabet="the cat\n.é", min_size=1, max_size=14) | st.sampled_from([TEXT, HOSTILE[:60]])
operations = st.one_of(
    st.tuples(st.just("append"), texts, st.booleans(), st.booleans()),
    st.tuples(st.just("generate"), st.integers(1, 20), st.booleans()),
    st.tuples(st.just("reset"), st.sampled_from(["fast_weights", "recurrent", "both"])),
)


programs = given(
    program=st.lists(operations, min_size=1, max_size=6),
    expert_config=st.sampled_from([(1, True), (1, False), (2, True), (4, True)]),
    kind=st.sampled_from(["full", "subspace"]),
    rule=st.sampled_from(["broken", "calm", "projected", "skipped", "watched"]),
)
tried = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check_program(tools, logs, served, program, asked):
    """The log of a program leads to the state that was live."""

    async def run():
        store = MemoryStore()
        async with tools.engine_on(store, served=served) as engine:
            talk = await tools.Talk.begin(engine, adaptation=asked)
            await logs.perform(talk, program)
            live = logs.cached(engine, talk)
        return live, *(await logs.rebuilt(store, served, talk))

    live, copy, found = asyncio.run(run())
    assert found == logs.digest(live.state)
    assert (copy.position, copy.state.approx) == (live.position, False)


@settings(tried, max_examples=6)
@programs
def test_replay_equals_what_was_live_to_the_bit(tools, logs, served_by, program, expert_config, kind, rule):
    """Appends of any cut, kept text and resets, with any guard: the log leads to the very state."""
    asked = AdaptationRequest(experts=expert_config[0], static=expert_config[1], kind=kind)
    check_program(tools, logs, served_by(kind, rule), program, asked)


@pytest.mark.slow
@settings(tried, max_examples=500)
@programs
def test_five_hundred_programs(tools, logs, served_by, program, expert_config, kind, rule):
    """The same, many times."""
    asked = AdaptationRequest(experts=expert_config[0], static=expert_config[1], kind=kind)
    check_program(tools, logs, served_by(kind, rule), program, asked)


@pytest.mark.parametrize("experts", [1, 2, 4])
@pytest.mark.parametrize("rule", sorted(GUARDS))
async def test_what_guards_did_is_in_the_record_and_done_again(tools, logs, store, served_by, experts, rule):
    """Each guard acts in the program that provokes it, and acts again in the replay."""
    served = served_by("full", rule)
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=experts))
        answers = [await talk.append(TEXT[:13]), await talk.append(TEXT[13:])]
        live = logs.digest(logs.cached(engine, talk).state)
    _, found = await logs.rebuilt(store, served, talk)

    assert {guard for answer in answers for guard in answer.guards} & GUARDS[rule]
    assert found == live


async def test_a_watched_expert_is_reset_and_frozen_again(tools, logs, store, served_by):
    """The watch's decisions are in the record like all others."""
    served = served_by("full", "watched")
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=1))
        answer = await talk.append(HOSTILE)
        live = logs.digest(logs.cached(engine, talk).state)
    _, found = await logs.rebuilt(store, served, talk)

    assert answer.guards["reset"] >= 1
    assert found == live


async def test_a_word_in_progress_that_generation_ended_is_read_again(tools, logs, store, served_by):
    """The pending word was learned from before the first token was drawn: the record has both."""
    served = served_by("full", "calm", TEXT)
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("the cat sat on the ma")
        await logs.keep_text(talk, learn=False, tokens=5)
        live = logs.digest(logs.cached(engine, talk).state)
        records = [orjson.loads(record) for record in await logs.records_of(store, talk)]
    copy, found = await logs.rebuilt(store, served, talk)

    assert [[own["learn"] for own in record["readings"]] for record in records][1] == [True, False]
    assert (found, copy.state.place.pending) == (live, "")


# ---- what is recorded wins --------------------------------------------------------------------------------


async def first_learned(tools, logs, store, served, text=TEXT[:5]):
    """A fresh state, and the record of the first segment that is read from it."""
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=1))
        fresh = logs.cached(engine, talk).state
        await talk.append(text)
        learned = logs.cached(engine, talk).state
        (stored,) = await logs.records_of(store, talk)
    return fresh, learned, orjson.loads(stored)


def follow(tools, state, record, **changed):
    """The state after a record that was changed, where bits need not agree: other numerics wrote it."""
    stored = orjson.dumps({**record, **changed})
    return tools.finish(replay(Rebuilt(state, exact=False), [stored])).state


def guarded(record, **decided):
    """The same reading, with these decisions over its first part."""
    (reading,) = record["readings"]
    return [{**reading, "guarded": [[0, decided]]}]


async def test_a_step_that_was_skipped_is_not_taken_now(tools, logs, store, served_by):
    """Whatever the gradient is here."""
    served = served_by()
    fresh, learned, record = await first_learned(tools, logs, store, served)
    state = follow(tools, fresh, record, readings=guarded(record, skipped=[True]))

    assert learned.adapted.delta_KP is not None
    assert (state.adapted.delta_KP, state.adapted.bad_steps, state.approx) == (None, (1,), True)


async def test_fast_weights_are_cut_back_as_they_were(tools, logs, store, served_by):
    """By the factor of then, though their norm is no reason now."""
    served = served_by()
    fresh, learned, record = await first_learned(tools, logs, store, served)
    state = follow(tools, fresh, record, readings=guarded(record, scales=[0.25]))

    assert state.norm_ratio == pytest.approx(learned.norm_ratio / 4)


async def test_a_row_restarts_where_it_did(tools, logs, store, served_by):
    """Its fast weights are zero before the part, though it computes numbers now."""
    served = served_by()
    _, learned, record = await first_learned(tools, logs, store, served)
    restarted = follow(tools, learned, record, readings=guarded(record, restarted=[True]))
    gone_on = follow(tools, learned, record)

    assert restarted.norm_ratio < gone_on.norm_ratio


async def test_the_watch_resets_where_it_did(tools, logs, store, served_by):
    """Reset by the record alone; and left alone by it, though the sum says otherwise."""
    served = served_by("full", "watched")
    fresh, _, record = await first_learned(tools, logs, store, served, HOSTILE[:40])
    (reading,) = record["readings"]
    assert any("reset" in own for _, own in reading["guarded"])
    tolerant = [
        [number, {n: v for n, v in own.items() if n != "reset"}] for number, own in reading["guarded"]
    ]
    tolerated = follow(tools, fresh, record, readings=[{**reading, "guarded": tolerant}])
    calm, _, short = await first_learned(tools, logs, MemoryStore(), served_by())
    reset_at_once = follow(tools, calm, short, readings=guarded(short, reset=True))

    assert (tolerated.watch.frozen, tolerated.watch.freeze) == (0, 16)
    assert (reset_at_once.adapted.delta_KP, reset_at_once.watch.frozen) == (None, 16)


async def test_decisions_that_nobody_can_have_taken_are_refused(tools, logs, store, served_by):
    """Over another number of rows, or a factor above one: the log is damaged."""
    served = served_by()
    fresh, _, record = await first_learned(tools, logs, store, served)
    for wrong in ({"skipped": [True, False]}, {"scales": [1.5]}, {"unheard": [True]}):
        with pytest.raises(StateCorrupt):
            follow(tools, fresh, record, readings=guarded(record, **wrong))


async def test_the_same_numerics_with_another_digest_is_damage(tools, logs, store, served_by):
    """A record that was tampered with is noticed by the state it leads to."""
    served = served_by()
    fresh, _, record = await first_learned(tools, logs, store, served)
    (reading,) = record["readings"]
    stored = orjson.dumps({**record, "readings": [{**reading, "ids": reading["ids"][::-1]}]})
    with pytest.raises(ReplayDiffers):
        tools.finish(replay(Rebuilt(fresh, exact=True), [stored]))


async def test_a_device_that_takes_sums_in_any_order_is_believed(tools, logs, store, served_by, monkeypatch):
    """Equal bits are exact there too; others are marked, and no session is given up for them."""
    served = served_by()
    fresh, _, record = await first_learned(tools, logs, store, served)
    monkeypatch.setattr(ServedModel, "reproducible", False)
    (reading,) = record["readings"]
    stored = [
        orjson.dumps({**record, "readings": [{**reading, "ids": ids}]})
        for ids in (reading["ids"], reading["ids"][::-1])
    ]
    again, other = (tools.finish(replay(Rebuilt(fresh, exact=True), [own])).state.approx for own in stored)

    assert (again, other) == (False, True)


@pytest.mark.parametrize("by", ["the same numerics", "another machine", "sums in any order"])
async def test_no_log_is_followed_through_a_restore(tools, logs, store, served_by, monkeypatch, by):
    """Its record has no state: whatever came of the rest would be what was undone."""
    served = replace(served_by())
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine)
        fresh = logs.cached(engine, talk).state
        named = {"caller": talk.caller, "session": talk.session}
        await engine.take_snapshot(SnapshotRequest(**named, name="n"))
        await talk.append(TEXT)
        await engine.restore(RestoreRequest(**named, snapshot="n"))
    records = await logs.records_of(store, talk)
    if by == "another machine":
        object.__setattr__(served, "numerics", by)
    monkeypatch.setattr(ServedModel, "reproducible", by != "sums in any order")
    with pytest.raises(StateCorrupt, match="restore"):
        tools.finish(replay(Rebuilt(fresh, exact=True), records))


# ---- other numerics ---------------------------------------------------------------------------------------


async def test_other_numerics_are_taken_and_marked(tools, logs, store, served_by):
    """Where another machine computed some of the log, bits need not agree: the copy says `approx`."""
    served, other = served_by(), replace(served_by())
    object.__setattr__(other, "numerics", "another machine")
    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        probe = await talk.probe()
    metrics = Metrics()
    async with tools.engine_on(store, served=other, metrics=metrics) as engine:
        at = talk.at(engine)
        assert await at.probe() == pytest.approx(probe, abs=1e-4)
        assert logs.cached(engine, at).state.approx
        assert tools.value(metrics, "log_replays_total", outcome="approx") == 1
        await at.append(TEXT)
        live = logs.digest(logs.cached(engine, at).state)
    copy, found = await logs.rebuilt(store, other, talk)

    assert (found, copy.state.approx) == (live, True)


async def test_an_inline_state_of_other_numerics_is_marked_for_good(
    tools, logs, store, served_by, monkeypatch
):
    """The mark is part of the state from then on, whoever opens it."""
    monkeypatch.setattr(snapshot_module, "INLINE_BYTES", 1 << 30)
    served, other = served_by(), replace(served_by())
    object.__setattr__(other, "numerics", "another machine")
    async with tools.engine_on(store, served=served) as one, tools.engine_on(store, served=other) as two:
        talk = await tools.Talk.begin(one)
        await talk.append(TEXT)
        assert not logs.cached(one, talk).state.approx
        await talk.at(two).append(TEXT)
        assert logs.cached(two, talk).state.approx
        await talk.probe()
        assert logs.cached(one, talk).state.approx


def test_a_digest_is_of_values_not_of_a_file(tools, logs, served_by):
    """Equal states have equal digests, and any number that differs makes another."""
    state = tools.before_text(served_by(), experts=4)
    h = state.adapted.now.state.h.clone()
    h[0, 0, 0] = 1e-30
    now = state.adapted.now._replace(state=state.adapted.now.state._replace(h=h))
    other = replace(state, adapted=replace(state.adapted, now=now))
    counted = replace(state, totals=replace(state.totals, tokens=1))

    first, *others = (logs.digest(own) for own in (state, replace(state), other, counted))
    assert others[0] == first
    assert len({first, *others}) == 3


# ---- figures ----------------------------------------------------------------------------------------------


async def recorded(tools, logs, served, *, threads, sessions, length):
    """Sessions that learned side by side, in batches as they came; their digests as they were live."""
    store, draw = MemoryStore(), random.Random(threads)
    async with tools.engine_on(store, served=served, threads=threads) as engine:
        kinds = [AdaptationRequest(experts=draw.choice([1, 2, 4])) for _ in range(sessions)]
        talks = await asyncio.gather(*(tools.Talk.begin(engine, adaptation=asked) for asked in kinds))

        async def learn(talk, pieces):
            for piece in pieces:
                await talk.append(piece)

        texts = [(HOSTILE + TEXT)[draw.randint(0, 300) :][: draw.randint(5, length)] for _ in range(sessions)]
        cuts = [tools.pieces_of(text, number) for number, text in enumerate(texts)]
        await asyncio.gather(*(learn(talk, own) for talk, own in zip(talks, cuts, strict=True)))
        return store, [(talk, logs.digest(logs.cached(engine, talk).state)) for talk in talks]


async def count_equal(tools, logs, served, *, sessions, length):
    """Record in batches with one and two threads, replay each session alone: how many digests agree."""
    equal = 0
    for threads in (1, 2):
        store, live = await recorded(
            tools, logs, served, threads=threads, sessions=sessions // 2, length=length
        )
        async with tools.engine_on(store, served=served) as engine:
            for talk, digest in live:
                copy = await engine.sessions.read(logs.key_of(talk), talk.caller)
                equal += logs.digest(copy.state) == digest
    return equal


async def test_T24_batches_do_not_show_in_a_replay(tools, logs, served_by):
    """Twenty sessions that learned in company, replayed alone."""
    assert await count_equal(tools, logs, served_by(), sessions=20, length=20) == 20


@pytest.mark.slow
async def test_T24_two_hundred_sessions(tools, logs, served_by, capsys):
    """The same with two hundred."""
    equal = await count_equal(tools, logs, served_by(), sessions=200, length=200)
    with capsys.disabled():
        print(f"\nreplay: {equal}/200 digests equal")
    assert equal == 200
