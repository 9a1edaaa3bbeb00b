"""Several models on one device: each session and each request has its own, and none feels the others."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.memory_store import MemoryStore

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.answers import most_bytes
from rlstm_server.engine.models import Models
from rlstm_server.errors import IdempotencyMismatch, InvalidField, ModelMismatch, ModelNotFound
from rlstm_server.schemas.generation import EndEvent
from rlstm_server.schemas.sessions import CreateSession, ForkRequest, ImportRequest, SessionGenerate
from rlstm_server.schemas.text import ScoreRequest
from rlstm_server.schemas.wire import Call

TEXT = "the cat sat on the mat, and the dog ran. "


@pytest.fixture(scope="module")
def first(tools):
    """A model over bytes."""
    return replace(tools.serve(ByteVocab(), seed=0, kind="subspace", hidden=12), name="first")


@pytest.fixture(scope="module")
def other(tools):
    """Another over bytes, of another size."""
    return replace(tools.serve(ByteVocab(), seed=1, kind="subspace", hidden=16), name="other")


@pytest.fixture
def worded(tools, words):
    """One over words."""
    return replace(tools.serve(words, seed=2, kind="subspace", hidden=12), name="worded")


async def everything(tools, engine, model):
    """What one caller gets of a model: a score, a continuation, and what a session learns."""
    item = tools.item(TEXT)
    scored = await engine.score(ScoreRequest(model=model, items=[item]).by(Call(caller=tools.caller())))
    ask = tools.altered(tools.ask("the "), model=model)
    written, _, _ = await tools.collect(engine.generate(ask))
    talk = await tools.Talk.begin(engine, model=model)
    appended = [await talk.append(piece) for piece in (TEXT, TEXT)]
    logprobs = [answer.columns.logprobs for answer in appended]
    return scored.items[0].columns.logprobs, written, logprobs, await talk.probe()


@pytest.mark.parametrize("beside", ["other", "worded"])
async def test_each_gets_what_it_would_get_alone(tools, first, request, beside):
    """To the bit, though all of it is computed in the same rounds."""
    both = (first, request.getfixturevalue(beside))
    lonely = []
    for served in both:
        async with tools.engine_on(MemoryStore(), served=served) as engine:
            lonely.append(await everything(tools, engine, None))
    async with tools.engine_on(MemoryStore(), served=both[0], others=both[1:]) as engine:
        together = await asyncio.gather(*(everything(tools, engine, served.name) for served in both))
        by_default = await everything(tools, engine, None)

    assert together == lonely
    assert by_default == lonely[0]
    assert lonely[0] != lonely[1]


async def test_a_session_keeps_its_model(tools, store, first, other):
    """Loaded by another server, forked, exported, imported: by what it was computed with, not by a name."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        talk = await tools.Talk.begin(engine, model="other")
        await talk.append(TEXT)
        probe = await talk.probe()
    renamed = replace(other, name="renamed")
    async with tools.engine_on(store, served=renamed, others=(first,)) as engine:
        there = talk.at(engine)
        assert await there.probe() == probe
        assert ((await there.info()).model, (await there.info()).fingerprint) == ("other", "f1")
        fork = await engine.fork(ForkRequest().by(Call(caller=talk.caller, session=talk.session)))
        exported = await engine.export(talk.caller, talk.session)
        data = exported.data
        brought = await engine.import_session(ImportRequest(caller=talk.caller, data=data))
        for made in (fork, brought):
            assert made.identity == renamed.identity
            assert (made.info.model, made.info.fingerprint) == ("renamed", "f1")
            assert await tools.Talk(engine, made.info.id).probe() == probe


async def test_a_session_of_a_model_that_is_not_served_is_refused(tools, store, first, other):
    """It is listed, described and kept; nothing is computed with another model in its place."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        talk = await tools.Talk.begin(engine, model="other")
        await talk.append(TEXT)
    async with tools.engine_on(store, served=first) as engine:
        there = talk.at(engine)
        with pytest.raises(ModelMismatch):
            await there.append(TEXT)
        with pytest.raises(ModelMismatch):
            await there.probe()
        page = await engine.list_sessions("acme", 10, None)
        assert [(info.id, info.model, info.version) for info in page.sessions] == [(talk.session, "other", 1)]


async def test_an_unknown_name_is_refused(tools, engine):
    """Before anything is done; the sentence names those that are served."""
    for call in (
        engine.score(ScoreRequest(model="mine", items=[tools.item("x")]).by(Call(caller=tools.caller()))),
        engine.create_session(CreateSession(model="mine").by(Call(caller=tools.caller()))),
        tools.collect(engine.generate(tools.altered(tools.ask(), model="mine"))),
    ):
        with pytest.raises(ModelNotFound, match=r"these are: tiny$"):
            await call
    assert not (await engine.list_sessions("acme", 10, None)).sessions


async def test_a_key_is_of_one_model(tools, store, first, other):
    """The same creation for another model is another request; repeated, it names the model again."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        request = CreateSession(model="other").by(Call(caller=tools.caller(), key="k"))
        made, again = [await engine.create_session(request) for _ in range(2)]
        assert (again.info.id, again.identity, again.replayed) == (made.info.id, other.identity, True)
        with pytest.raises(IdempotencyMismatch):
            await engine.create_session(tools.altered(request, model="first"))


@pytest.mark.parametrize("commit", [False, True])
async def test_a_text_that_a_session_writes_says_whose_it_is(tools, store, first, other, commit):
    """The end of it does; so does that of a repeat, which is not written again."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        talk = await tools.Talk.begin(engine, model="other")
        await talk.append(TEXT)
        request = SessionGenerate(max_tokens=5, seed=3, commit=commit).by(
            Call(caller=talk.caller, session=talk.session, key="k")
        )
        for _ in range(2):
            async with aclosing(engine.generate_in_session(request)) as events:
                ends = [event async for event in events if isinstance(event, EndEvent)]
            assert [end.identity for end in ends] == [other.identity]


async def test_the_books_count_each_session_by_its_model(tools, store, first, other):
    """What its state may come to is what that model's states come to."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        sizes = []
        for name in ("first", "other"):
            await tools.Talk.begin(engine, tenant=name, model=name)
            (listed,) = (await store.list(name, limit=10, cursor=None)).sessions
            sizes.append(most_bytes(engine.models, listed))
        choice = first.choose(tools.asked())
        assert sizes == [first.state_bytes(choice), other.state_bytes(other.choose(tools.asked()))]
        assert sizes[0] < sizes[1]


def test_names_and_models_are_each_there_once(tools, first, other):
    """Two of a name could not be told apart by callers, nor twice the same by sessions.

    A colon is for `name:adapt`, under `/v1`.
    """
    with pytest.raises(ValueError, match="same name"):
        Models(first, replace(other, name="first"))
    with pytest.raises(ValueError, match="twice"):
        Models(first, replace(first, name="again"))
    with pytest.raises(ValueError, match="no colon"):
        Models(first, replace(other, name="first:adapt"))
    assert [served.name for served in Models(other, first)] == ["other", "first"]


async def test_a_repeated_creation_gets_its_first_answer(tools, store, first, other):
    """From a server with another first model, and from one that has not the model: the session is there."""
    asked = CreateSession(adaptation=tools.asked()).by(Call(caller=tools.caller(), key="k"))
    named = tools.altered(asked, key="n", model="other")
    async with tools.engine_on(store, served=other) as engine:
        made = [await engine.create_session(request) for request in (asked, named)]
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        again = [await engine.create_session(request) for request in (asked, named)]
        assert [one.identity for one in again] == [other.identity] * 2
    async with tools.engine_on(store, served=first) as engine:
        without = [await engine.create_session(request) for request in (asked, named)]
        assert [one.identity for one in without] == [None] * 2
        assert [one.info.fingerprint for one in without] == [other.fingerprint] * 2
        with pytest.raises(ModelNotFound) as refused:
            await engine.create_session(tools.altered(named, key="never"))
        assert refused.value.applied == "no"
    for repeats in (again, without):
        assert [(one.info.id, one.replayed) for one in repeats] == [(one.info.id, True) for one in made]


async def test_a_creation_that_cannot_be_made_any_more_was_made(tools, store, first, other):
    """Where the first model has no such rule now, that is no reason to say that nothing was applied."""
    request = CreateSession(adaptation=tools.asked(kind="subspace")).by(Call(caller=tools.caller(), key="k"))
    async with tools.engine_on(store, served=other) as engine:
        made = await engine.create_session(request)
    async with tools.engine_on(store, served=replace(first, calibrated=None)) as engine:
        assert (await engine.create_session(request)).info.id == made.info.id
        with pytest.raises(InvalidField) as refused:
            await engine.create_session(tools.altered(request, key="never"))
        assert refused.value.applied == "no"


async def test_a_stored_text_is_told_again_without_its_model(tools, store, first, other):
    """All of it; which model it was, this server cannot say."""
    ends = []
    for served in (other, first):
        async with tools.engine_on(store, served=served) as engine:
            if served is other:
                talk = await tools.Talk.begin(engine)
                await talk.append(TEXT)
            request = SessionGenerate(max_tokens=5, seed=3, commit=True).by(
                Call(caller=talk.caller, session=talk.session, key="k")
            )
            async with aclosing(engine.generate_in_session(request)) as events:
                *tokens, end = [event async for event in events]
            ends.append((len(tokens), end.version, end.replayed, end.identity))
    assert ends == [(5, 2, False, other.identity), (5, 2, True, None)]
