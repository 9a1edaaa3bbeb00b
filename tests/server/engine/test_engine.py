"""The engine as its callers see it, on a tiny random model."""

import asyncio
import math
from contextlib import aclosing

import pytest

from rlstm_model.sampling import SamplingConfig
from rlstm_model.scoring import score
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.interface import EngineInterface
from rlstm_server.engine.messages import (
    AdaptationRequest,
    Candidate,
    CandidatesRequest,
    CandidateWeights,
    CreateSession,
    EndEvent,
    EngineLimits,
    GenerateRequest,
    GenerationSettings,
    Passage,
    ResetRequest,
    ScoreItem,
    ScoreRequest,
    TokenEvent,
)
from rlstm_server.errors import (
    Draining,
    Gone,
    IdempotencyMismatch,
    InvalidField,
    InvalidText,
    InvalidTokens,
    NotFound,
    SessionExists,
    TooLarge,
)
from rlstm_server.metrics import Metrics

TEXT = "the quick brown fox"


def item(text=None, *, name="i", context=None, tokens=None):
    passage = Passage(text=text) if tokens is None else Passage(tokens=tokens)
    return ScoreItem(id=name, passage=passage, context=None if context is None else Passage(text=context))


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"rlstm_{name}", labels)


async def collect(events):
    """All events of a stream as (text, ids, end) of each choice."""
    texts, ids, ends = {}, {}, {}
    async with aclosing(events) as stream:
        async for event in stream:
            if isinstance(event, EndEvent):
                ends[event.choice] = event
            else:
                texts[event.choice] = texts.get(event.choice, "") + event.text
                ids.setdefault(event.choice, []).append(event.id)
    return texts, ids, ends


# ---- sessions ---------------------------------------------------------------------------------------------


async def test_main_path(engine, tools):
    """A session is made, reads text, learns, and says what it did."""
    talk = await tools.Talk.begin(engine, name="diary", metadata={"shelf": 3})
    answer = await talk.append("hello, hello, hello")
    info = await talk.info()

    assert (answer.version, answer.position, answer.updates) == (1, 19, 19 // tools.SEGMENT)
    assert len(answer.columns.logprobs) == len(answer.columns.static_logprobs) == 19
    assert answer.totals.logprob == sum(answer.columns.logprobs)
    assert (info.version, info.position, info.name, info.metadata) == (1, 19, "diary", {"shelf": 3})
    assert info.totals.adapted_nats == -answer.totals.logprob
    assert info.totals.gain == pytest.approx(answer.totals.gain)


async def test_what_a_session_is_does_not_change_with_its_text(store, tools):
    """Name, metadata, creation time and choice come back the same after appends through any engine."""
    asked = AdaptationRequest(rate_scale=2.0, static=False)
    async with tools.engine_on(store) as one, tools.engine_on(store) as two:
        talk = await tools.Talk.begin(one, name="n", metadata={"a": [1]}, adaptation=asked, ttl_seconds=60)
        before = await talk.info()
        answer = await talk.at(two).append("abc")
        after = await talk.info()

    for field in ("name", "metadata", "created_at", "adaptation"):
        assert getattr(before, field) == getattr(after, field)
    assert (after.adaptation.rate_scale, after.adaptation.static, after.adaptation.experts) == (2.0, False, 1)
    assert before.totals.gain is None
    assert (answer.columns.static_logprobs, answer.totals.static_logprob, after.totals.gain) == (None,) * 3


async def test_the_first_text_is_appended_at_once(engine, tools):
    """Create with a text equals create, then append."""
    made = await engine.create_session(CreateSession(caller=tools.caller(), first=Passage(text=TEXT)))
    talk = await tools.Talk.begin(engine)

    assert made.append.columns == (await talk.append(TEXT)).columns
    assert (made.info.version, made.info.position) == (1, len(TEXT))


async def test_a_session_too_large_for_a_commit_is_not_made(store, tools):
    """Its state is written whole each time; the error names the kind, and both numbers."""
    async with tools.engine_on(store, limits=EngineLimits(state_bytes=4_000)) as engine:
        with pytest.raises(TooLarge, match=r"full of [\d,]+ with 4 experts: [\d,]+ given, at most 4,000"):
            await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4))
        page = await engine.list_sessions("acme", 10, None)

    assert page.sessions == ()


async def test_a_repeated_create_makes_one_session(engine, tools):
    """The same key gives the same session and the same first answer; another body is a mismatch."""
    request = CreateSession(caller=tools.caller(), first=Passage(text=TEXT), key="c1")
    made, again = await engine.create_session(request), await engine.create_session(request)

    assert (again.info.id, again.replayed, again.append.replayed) == (made.info.id, True, True)
    assert again.append.columns == made.append.columns
    with pytest.raises(IdempotencyMismatch):
        await engine.create_session(CreateSession(caller=tools.caller(), key="c1"))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"first": Passage(text="a\ud800")}, InvalidText),
        ({"first": Passage(tokens=(999,))}, InvalidTokens),
        ({"first": Passage(text="")}, InvalidField),
        ({"adaptation": AdaptationRequest(rate_scale=11.0)}, InvalidField),
        ({"adaptation": AdaptationRequest(rate_scale=math.nan)}, InvalidField),
        ({"ttl_seconds": 0.0}, InvalidField),
        ({"name": ""}, InvalidField),
        ({"name": "\ud800"}, InvalidText),
    ],
)
async def test_a_session_that_cannot_be_made_is_not_made(engine, tools, fields, error):
    """Bad input is refused before anything exists."""
    with pytest.raises(error):
        await engine.create_session(CreateSession(caller=tools.caller(), **fields))

    assert (await engine.list_sessions("acme", 10, None)).sessions == ()


async def test_a_name_is_taken_once(engine, tools):
    """Two live sessions of a tenant do not share a name; two tenants may."""
    await tools.Talk.begin(engine, name="diary")
    await tools.Talk.begin(engine, "other", name="diary")
    with pytest.raises(SessionExists):
        await tools.Talk.begin(engine, name="diary")


async def test_a_listing_shows_the_tenants_sessions_page_by_page(engine, tools):
    """All sessions of the tenant, each once, and nobody else's."""
    mine = [(await tools.Talk.begin(engine)).session for _ in range(5)]
    await tools.Talk.begin(engine, "other")
    seen, cursor = [], None
    while True:
        page = await engine.list_sessions("acme", 2, cursor)
        seen += [info.id for info in page.sessions]
        cursor = page.cursor
        if cursor is None:
            break

    assert sorted(seen) == sorted(mine)


async def test_reset_of_both_scores_like_a_new_session(engine, tools):
    """After a reset of both the next text is scored as at the beginning; version and position go on."""
    talk = await tools.Talk.begin(engine)
    first = await talk.append("abcde")
    reset = await engine.reset(ResetRequest(caller=talk.caller, session=talk.session, scope="both", key="r"))
    repeat = await engine.reset(ResetRequest(caller=talk.caller, session=talk.session, scope="both", key="r"))
    again = await talk.append("abcde")

    assert (reset.info.version, reset.info.position, repeat.replayed) == (2, 5, True)
    assert again.columns.logprobs == first.columns.logprobs
    assert again.columns.starts == (5, 6, 7, 8, 9)


async def test_reset_of_the_fast_weights_leaves_the_static_scores(engine, tools):
    """Without fast weights, and with the text still read, adapted scores come back to the static ones."""
    talk = await tools.Talk.begin(engine)
    await talk.append("abcdeabcde")
    await engine.reset(ResetRequest(caller=talk.caller, session=talk.session, scope="recurrent"))
    await engine.reset(ResetRequest(caller=talk.caller, session=talk.session, scope="fast_weights"))
    answer = await talk.append("abc")

    assert answer.columns.logprobs == answer.columns.static_logprobs


async def test_delete_is_final_and_idempotent(store, tools):
    """A deleted session is gone for every call; deleting it again is no error and is counted once."""
    metrics = Metrics()
    async with tools.engine_on(store, metrics=metrics) as engine:
        talk = await tools.Talk.begin(engine)
        await engine.delete("acme", talk.session)
        await engine.delete("acme", talk.session)
        with pytest.raises(Gone):
            await talk.append("x")
        with pytest.raises(Gone):
            await talk.info()

        assert value(metrics, "sessions_ended_total", reason="closed") == 1


@pytest.mark.parametrize("session", ["unknown", "../../etc", "", "ABC"])
async def test_an_unknown_session_is_not_found(engine, tools, session):
    """Whatever stands in the place of an id, it is a session or it is not found."""
    with pytest.raises(NotFound):
        await tools.Talk(engine, session).append("x")


async def test_another_tenants_session_is_not_found(engine, tools):
    """Whose session it is decides whether it exists."""
    talk = await tools.Talk.begin(engine)
    stranger = tools.Talk(engine, talk.session, "other")
    for call in (stranger.append("x"), stranger.info(), engine.delete("other", talk.session)):
        with pytest.raises(NotFound):
            await call


@pytest.mark.parametrize("scores", ["none", "totals", "tokens"])
async def test_scores_come_in_the_detail_asked_for(engine, tools, scores):
    """`none` gives neither sums nor columns, `totals` sums, `tokens` both."""
    answer = await (await tools.Talk.begin(engine)).append("abc", scores=scores)

    assert (answer.totals is not None, answer.columns is not None) == (scores != "none", scores == "tokens")


async def test_learn_false_reads_without_a_step(engine, tools):
    """Without learning there is no update, and the adapted scores stay the static ones."""
    answer = await (await tools.Talk.begin(engine)).append(TEXT, learn=False)

    assert answer.updates == 0
    assert answer.columns.logprobs == answer.columns.static_logprobs


async def test_words_wait_in_the_session(store, tools, words):
    """A word in progress is part of the committed state: another engine goes on with it."""
    served = tools.serve(words)
    async with tools.engine_on(store, served=served) as one, tools.engine_on(store, served=served) as two:
        talk = await tools.Talk.begin(one)
        held = await talk.append("the ca")
        rest = await talk.at(two).append("t", final=True)

    assert (held.pending, held.position, (rest.pending, rest.position)) == (2, 1, (0, 2))
    assert (rest.columns.starts, rest.columns.ends) == ((4,), (7,))


# ---- static scoring ---------------------------------------------------------------------------------------


async def test_scores_are_the_models(engine, tools):
    """An item's columns are what the model's own scoring gives, however long the text."""
    text = TEXT * 30
    answer = await engine.score(ScoreRequest(caller=tools.caller(), items=(item(text),), top=2))
    served = tools.serve(ByteVocab())
    expected, _ = score(served.model, list(text.encode()), state=None, last=10, top=2)
    (scored,) = answer.items

    assert scored.first_token == "bos"
    assert scored.columns.logprobs == pytest.approx(expected.logprobs.tolist(), abs=1e-6)
    assert scored.columns.ranks == tuple(expected.ranks.tolist())
    assert scored.totals.logprob == sum(scored.columns.logprobs)
    assert [row[0][0] for row in scored.columns.top] == expected.top_ids[:, 0].tolist()


async def test_a_context_is_read_and_not_reported(engine, tools):
    """The scores after a context are the tail of the scores of both together."""
    request = ScoreRequest(caller=tools.caller(), items=(item("brown fox", context="the quick "), item(TEXT)))
    after, whole = (await engine.score(request)).items

    assert after.first_token == "context"
    assert after.columns.logprobs == pytest.approx(whole.columns.logprobs[10:], abs=1e-6)
    assert (after.columns.starts[0], after.totals.tokens) == (0, 9)


async def test_adapting_inside_an_item_equals_a_session(engine, tools):
    """Dynamic evaluation of an item gives the scores of the same text in a new session."""
    request = ScoreRequest(caller=tools.caller(), items=(item(TEXT),) * 2, adaptation=AdaptationRequest())
    one, two = (await engine.score(request)).items
    session = await (await tools.Talk.begin(engine)).append(TEXT)

    assert one.columns.logprobs == two.columns.logprobs == session.columns.logprobs
    assert one.columns.static_logprobs == session.columns.static_logprobs
    assert one.updates == session.updates > 0


async def test_candidates_are_ranked_and_change_nothing(engine, tools):
    """The mix of log-probability, length and a given score decides; the session stays as it is."""
    talk = await tools.Talk.begin(engine)
    await talk.append("x" * tools.SEGMENT)
    candidates = tuple(
        Candidate(id=name, passage=Passage(text=text), given=given)
        for name, text, given in (("a", " jumps", 0.0), ("b", " jumps over", 5.0), ("c", " jumps", 0.0))
    )
    request = CandidatesRequest(
        caller=talk.caller,
        session=talk.session,
        candidates=candidates,
        weights=CandidateWeights(lm=1.0, length=0.5, given=100.0),
    )
    answer = await engine.score_candidates(request)
    one, two, three = answer.candidates

    assert two.score == pytest.approx(two.logprob + 0.5 * 11 + 500)
    assert (two.rank, one.rank, three.rank) == (1, 2, 3)
    assert one.logprob == pytest.approx((await talk.append(" jumps", learn=False)).totals.logprob, abs=1e-4)
    assert answer.version == 1


# ---- generation -------------------------------------------------------------------------------------------


def ask(tools, prompt="the ", **settings):
    return GenerateRequest(
        caller=tools.caller(),
        prompt=Passage(text=prompt),
        settings=GenerationSettings(**{"max_tokens": 12, "seed": 1, **settings}),
    )


async def test_choices_are_distinct_and_reproducible(engine, tools):
    """The same seed gives the same texts, another seed others, and choices differ among themselves."""
    _, first, ends = await collect(engine.generate(ask(tools, choices=3)))
    _, again, _ = await collect(engine.generate(ask(tools, choices=3)))
    _, other, _ = await collect(engine.generate(ask(tools, choices=3, seed=2)))
    _, single, _ = await collect(engine.generate(ask(tools)))

    assert first == again != other
    assert len({tuple(ids) for ids in first.values()}) == 3
    assert single[0] == first[0]
    assert {end.finish_reason for end in ends.values()} == {"length"}
    assert [len(ids) for ids in first.values()] == [12] * 3


async def test_logprobs_are_those_of_scoring(engine, tools):
    """A generated token's log-probability is what scoring gives it, whatever the temperature."""
    settings = {"max_tokens": 8, "sampling": SamplingConfig(temperature=2.0)}
    events = [
        event async for event in engine.generate(ask(tools, **settings)) if isinstance(event, TokenEvent)
    ]
    tokens = tuple(event.id for event in events)
    request = ScoreRequest(caller=tools.caller(), items=(item(tokens=tokens, context="the "),))
    (scored,) = (await engine.score(request)).items

    assert [event.logprob for event in events] == pytest.approx(scored.columns.logprobs, abs=1e-5)
    assert [event.index for event in events] == list(range(8))


async def test_a_stop_string_across_tokens_ends_the_text_before_it(engine, tools):
    """Of a text that would go on, what comes before the stop string is shown, and nothing of it."""
    texts, _, _ = await collect(engine.generate(ask(tools, max_tokens=40)))
    full = texts[0]
    stop = full[10:13]
    texts, ids, ends = await collect(engine.generate(ask(tools, max_tokens=40, stop=(stop,))))

    assert texts[0] == full[: full.index(stop)]
    assert ends[0].finish_reason == "stop"
    assert ends[0].completion_tokens == len(ids[0])


async def test_an_empty_prompt_means_the_beginning(engine, tools):
    """Without a prompt the text begins after bos."""
    _, _, ends = await collect(engine.generate(ask(tools, prompt="")))
    _, _, prompted = await collect(engine.generate(ask(tools)))

    assert (ends[0].prompt_tokens, prompted[0].prompt_tokens) == (0, 4)


async def test_a_reader_that_leaves_ends_the_work(engine, tools):
    """A stream of many tokens that is closed early leaves no job behind."""
    stream = engine.generate(ask(tools, max_tokens=60_000))
    await anext(stream)
    await stream.aclose()
    for _ in range(200):
        await asyncio.sleep(0.02 if engine.runner.active else 0)
    engine.check()

    assert engine.runner.active == 0


# ---- limits, metrics, the whole ---------------------------------------------------------------------------


async def test_every_limit_names_both_numbers(store, tools):
    """Over each limit: what was given and what is allowed; and the next good request works."""
    limits = EngineLimits(
        append_tokens=5, score_items=2, score_tokens=9, candidates=1, max_tokens=8, choices=2
    )
    async with tools.engine_on(store, limits=limits) as engine:
        talk = await tools.Talk.begin(engine)
        many = (Candidate(id="c", passage=Passage(text="x")),) * 2
        calls = [
            (talk.append("abcdef"), 6, 5),
            (engine.score(ScoreRequest(caller=talk.caller, items=(item("x"),) * 3)), 3, 2),
            (engine.score(ScoreRequest(caller=talk.caller, items=(item("abcde"),) * 2)), 10, 9),
            (engine.score(ScoreRequest(caller=talk.caller, items=(item("x"),), top=101)), 101, 100),
            (
                engine.score_candidates(
                    CandidatesRequest(caller=talk.caller, session=talk.session, candidates=many)
                ),
                2,
                1,
            ),
            (collect(engine.generate(ask(tools, max_tokens=9))), 9, 8),
            (collect(engine.generate(ask(tools, max_tokens=1, choices=3))), 3, 2),
        ]
        for call, given, limit in calls:
            with pytest.raises(TooLarge) as caught:
                await call

            assert (caught.value.given, caught.value.limit) == (given, limit)
        assert (await talk.append("abcde")).version == 1


async def test_metrics_are_the_sums_of_the_answers(store, tools):
    """Tokens, updates and losses in the metrics are exactly those that the answers reported."""
    metrics = Metrics()
    async with tools.engine_on(store, metrics=metrics) as engine:
        talks = [await tools.Talk.begin(engine) for _ in range(3)]
        answers = [await talk.append(TEXT * (1 + n), key=f"k{n}") for n, talk in enumerate(talks)]
        await talks[0].append(TEXT, key="k0")
        scored = await engine.score(ScoreRequest(caller=tools.caller(), items=(item(TEXT),)))
        _, _, ends = await collect(engine.generate(ask(tools)))

    tokens = sum(answer.totals.tokens for answer in answers)
    assert value(metrics, "tokens_total", kind="scored") == tokens + scored.items[0].totals.tokens
    assert value(metrics, "tokens_total", kind="adapted") == tokens
    assert value(metrics, "tokens_total", kind="generated") == ends[0].completion_tokens
    assert value(metrics, "adapt_updates_total", outcome="applied") == sum(a.updates for a in answers)
    for weights, field in (("adapted", "logprob"), ("static", "static_logprob")):
        assert value(metrics, "loss_nats_total", weights=weights) == -sum(
            getattr(answer.totals, field) for answer in answers
        )
        assert value(metrics, "loss_tokens_total", weights=weights) == tokens
    assert value(metrics, "sessions_created_total") == 3
    assert value(metrics, "idempotent_replays_total", result="replayed") == 1
    assert value(metrics, "gradient_norm_count") == sum(a.updates for a in answers)


async def test_without_calibration_there_are_no_sessions(store, tools):
    """A model that was never calibrated scores and generates; a session is refused by name."""
    async with tools.engine_on(store, served=tools.serve(ByteVocab(), calibrated=False)) as engine:
        scored = await engine.score(ScoreRequest(caller=tools.caller(), items=(item("x"),)))
        with pytest.raises(InvalidField) as caught:
            await tools.Talk.begin(engine)

    assert scored.items[0].totals.tokens == 1
    assert caught.value.field == "adaptation"


async def test_a_draining_engine_is_not_ready(store, tools):
    """Readiness fails first; new work is refused."""
    async with tools.engine_on(store) as engine:
        await engine.ready()
        await engine.drain(0)
        with pytest.raises(Draining):
            await engine.ready()
        with pytest.raises(Draining):
            await engine.score(ScoreRequest(caller=tools.caller(), items=(item("x"),)))


async def test_the_engine_is_the_interface(engine):
    """Everything that the HTTP layer may ask for is there."""
    names = {name for name in vars(EngineInterface) if not name.startswith("_")}

    assert names <= {name for name in dir(engine) if not name.startswith("_")}
    assert engine.identity.numerics.startswith("torch")
