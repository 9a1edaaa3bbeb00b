"""A kept text that broke off goes on after the event its reader had last: the same text, nothing twice."""

import asyncio
from contextlib import aclosing

import pytest
from tests.memory_store import MemoryStore

from rlstm_server.engine.stream import CHUNK, COMMITTED_TOKENS
from rlstm_server.errors import Conflict, Draining, Gone, InFlight, InvalidField, SlowConsumer, TooLarge
from rlstm_server.schemas.generation import EndEvent
from rlstm_server.schemas.sessions import SessionGenerate
from rlstm_server.schemas.text import EngineLimits
from rlstm_server.schemas.wire import Call
from rlstm_server.store.base import Limits


class Counting(MemoryStore):
    """A store that counts the commits that took effect."""

    def __init__(self, **options):
        super().__init__(**options)
        self.committed = 0

    async def commit(self, commit):
        """Count, and commit."""
        outcome = await super().commit(commit)
        self.committed += type(outcome).__name__ == "Committed"
        return outcome


def request(talk, *, max_tokens=70, seed=3, key="g", penalty=1.0, **fields):
    call = Call(caller=talk.caller, session=talk.session, key=key, after=fields.pop("after", None))
    return SessionGenerate(
        max_tokens=max_tokens, seed=seed, repetition_penalty=penalty, **({"commit": True} | fields)
    ).by(call)


async def read(events, count=None, tokens=None):
    """The token events, so many or all of them, and the end; they go into `tokens` as they come."""
    tokens, end = [] if tokens is None else tokens, None
    async with aclosing(events) as stream:
        async for event in stream:
            if isinstance(event, EndEvent):
                end = event
            else:
                tokens.append(event)
                if len(tokens) == count:
                    break
    return tokens, end


def ids(tokens):
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
        whole, _ = await read(engine.generate_in_session(request(twin, penalty=penalty)))
        before = store.committed
        first, _ = await read(engine.generate_in_session(request(talk, penalty=penalty)), had)
        await settled(engine)
        rest, end = await read(
            other.generate_in_session(request(talk, penalty=penalty, after=first[-1].mark))
        )

        assert ids(first + rest) == ids(whole)
        assert [token.index for token in rest] == list(range(had, 70))
        assert (end.completion_tokens, end.version) == (70, (await twin.info()).version)
        assert store.committed - before == end.version
        assert await talk.probe() == await twin.probe()


async def test_going_on_asks_only_for_the_chunks_that_are_missing(tools):
    """What was shown before is neither computed again nor asked for."""
    asked = []

    class Asked(MemoryStore):
        async def recall(self, key, operation_id, body_hash):
            asked.append(operation_id)
            return await super().recall(key, operation_id, body_hash)

    store = Asked()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        tokens, _ = await read(engine.generate_in_session(request(talk)))
        asked.clear()
        await read(engine.generate_in_session(request(talk, after=tokens[40].mark)))

    assert asked == ["g#2", "g#3", "g#4"]


async def test_a_mark_belongs_to_one_text(engine, tools):
    """Another key, another session, another index, or anything else is no id of ours."""
    talk, other = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
    tokens, _ = await read(engine.generate_in_session(request(talk)))
    mark = tokens[20].mark
    wrong = ["", "7", "x" * 64, mark[:-1], "1" + mark, mark.upper() + "G", mark.replace("20.", "21.", 1)]
    refused = [request(talk, after=after) for after in wrong]
    refused += [request(talk, after=mark, key="h"), request(other, after=mark)]
    refused += [request(talk, after=mark, key=None), request(talk, after=mark, commit=False)]
    version = (await talk.info()).version
    for each in refused:
        with pytest.raises(InvalidField) as caught:
            await read(engine.generate_in_session(each))
        assert caught.value.field == "last-event-id"
    assert (await talk.info()).version == version


async def test_a_text_does_not_go_on_in_a_session_that_was_changed(tools):
    """It would not be the same text: a conflict, and the session stays as it is."""
    store = MemoryStore()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk = await tools.Talk.begin(engine)
        first, _ = await read(engine.generate_in_session(request(talk)), 5)
        await settled(engine)
        version = (await talk.append("meanwhile")).version
        for replica in (engine, other):
            with pytest.raises(Conflict) as caught:
                await read(replica.generate_in_session(request(talk, after=first[-1].mark)))
            assert caught.value.applied == "yes"
        assert (await talk.info()).version == version


async def test_a_text_that_is_complete_can_be_had_again_whatever_came_after(engine, tools):
    """Only writing on is refused; what is stored is shown, up to the end."""
    talk = await tools.Talk.begin(engine)
    whole, _ = await read(engine.generate_in_session(request(talk)))
    await talk.append("afterwards")
    rest, end = await read(engine.generate_in_session(request(talk, after=whole[9].mark)))

    assert ids(rest) == ids(whole[10:])
    assert end.replayed


async def test_a_text_that_is_forgotten_is_not_written_again(tools):
    """Where the store no longer knows the chunk that the reader had, nothing is done."""
    store = MemoryStore(limits=Limits(operations=2))
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(request(talk)))
        version = (await talk.info()).version
        with pytest.raises(Conflict, match="remember"):
            await read(engine.generate_in_session(request(talk, after=whole[3].mark)))
        assert (await talk.info()).version == version


async def test_a_reader_whose_connection_is_lost_unnoticed_goes_on_at_once(tools):
    """The old stream, which nobody reads any more, ends; the new one has the text."""
    async with tools.engine_on(MemoryStore(), limits=EngineLimits(reader_events=32)) as engine:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(request(twin, max_tokens=160)))
        old = engine.generate_in_session(request(talk, max_tokens=160))
        first = [await anext(old) for _ in range(20)]
        resumed = request(talk, max_tokens=160, after=first[-1].mark)
        rest, _ = await read(engine.generate_in_session(resumed))

        assert ids(first + rest) == ids(whole)
        with pytest.raises(InFlight) as caught:
            await read(old)
        assert caught.value.applied == "yes"


async def test_two_replicas_that_write_one_text_write_it_once(tools):
    """Each chunk is kept by whoever is first and shown by both."""
    store = Counting()
    async with tools.engine_on(store) as engine, tools.engine_on(store) as other:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, end = await read(engine.generate_in_session(request(twin, max_tokens=120)))
        before = store.committed
        (left, _), (right, _) = await asyncio.gather(
            *(read(each.generate_in_session(request(talk, max_tokens=120))) for each in (engine, other))
        )

        assert ids(left) == ids(right) == ids(whole)
        assert store.committed - before == end.version


async def test_a_drain_ends_a_kept_text_at_the_next_chunk(tools):
    """Not when its time is up: it goes on elsewhere, from an exact version."""
    store = MemoryStore()
    limits = EngineLimits(reader_events=64)
    async with tools.engine_on(store, limits=limits) as engine, tools.engine_on(store) as other:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(other)
        whole, _ = await read(other.generate_in_session(request(twin, max_tokens=320)))
        stream, first = engine.generate_in_session(request(talk, max_tokens=320)), []
        first.append(await anext(stream))
        drain = asyncio.ensure_future(engine.drain(60))
        with pytest.raises(Draining) as caught:
            await read(stream, tokens=first)
        await asyncio.wait_for(drain, 5)

        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", (await talk.info()).version)
        assert len(first) == (await talk.info()).position < 320
        rest, _ = await read(other.generate_in_session(request(talk, max_tokens=320, after=first[-1].mark)))
        assert ids(first + rest) == ids(whole)


@pytest.mark.parametrize("commit", [False, True])
async def test_a_deleted_session_ends_its_streams_within_a_chunk(tools, commit):
    """Kept or not, whichever replica deleted it, however much was made ahead for the reader."""
    store = MemoryStore()
    limits = EngineLimits(reader_events=64)
    async with tools.engine_on(store, limits=limits) as engine, tools.engine_on(store) as other:
        for replica in (engine, other):
            talk = await tools.Talk.begin(engine)
            stream = engine.generate_in_session(request(talk, max_tokens=8_000, commit=commit))
            await anext(stream)
            await asyncio.sleep(0.1)
            await replica.delete(talk.caller.tenant, talk.session)
            after = []
            with pytest.raises(Gone):
                await read(stream, tokens=after)

            assert len(after) <= CHUNK


async def test_a_reader_who_takes_nothing_ends_a_kept_text_at_a_chunk(tools):
    """Nothing is made ahead of him beyond a bound; then his text ends, and the session is free again."""
    store = MemoryStore()
    async with tools.engine_on(store, limits=EngineLimits(reader_events=40, reader_seconds=0.2)) as engine:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(request(twin, max_tokens=120)))
        stream = engine.generate_in_session(request(talk, max_tokens=120))
        shown = [await anext(stream)]
        await settled(engine)
        version = (await talk.info()).version
        with pytest.raises(SlowConsumer) as caught:
            await read(stream, tokens=shown)

        assert 40 < len(shown) <= 40 + 2 * CHUNK
        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", version)
        rest, _ = await read(engine.generate_in_session(request(talk, max_tokens=120, after=shown[-1].mark)))
        assert ids(shown + rest) == ids(whole)


async def test_a_reader_who_pauses_loses_nothing(tools):
    """A kept text waits for a reader who comes back in time, and is the same."""
    async with tools.engine_on(MemoryStore(), limits=EngineLimits(reader_events=20)) as engine:
        talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
        whole, _ = await read(engine.generate_in_session(request(twin, max_tokens=120)))
        stream, shown = engine.generate_in_session(request(talk, max_tokens=120)), []
        async for event in stream:
            shown.append(event)
            await asyncio.sleep(0.05 if len(shown) % 40 == 0 else 0)

        assert ids(shown[:-1]) == ids(whole)


async def test_a_kept_text_takes_half_of_the_remembered_operations_at_most(engine, tools):
    """A longer one is refused: a repeat of it would not be known from its first chunk on."""
    talk = await tools.Talk.begin(engine)
    with pytest.raises(TooLarge):
        await read(engine.generate_in_session(request(talk, max_tokens=COMMITTED_TOKENS + 1)))
