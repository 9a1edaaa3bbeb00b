"""What a model lets its clients choose; several on one device, none of which feels the others."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.state import ExpertConfig
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.answers import most_bytes
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.state import SessionState
from rlstm_server.errors import IdempotencyMismatch, InvalidField, ModelMismatch, ModelNotFound
from rlstm_server.schemas.generation import SessionGenerate
from rlstm_server.schemas.sessions import CreateSession, ForkRequest, ImportRequest
from rlstm_server.schemas.text import DEFAULT_EXPERTS, AdaptationChoice, AdaptationRequest, ScoreRequest
from rlstm_server.store.memory_store import MemoryStore

# ---- what can be chosen, and what it takes ----------------------------------------------------------------


@pytest.fixture
def served(tools):
    """A model that learns with its output's biases unless all weights are asked for."""
    given = tools.serve(ByteVocab())
    full = given.calibrated.default
    bias = replace(full, kind="output_bias", num_fast_weights=256, rate=0.02)
    calibrated = CalibrationSet(
        statistics=given.calibrated.statistics,
        choices=(bias, full),
        fingerprint="two",
    )
    return ServedModel(
        name="two", fingerprint="f", parameters=given.parameters, vocab=given.vocab, calibrated=calibrated
    )


@pytest.mark.parametrize(
    ("asked", "experts", "rates"),
    [
        ({}, DEFAULT_EXPERTS, (0.0, 0.02)),
        ({"static": False, "rate_scale": 2.0}, 1, (0.04,)),
        ({"experts": 4}, 4, (0.0, 0.02 / 3, 0.02, 0.06)),
    ],
)
def test_what_is_left_open_is_the_checkpoints_first_rule(served, asked, experts, rates):
    """With a number of experts that can be, and their rates: the static one first."""
    choice = served.choose(AdaptationRequest(**asked))

    assert (choice.kind, choice.num_fast_weights, choice.experts) == ("output_bias", 256, experts)
    assert choice.rates == pytest.approx(rates)


@pytest.mark.parametrize("kind", ["output_bias", "full"])
@pytest.mark.parametrize(("experts", "static"), [(1, False), (1, True), (2, True), (4, True)])
def test_the_bytes_of_a_state_are_known_before_it_is(served, kind, experts, static):
    """They are those of a state in the middle of a segment that has learned."""
    choice = served.choose(AdaptationRequest(kind=kind, experts=experts, static=static))
    evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
    state = evaluator.start(experts=experts, static=static, adapt=choice.adapt)
    for part in evaluator.observe(state, list(b"just enough text")):
        state = part.state

    assert state.pending
    assert served.state_bytes(choice) == state.nbytes


def test_the_norm_is_that_of_the_greatest_expert(served):
    """In units of the slow weights' norm; none before anything was learned."""
    choice = AdaptationChoice.of(served.rules[0], ExpertConfig(experts=4), 1.0)
    fresh = SessionState.before_text(served, choice)
    delta_KP = np.zeros((3, 256), np.float32)
    delta_KP[1, 0], delta_KP[2, :2] = 1.0, 2.0

    assert fresh.measured().norm_ratio == 0.0
    learned = replace(fresh, adapted=replace(fresh.adapted, delta_KP=delta_KP)).measured()
    assert learned.norm_ratio == pytest.approx(8**0.5 / served.parameters.norm, rel=1e-5)


# ---- several models ---------------------------------------------------------------------------------------


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
    scored = await engine.score(ScoreRequest(model=model, items=[item]).by(tools.call()))
    ask = tools.altered(tools.ask("the "), model=model)
    written, _, _ = await tools.collect(engine.generate(ask))
    talk = await tools.Talk.begin(engine, model=model)
    appended = [await talk.append(piece) for piece in (TEXT, TEXT)]
    logprobs = [answer.columns.logprobs for answer in appended]
    return scored.items[0].columns.logprobs, written, logprobs, await talk.probe()


@pytest.mark.parametrize("beside", ["other", "worded"])
async def test_each_gets_what_it_would_get_alone(tools, first, request, beside):
    """To the bit, though all of it is computed in the same batch steps."""
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
        fork = await engine.fork(ForkRequest().by(talk.call()))
        exported = await engine.export(talk.call())
        data = exported.data
        brought = await engine.import_session(ImportRequest(data=data).by(talk.call()))
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
        page = await engine.list_sessions(tools.caller(), 10, None)
        assert [(info.id, info.model, info.version) for info in page.sessions] == [(talk.session, "other", 1)]


async def test_a_key_is_of_one_model(tools, store, first, other):
    """The same creation for another model is another request; repeated, it names the model again."""
    async with tools.engine_on(store, served=first, others=(other,)) as engine:
        request = CreateSession(model="other").by(tools.call(key="k"))
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
        request = SessionGenerate(max_tokens=5, seed=3, commit=commit).by(talk.call(key="k"))
        for _ in range(2):
            *_, end = await tools.all_of(engine.generate_in_session(request))
            assert end.identity == other.identity


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
    asked = CreateSession(adaptation=tools.asked()).by(tools.call(key="k"))
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
    request = CreateSession(adaptation=tools.asked(kind="subspace")).by(tools.call(key="k"))
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
            request = SessionGenerate(max_tokens=5, seed=3, commit=True).by(talk.call(key="k"))
            *tokens, end = await tools.all_of(engine.generate_in_session(request))
            ends.append((len(tokens), end.version, end.replayed, end.identity))
    assert ends == [(5, 2, False, other.identity), (5, 2, True, None)]
