"""Text that a session writes: nobody sees what it does not remember, and a text that broke off goes on."""

import asyncio
from contextlib import aclosing

import pytest

from rlstm_server import settings
from rlstm_server.engine.stream import CHUNK, COMMITTED_TOKENS
from rlstm_server.errors import (
    Conflict,
    Draining,
    Gone,
    InFlight,
    InvalidField,
    SlowConsumer,
    StoreUnavailable,
    TooLarge,
)
from rlstm_server.schemas.generation import EndEvent, SessionGenerate, TokenEvent
from rlstm_server.store.base import Retention
from rlstm_server.store.memory_store import MemoryStore

# ---- texts that break off and go on -----------------------------------------------------------------------


class Counting(MemoryStore):
    """A store that fails, or waits, at a given commit, and counts those that took effect."""

    def __init__(self, **options):
        super().__init__(**options)
        self.commits, self.committed, self.fail_at, self.before = 0, 0, None, None

    async def commit(self, commit):
        """Count, fail, or commit."""
        self.commits += 1
        if self.before is not None and self.commits == self.fail_at:
            await self.before()
        elif self.commits == self.fail_at:
            raise StoreUnavailable("gone")
        outcome = await super().commit(commit)
        self.committed += type(outcome).__name__ == "Committed"
        return outcome


def kept(talk, *, max_tokens=70, seed=3, key="g", after=None, penalty=1.0, **fields):
    call = talk.call(key=key, after=after)
    return SessionGenerate(
        max_tokens=max_tokens, seed=seed, repetition_penalty=penalty, **({"commit": True} | fields)
    ).by(call)


async def read(events, count=None, tokens=None):
    """The token events, so many or all of them, and the end; they go into `tokens` as they come."""
    tokens, end = [] if tokens is None else tokens, None
    async with aclosing(events) as stream:
        async for events in stream:
            tokens += [event for event in events if isinstance(event, TokenEvent)]
            end = events[-1] if isinstance(events[-1], EndEvent) else None
            if count is not None and len(tokens) >= count:
                del tokens[count:]
                break
    return tokens, end


def ids_of(tokens):
    return [token.id for token in tokens]


async def settled(engine):
    """Wait until a text that was left is no longer written."""
    operations = [operation.task for operation in engine.sessions._tasks]
    if operations:
        await asyncio.wait(operations)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("had", [1, CHUNK, CHUNK + 5, 69, 70])
async def test_what_comes_after_is_the_rest_of_the_text(tools, had, penalty):
    """Cut after any event, on another replica: both parts are the uncut text, and each chunk is kept once."""
    store = Counting()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(kept(twin, penalty=penalty)))
        before = store.committed
        first, _ = await read(engine.generate_in_session(kept(talk, penalty=penalty)), had)
        await settled(engine)
        rest, end = await read(other.generate_in_session(kept(talk, penalty=penalty, after=first[-1].mark)))

        assert ids_of(first + rest) == ids_of(whole)
        assert [token.index for token in rest] == list(range(had, 70))
        assert (end.completion_tokens, end.version) == (70, (await twin.info()).version)
        assert store.committed - before == end.version
        assert await talk.probe() == await twin.probe()


async def test_a_mark_belongs_to_one_text(engine, tools):
    """Another key, another session, another index, or anything else is no id of ours."""
    talk, other = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
    tokens, _ = await read(engine.generate_in_session(kept(talk)))
    mark = tokens[20].mark
    wrong = ["", "7", "x" * 64, mark[:-1], "1" + mark, mark.upper() + "G", mark.replace("20.", "21.", 1)]
    refused = [kept(talk, after=after) for after in wrong]
    refused += [kept(talk, after=mark, key="h"), kept(other, after=mark)]
    refused += [kept(talk, after=mark, key=None), kept(talk, after=mark, commit=False)]
    version = (await talk.info()).version
    for each in refused:
        with pytest.raises(InvalidField) as caught:
            await read(engine.generate_in_session(each))
        assert caught.value.facts["field"] == "last-event-id"
    assert (await talk.info()).version == version


async def test_a_text_does_not_go_on_in_a_session_that_was_changed(tools):
    """It would not be the same text: a conflict, and the session stays as it is."""
    store = MemoryStore()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk = await tools.Talk.begin(engine)
        first, _ = await read(engine.generate_in_session(kept(talk)), 5)
        await settled(engine)
        version = (await talk.append("meanwhile")).version
        for replica in (engine, other):
            with pytest.raises(Conflict) as caught:
                await read(replica.generate_in_session(kept(talk, after=first[-1].mark)))
            assert caught.value.applied == "yes"
        assert (await talk.info()).version == version


async def test_a_text_that_is_complete_can_be_had_again_whatever_came_after(engine, tools):
    """Only writing on is refused; what is stored is shown, up to the end."""
    talk = await tools.Talk.begin(engine)
    whole, _ = await read(engine.generate_in_session(kept(talk)))
    await talk.append("afterwards")
    rest, end = await read(engine.generate_in_session(kept(talk, after=whole[9].mark)))

    assert ids_of(rest) == ids_of(whole[10:])
    assert end.replayed


async def test_a_text_that_is_forgotten_is_not_written_again(tools):
    """Where the store no longer knows the chunk that the reader had, nothing is done."""
    store = MemoryStore(limits=Retention(operations=2))
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(kept(talk)))
        version = (await talk.info()).version
        with pytest.raises(Conflict, match="remember"):
            await read(engine.generate_in_session(kept(talk, after=whole[3].mark)))
        assert (await talk.info()).version == version


async def test_a_reader_whose_connection_is_lost_unnoticed_goes_on_at_once(tools):
    """The old stream, which nobody reads any more, ends; the new one has the text."""
    async with tools.engine_on(MemoryStore(), limits=settings.Limits(reader_events=32)) as engine:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(kept(twin, max_tokens=160)))
        old = engine.generate_in_session(kept(talk, max_tokens=160))
        first = [*await anext(old), *await anext(old)][:20]
        resumed = kept(talk, max_tokens=160, after=first[-1].mark)
        rest, _ = await read(engine.generate_in_session(resumed))

        assert ids_of(first + rest) == ids_of(whole)
        with pytest.raises(InFlight) as caught:
            await read(old)
        assert caught.value.applied == "yes"


async def test_a_drain_ends_a_kept_text_at_the_next_chunk(tools):
    """Not when its time is up: it goes on elsewhere, from an exact version."""
    store = MemoryStore()
    limits = settings.Limits(reader_events=64)
    async with tools.engine_on(store, limits=limits) as engine, tools.engine_on(store) as other:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(other)
        whole, _ = await read(other.generate_in_session(kept(twin, max_tokens=320)))
        stream, first = engine.generate_in_session(kept(talk, max_tokens=320)), []
        first += await anext(stream)
        drain = asyncio.ensure_future(engine.drain(60))
        with pytest.raises(Draining) as caught:
            await read(stream, tokens=first)
        await asyncio.wait_for(drain, 5)

        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", (await talk.info()).version)
        assert len(first) == (await talk.info()).position < 320
        rest, _ = await read(other.generate_in_session(kept(talk, max_tokens=320, after=first[-1].mark)))
        assert ids_of(first + rest) == ids_of(whole)


@pytest.mark.parametrize("commit", [False, True])
async def test_a_deleted_session_ends_its_streams_at_the_next_look(tools, monkeypatch, commit):
    """Kept or not, whichever replica deleted it, however much was made ahead for the reader."""
    monkeypatch.setattr("rlstm_server.engine.stream.ALIVE_SECONDS", 0.0)
    store = MemoryStore()
    limits = settings.Limits(reader_events=64)
    async with tools.engine_on(store, limits=limits) as engine, tools.engine_on(store) as other:
        for replica in (engine, other):
            talk = await tools.Talk.begin(engine)
            stream = engine.generate_in_session(kept(talk, max_tokens=8_000, commit=commit))
            await anext(stream)
            await settled(engine)
            await replica.delete(talk.call())
            after = []
            with pytest.raises(Gone):
                await read(stream, tokens=after)

            assert not after


async def test_a_reader_who_takes_nothing_ends_a_kept_text_at_a_chunk(tools):
    """Nothing is made ahead of him beyond a bound; then his text ends, and the session is free again."""
    store = MemoryStore()
    async with tools.engine_on(store, limits=settings.Limits(reader_events=40, send_seconds=0.2)) as engine:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(kept(twin, max_tokens=120)))
        stream = engine.generate_in_session(kept(talk, max_tokens=120))
        shown = [*await anext(stream)]
        await settled(engine)
        version = (await talk.info()).version
        with pytest.raises(SlowConsumer) as caught:
            await read(stream, tokens=shown)

        assert 40 < len(shown) <= 40 + 2 * CHUNK
        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", version)
        rest, _ = await read(engine.generate_in_session(kept(talk, max_tokens=120, after=shown[-1].mark)))
        assert ids_of(shown + rest) == ids_of(whole)


async def test_a_kept_text_takes_half_of_the_remembered_operations_at_most(engine, tools):
    """A longer one is refused: a repeat of it would not be known from its first chunk on."""
    talk = await tools.Talk.begin(engine)
    with pytest.raises(TooLarge):
        await read(engine.generate_in_session(kept(talk, max_tokens=COMMITTED_TOKENS + 1)))


# ---- what is kept -----------------------------------------------------------------------------------------


def request(talk, *, max_tokens=40, stop=(), **fields):
    return kept(talk, **{"max_tokens": max_tokens, "stop": list(stop), "key": None, "commit": False} | fields)


async def read_text(events, tokens=None):
    """Ids, text and end of a stream; token events go into `tokens` as they come."""
    tokens, end = await read(events, tokens=tokens)
    return ids_of(tokens), "".join(token.text for token in tokens), end


async def test_without_commit_nothing_changes(engine, tools):
    """The text is the same each time, begins as it would if it were kept, and the session stays as it is."""
    talk, twin = [await tools.Talk.begin(engine, text="once upon") for _ in range(2)]
    before = await talk.probe()
    ids, _, end = await read_text(engine.generate_in_session(request(talk)))
    again, _, _ = await read_text(engine.generate_in_session(request(talk)))

    kept, _, _ = await read_text(engine.generate_in_session(request(twin, commit=True)))

    assert ids == again
    assert kept[:CHUNK] == ids[:CHUNK]
    assert (len(ids), end.version) == (40, None)
    assert (await talk.info()).version == 1
    assert await talk.probe() == before


@pytest.mark.parametrize("learn", [False, True])
async def test_kept_text_is_what_the_session_has_read(engine, tools, learn):
    """After keeping, the session scores like one that the same ids were appended to."""
    talk = await tools.Talk.begin(engine, text="once upon")
    twin = await tools.Talk.begin(engine, text="once upon")
    ids, _, end = await read_text(
        engine.generate_in_session(request(talk, commit=True, learn_from_output=learn))
    )
    await twin.append(tokens=ids, learn=learn)
    info = await talk.info()

    assert (info.position, end.position, info.version) == (49, 49, end.version)
    assert await talk.probe() == pytest.approx(await twin.probe(), abs=1e-5)
    assert info.totals.tokens == 9


async def test_a_reader_who_leaves_during_a_commit_keeps_nobody_waiting(tools):
    """His backlog is full, and nobody will empty it: the session goes on at once."""
    store, reached, opened = Counting(), asyncio.Event(), asyncio.Event()

    async def wait():
        reached.set()
        await opened.wait()

    limits = settings.Limits(reader_events=CHUNK, send_seconds=60.0)
    async with tools.engine_on(store, limits=limits) as engine:
        talk = await tools.Talk.begin(engine)
        store.fail_at, store.before = 2, wait
        reading = asyncio.ensure_future(read_text(engine.generate_in_session(request(talk, commit=True))))
        await reached.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        opened.set()
        answer = await asyncio.wait_for(talk.append("x"), 5.0)

    assert answer.version == 3


async def test_every_event_was_committed_before(tools):
    """When the store fails at the third commit, what was shown is what the session remembers."""
    store = Counting()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.fail_at = 3
        shown = []
        with pytest.raises(StoreUnavailable) as caught:
            await read_text(engine.generate_in_session(request(talk, commit=True)), shown)
        info = await talk.info()

        assert (info.version, info.position) == (2, len(shown))
        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", 2)


async def test_a_repeat_streams_what_is_kept_and_goes_on(tools):
    """A text cut off by a fault is completed by a repeat with the same key, as if nothing had happened."""
    store = Counting()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        store.fail_at = 3
        with pytest.raises(StoreUnavailable):
            await read_text(engine.generate_in_session(request(talk, commit=True, key="g")))
        repeat = await read_text(other.generate_in_session(request(talk, commit=True, key="g")))
        whole = await read_text(engine.generate_in_session(request(twin, commit=True, key="g")))
        third = await read_text(engine.generate_in_session(request(talk, commit=True, key="g")))

        assert repeat[:2] == whole[:2] == third[:2]
        assert third[2].replayed
        assert (await talk.info()).position == 40


async def test_without_a_seed_a_repeat_goes_on_with_the_same_numbers(engine, tools):
    """A seed that is not given comes from the key."""
    talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
    _, one, _ = await read_text(engine.generate_in_session(request(talk, seed=None, commit=True, key="g")))
    _, two, _ = await read_text(engine.generate_in_session(request(twin, seed=None, commit=True, key="g")))

    assert one == two


async def test_a_stop_string_is_not_kept(engine, tools):
    """The session ends with the visible text, even where the stop string lies across two chunks."""
    talk = await tools.Talk.begin(engine)
    _, full, _ = await read_text(engine.generate_in_session(request(talk)))
    stop = full[CHUNK - 1 : CHUNK + 2]
    ids, text, end = await read_text(engine.generate_in_session(request(talk, stop=(stop,), commit=True)))

    assert (end.finish_reason, text) == ("stop", full[: full.index(stop)])
    assert (await talk.info()).position == len(ids)


async def test_a_race_after_the_first_event_is_a_conflict_that_was_applied(tools):
    """Another replica's append in the middle of a kept text ends the stream; what was shown stays."""
    store = Counting()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk = await tools.Talk.begin(engine)
        store.fail_at = 2

        async def intrude():
            await talk.at(other).append("intruder")

        store.before = intrude
        shown = []
        with pytest.raises(Conflict) as caught:
            await read_text(engine.generate_in_session(request(talk, commit=True)), shown)

        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", 1)
        assert (await talk.info()).position == len(shown) + len("intruder")
        assert len(shown) >= CHUNK


async def test_an_append_waits_for_the_kept_text(engine, tools):
    """Keeping holds the session's turn: an append that comes meanwhile is read after it."""
    talk = await tools.Talk.begin(engine)
    stream = engine.generate_in_session(request(talk, commit=True))
    first, *_ = await anext(stream)
    append = asyncio.ensure_future(talk.append("after"))
    _, _, end = await read_text(stream)

    assert first.index == 0
    assert (await append).version == end.version + 1


async def test_the_word_in_progress_is_read_first(store, tools, words):
    """Generation ends a word that waits; kept, it is text of the session like any other."""
    async with tools.engine_on(store, served=tools.serve(words)) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("the ca")
        _, text, end = await read_text(engine.generate_in_session(request(talk, max_tokens=4, commit=True)))
        info = await talk.info()

    assert (info.position, info.pending, info.totals.tokens) == (6, 0, 2)
    assert end.completion_tokens == 4
    assert text[0] in " \n"
