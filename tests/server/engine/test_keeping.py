"""Generation that is kept: nobody sees text that the session does not remember."""

import asyncio
from contextlib import aclosing

import pytest
from tests.memory_store import MemoryStore

from rlstm_server.engine.stream import CHUNK
from rlstm_server.errors import Conflict, StoreUnavailable
from rlstm_server.schemas.generation import EndEvent
from rlstm_server.schemas.sessions import Candidate, CandidatesRequest, SessionGenerate
from rlstm_server.schemas.text import EngineLimits
from rlstm_server.schemas.wire import Call


class Counting(MemoryStore):
    """A store that fails from a given commit on, and remembers how many there were."""

    def __init__(self):
        super().__init__()
        self.commits, self.fail_at, self.before = 0, None, None

    async def commit(self, commit):
        """Count, fail, or commit."""
        self.commits += 1
        if self.before is not None and self.commits == self.fail_at:
            await self.before()
        elif self.commits == self.fail_at:
            raise StoreUnavailable("gone")
        return await super().commit(commit)


def request(talk, *, max_tokens=40, seed=3, stop=(), **fields):
    call = Call(
        caller=talk.caller,
        session=talk.session,
        key=fields.pop("key", None),
        if_match=fields.pop("if_match", None),
    )
    return SessionGenerate(max_tokens=max_tokens, seed=seed, stop=list(stop), **fields).by(call)


async def read(events, tokens=None):
    """Ids, text and end of a stream; token events go into `tokens` as they come."""
    tokens, end = [] if tokens is None else tokens, None
    async with aclosing(events) as stream:
        async for event in stream:
            if isinstance(event, EndEvent):
                end = event
            else:
                tokens.append(event)
    return [token.id for token in tokens], "".join(token.text for token in tokens), end


async def probe(talk):
    answer = await talk.engine.score_candidates(
        CandidatesRequest(candidates=[Candidate(id="p", text="probe")]).by(
            Call(caller=talk.caller, session=talk.session)
        )
    )
    return answer.candidates[0].logprob


async def test_without_commit_nothing_changes(engine, tools):
    """The text is the same each time, and the session stays where it is."""
    talk = await tools.Talk.begin(engine, text="once upon")
    before = await probe(talk)
    ids, _, end = await read(engine.generate_in_session(request(talk)))
    again, _, _ = await read(engine.generate_in_session(request(talk)))

    assert ids == again
    assert (len(ids), end.version) == (40, None)
    assert (await talk.info()).version == 1
    assert await probe(talk) == before


@pytest.mark.parametrize("learn", [False, True])
async def test_kept_text_is_what_the_session_has_read(engine, tools, learn):
    """After keeping, the session scores like one that the same ids were appended to."""
    talk = await tools.Talk.begin(engine, text="once upon")
    twin = await tools.Talk.begin(engine, text="once upon")
    ids, _, end = await read(engine.generate_in_session(request(talk, commit=True, learn_from_output=learn)))
    await twin.append(tokens=ids, learn=learn)
    info = await talk.info()

    assert (info.position, end.position, info.version) == (49, 49, end.version)
    assert await probe(talk) == pytest.approx(await probe(twin), abs=1e-5)
    assert info.totals.tokens == 9


async def test_kept_and_unkept_text_begin_alike(engine, tools):
    """With the same seed the first chunk is the same, kept or not."""
    talk = await tools.Talk.begin(engine, text="once upon")
    free, _, _ = await read(engine.generate_in_session(request(talk)))
    kept, _, _ = await read(engine.generate_in_session(request(talk, commit=True)))

    assert kept[:CHUNK] == free[:CHUNK]


async def test_a_reader_who_leaves_during_a_commit_keeps_nobody_waiting(tools):
    """His backlog is full, and nobody will empty it: the session goes on at once."""
    store, reached, opened = Counting(), asyncio.Event(), asyncio.Event()

    async def wait():
        reached.set()
        await opened.wait()

    limits = EngineLimits(reader_events=CHUNK, reader_seconds=60.0)
    async with tools.engine_on(store, limits=limits) as engine:
        talk = await tools.Talk.begin(engine)
        store.fail_at, store.before = 2, wait
        reading = asyncio.ensure_future(read(engine.generate_in_session(request(talk, commit=True))))
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
            await read(engine.generate_in_session(request(talk, commit=True)), shown)
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
            await read(engine.generate_in_session(request(talk, commit=True, key="g")))
        repeat = await read(other.generate_in_session(request(talk, commit=True, key="g")))
        whole = await read(engine.generate_in_session(request(twin, commit=True, key="g")))
        third = await read(engine.generate_in_session(request(talk, commit=True, key="g")))

        assert repeat[:2] == whole[:2] == third[:2]
        assert third[2].replayed
        assert (await talk.info()).position == 40


async def test_without_a_seed_a_repeat_goes_on_with_the_same_numbers(engine, tools):
    """A seed that is not given comes from the key."""
    talk, twin = await tools.Talk.begin(engine), await tools.Talk.begin(engine)
    _, one, _ = await read(engine.generate_in_session(request(talk, seed=None, commit=True, key="g")))
    _, two, _ = await read(engine.generate_in_session(request(twin, seed=None, commit=True, key="g")))

    assert one == two


async def test_a_stop_string_is_not_kept(engine, tools):
    """The session ends with the visible text, even where the stop string lies across two chunks."""
    talk = await tools.Talk.begin(engine)
    _, full, _ = await read(engine.generate_in_session(request(talk)))
    stop = full[CHUNK - 1 : CHUNK + 2]
    ids, text, end = await read(engine.generate_in_session(request(talk, stop=(stop,), commit=True)))

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
            await read(engine.generate_in_session(request(talk, commit=True)), shown)

        assert (caught.value.applied, caught.value.facts["version"]) == ("yes", 1)
        assert (await talk.info()).position == len(shown) + len("intruder")
        assert len(shown) >= CHUNK


async def test_an_append_waits_for_the_kept_text(engine, tools):
    """Keeping holds the session's turn: an append that comes meanwhile is read after it."""
    talk = await tools.Talk.begin(engine)
    stream = engine.generate_in_session(request(talk, commit=True))
    first = await anext(stream)
    append = asyncio.ensure_future(talk.append("after"))
    _, _, end = await read(stream)

    assert first.index == 0
    assert (await append).version == end.version + 1


async def test_a_reader_that_leaves_keeps_what_was_committed(engine, tools):
    """The stream ends with the chunk under way, and the session is free again."""
    talk = await tools.Talk.begin(engine)
    stream = engine.generate_in_session(request(talk, max_tokens=8_000, commit=True))
    await anext(stream)
    await stream.aclose()
    answer = await talk.append("after")

    assert answer.position < 8_000
    assert (await talk.info()).version == answer.version


async def test_the_word_in_progress_is_read_first(store, tools, words):
    """Generation ends a word that waits; kept, it is text of the session like any other."""
    async with tools.engine_on(store, served=tools.serve(words)) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("the ca")
        _, text, end = await read(engine.generate_in_session(request(talk, max_tokens=4, commit=True)))
        info = await talk.info()

    assert (info.position, info.pending, info.totals.tokens) == (6, 0, 2)
    assert end.completion_tokens == 4
    assert text[0] in " \n"
