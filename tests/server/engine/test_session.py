"""One history a session: concurrent, replayed, raced, cut off, or crashed, every operation happens once."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rlstm_server.errors import Conflict, Draining, InFlight, OutcomeUnknown, Overloaded, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import Retention, Stale
from rlstm_server.store.memory_store import MemoryStore

TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom."


class Scripted(MemoryStore):
    """A store whose commits are bent: each script takes the real commit and gives what the caller sees."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scripts = []

    async def commit(self, commit):
        """Run the next script, or commit."""
        real = super().commit
        if self.scripts:
            return await self.scripts.pop(0)(real, commit)
        return await real(commit)


async def commit_and_stay_silent(real, commit):
    """The commit happens; its answer is lost."""
    await real(commit)
    raise OutcomeUnknown("no answer")


async def lose(real, commit):
    """The commit is lost on its way, and nobody knows."""
    raise OutcomeUnknown("no answer")


async def refuse_connection(real, commit):
    """The store is not there."""
    raise StoreUnavailable("connection refused")


@asynccontextmanager
async def held(tools, text, **fields):
    """An engine, a session on it, an append to it whose commit waits, and the event that lets it through."""
    store, entered, opened = Scripted(), asyncio.Event(), asyncio.Event()

    async def wait(real, commit):
        entered.set()
        await opened.wait()
        return await real(commit)

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = [wait]
        append = asyncio.ensure_future(talk.append(text, **fields))
        await entered.wait()
        yield engine, talk, append, opened


# ---- many at once -----------------------------------------------------------------------------------------


async def test_a_race_lost_four_times_is_a_conflict(tools):
    """After three redos the operation is refused, not applied, and the next one works."""
    store, metrics = Scripted(), Metrics()

    async def stale(real, commit):
        return Stale(current=commit.revision)

    async with tools.engine_on(store, metrics=metrics) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = [stale] * 4
        with pytest.raises(Conflict) as caught:
            await talk.append("x")

        assert caught.value.applied == "no"
        assert (await talk.append("x")).version == 1
        assert tools.value(metrics, "commit_conflicts_total", outcome="refused") == 1


# ---- once -------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_first_answer_whole(store, tools):
    """However long the append, whoever is asked and whatever came after: once, and it says it is a replay."""
    metrics = Metrics()
    async with tools.engine_on(store) as one, tools.engine_on(store, metrics=metrics) as two:
        talk = await tools.Talk.begin(one)
        first = [await talk.append(TEXT * n, key=f"k{n}") for n in (1, 3)]
        again = [await talk.at(two).append(TEXT * n, key=f"k{n}") for n in (1, 3)]
        for answer, repeat in zip(first, again, strict=True):
            known = replace(repeat, replayed=False, timings=answer.timings, expires_at=answer.expires_at)
            assert (repeat.replayed, known) == (True, answer)
        assert (await talk.info()).position == 4 * len(TEXT)
        assert tools.value(metrics, "idempotent_replays_total", result="replayed") == 2
        assert tools.value(metrics, "tokens_total", kind="scored") == 0


async def test_past_the_bound_a_repeat_says_that_its_scores_are_no_longer_stored(tools):
    """The newest is whole however long it is; older ones have totals, and say what is missing."""
    async with tools.engine_on(MemoryStore(limits=Retention(details_bytes=1))) as engine:
        talk = await tools.Talk.begin(engine)
        first = await talk.append("hello", key="k1")
        newest = await talk.append(TEXT, key="k2")
        again, whole = await talk.append("hello", key="k1"), await talk.append(TEXT, key="k2")

    assert (again.version, again.totals, again.columns) == (1, first.totals, None)
    assert (again.replayed, again.scores_stored) == (True, False)
    assert (whole.columns, whole.scores_stored) == (newest.columns, True)


async def test_a_repeat_while_the_first_is_under_way_is_refused(tools):
    """The same key twice at once: one is applied, the other told so."""
    async with held(tools, "x", key="k1") as (_, talk, first, opened):
        with pytest.raises(InFlight) as caught:
            await talk.append("x", key="k1")
        opened.set()

        assert caught.value.applied == "unknown"
        assert (await first).version == 1


# ---- a store that fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [commit_and_stay_silent, lose])
async def test_a_lost_answer_is_asked_for_again(tools, script):
    """Whether the commit or its answer was lost, the operation is applied once and counted once."""
    store, metrics = Scripted(), Metrics()
    async with tools.engine_on(store, metrics=metrics) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = [script]
        answer = await talk.append("hello")

        assert (answer.version, answer.replayed) == (1, False)
        assert (await talk.append("!")).position == 6
        assert tools.value(metrics, "tokens_total", kind="scored") == 6
        assert tools.value(metrics, "store_errors_total", op="commit", reason="timeout") == 1


async def test_a_store_that_is_away_changes_nothing(tools):
    """The append is refused, not applied, and works when the store is back."""
    store = Scripted()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = [refuse_connection]
        with pytest.raises(StoreUnavailable):
            await talk.append("hello")

        assert (await talk.append("hello")).version == 1


async def test_who_waits_behind_an_operation_that_the_store_left_alone_is_told_so_at_once(tools):
    """Waits for a store do not add up: those behind are refused at once; who comes later tries anew."""
    store, asked = Scripted(), []

    async def stay_away(real, commit):
        asked.append(commit.operation_id)
        await asyncio.sleep(0.05)
        raise StoreUnavailable("connection refused")

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = [stay_away] * 10
        together = [talk.append("hello", key=f"k{number}") for number in range(5)]
        told = await asyncio.gather(*together, return_exceptions=True)
        later = (await asyncio.gather(talk.append("hello"), return_exceptions=True))[0]
        store.scripts = []
        answer = await talk.append("hello", key="k3")

    assert [type(error) for error in (*told, later)] == [StoreUnavailable] * 6
    assert [error.applied for error in (*told, later)] == ["unknown"] * 5 + ["no"]
    assert len(asked) == 2
    assert (answer.version, answer.replayed) == (1, False)


# ---- crashes, cancels, deletes ----------------------------------------------------------------------------


async def test_nothing_is_seen_of_a_change_before_it_is_committed(tools):
    """A read while the commit is on its way finds the state of before; a commit that fails leaves it so."""
    async with held(tools, TEXT) as (engine, talk, append, opened):
        before = await (await tools.Talk.begin(engine)).probe()
        meanwhile = await talk.probe()
        opened.set()
        await append
        after = await talk.probe()
        engine.sessions.store.store.scripts = [refuse_connection]
        with pytest.raises(StoreUnavailable):
            await talk.append(TEXT)

        assert meanwhile == before != after
        assert await talk.probe() == after


async def test_draining_answers_everybody(tools):
    """What waits when the server goes down is told so; the commit that is under way goes through."""
    async with held(tools, "first") as (engine, talk, first, opened):
        second = asyncio.ensure_future(talk.append("second"))
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(engine.drain(0.01))
        with pytest.raises(Draining):
            await second
        opened.set()
        await draining
        with pytest.raises(Draining):
            await talk.append("third")

        assert (await first).version == 1


async def test_a_sessions_queue_is_bounded(tools):
    """Operations over the bound are refused at once; the others are applied."""
    async with held(tools, "x") as (engine, talk, first, opened):
        engine.sessions.queued_operations = 3
        waiting = [first, *(asyncio.ensure_future(talk.append("x")) for _ in range(2))]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await talk.append("y")
        opened.set()

        assert [answer.version for answer in await asyncio.gather(*waiting)] == [1, 2, 3]
