"""The engine as its callers see it, on a tiny random model."""

import pytest

from rlstm_server.errors import (
    Gone,
    InvalidToken,
    ModelNotFound,
    TooLarge,
)
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import Candidate, CandidatesRequest, CreateSession, ResetRequest
from rlstm_server.schemas.text import AdaptationRequest, EngineLimits, ScoreRequest
from rlstm_server.schemas.wire import Call

TEXT = "the quick brown fox"


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
        talk = await tools.Talk.begin(one, name="n", metadata={"a": 1}, adaptation=asked, ttl_seconds=60)
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
    made = await engine.create_session(CreateSession(text=TEXT).by(tools.call()))
    talk = await tools.Talk.begin(engine)

    assert made.append.columns == (await talk.append(TEXT)).columns
    assert (made.info.version, made.info.position) == (1, len(TEXT))


async def test_a_session_too_large_for_a_commit_is_not_made(store, tools):
    """Its state is written whole each time; the error names the kind, and both numbers."""
    async with tools.engine_on(store, limits=EngineLimits(state_bytes=4_000)) as engine:
        with pytest.raises(
            TooLarge,
            match=r"full of [\d,]+ with 4 experts.*RLSTM_LIMITS__STATE_BYTES.*: [\d,]+ given, at most 4,000",
        ):
            await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4))
        page = await engine.list_sessions("acme", 10, None)

    assert page.sessions == ()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"tokens": [999]}, InvalidToken),
        ({"model": "unknown"}, ModelNotFound),
        ({"metadata": {str(number): "x" * 512 for number in range(32)}}, TooLarge),
    ],
)
async def test_a_session_that_cannot_be_made_is_not_made(engine, tools, fields, error):
    """Bad input is refused before anything exists."""
    with pytest.raises(error):
        await engine.create_session(CreateSession(**fields).by(tools.call()))

    assert (await engine.list_sessions("acme", 10, None)).sessions == ()


async def test_reset_of_both_scores_like_a_new_session(engine, tools):
    """After a reset of both the next text is scored as at the beginning; version and position go on."""
    talk = await tools.Talk.begin(engine)
    first = await talk.append("abcde")
    reset = await engine.reset(ResetRequest(what="both").by(talk.call(key="r")))
    repeat = await engine.reset(ResetRequest(what="both").by(talk.call(key="r")))
    again = await talk.append("abcde")

    assert (reset.info.version, reset.info.position, repeat.replayed) == (2, 5, True)
    assert again.columns.logprobs == first.columns.logprobs
    assert again.columns.starts == (5, 6, 7, 8, 9)


async def test_reset_of_the_fast_weights_leaves_the_static_scores(engine, tools):
    """Without fast weights, and with the text still read, adapted scores come back to the static ones."""
    talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(adapt="weights"))
    await talk.append("abcdeabcde")
    await engine.reset(ResetRequest(what="recurrent").by(talk.call()))
    await engine.reset(ResetRequest(what="fast_weights").by(talk.call()))
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

        assert tools.value(metrics, "sessions_ended_total", reason="closed") == 1


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


@pytest.mark.parametrize("texts", [("x" * 4_096, "y"), ("the " + "x" * 4_097,), ("x" * 10_000,)])
async def test_a_word_that_does_not_end_is_held_back_so_far(store, tools, words, texts):
    """Each record of the log has it whole: 413 names both numbers, nothing changes, and it can be ended."""
    async with tools.engine_on(store, served=tools.serve(words)) as engine:
        talk = await tools.Talk.begin(engine)
        for text in texts[:-1]:
            await talk.append(text)
        before = await talk.info()
        with pytest.raises(TooLarge, match=r"unfinished word: [\d,]+ given, at most 4,096") as caught:
            await talk.append(texts[-1])
        assert caught.value.given == sum(len(text.removeprefix("the ")) for text in texts)
        assert await talk.info() == before
        ended = await talk.append(texts[-1], final=True)
    assert (ended.pending, ended.totals.tokens) == (0, len("".join(texts).split()))


async def test_a_session_does_not_begin_with_a_word_that_does_not_end(store, tools, words):
    """It is refused before the session is made."""
    async with tools.engine_on(store, served=tools.serve(words)) as engine:
        with pytest.raises(TooLarge, match="unfinished word"):
            await tools.Talk.begin(engine, text="x" * 4_097)
    assert await store.count("acme") == 0


# ---- limits, metrics, the whole ---------------------------------------------------------------------------


async def test_every_limit_names_both_numbers(store, tools):
    """Over each limit: what was given and what is allowed; and the next good request works."""
    limits = EngineLimits(append_tokens=5, score_items=2, score_tokens=9, candidates=1, max_tokens=8)
    async with tools.engine_on(store, limits=limits) as engine:
        talk = await tools.Talk.begin(engine)
        many = [Candidate(id="c", text="x")] * 2
        calls = [
            (talk.append("abcdef"), 6, 5),
            (engine.score(ScoreRequest(items=[tools.item("x")] * 3).by(Call(**vars(talk.caller)))), 3, 2),
            (
                engine.score(ScoreRequest(items=[tools.item("abcde")] * 2).by(Call(**vars(talk.caller)))),
                10,
                9,
            ),
            (
                engine.score_candidates(CandidatesRequest(candidates=many).by(talk.call())),
                2,
                1,
            ),
            (tools.collect(engine.generate(tools.ask(max_tokens=9))), 9, 8),
            (tools.collect(engine.generate(tools.ask(max_tokens=3, n=3))), 9, 8),
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
        scored = await engine.score(ScoreRequest(items=[tools.item(TEXT)]).by(tools.call()))
        _, _, ends = await tools.collect(engine.generate(tools.ask()))

    tokens = sum(answer.totals.tokens for answer in answers)
    assert tools.value(metrics, "tokens_total", kind="scored") == tokens + scored.items[0].totals.tokens
    assert tools.value(metrics, "tokens_total", kind="adapted") == tokens
    assert tools.value(metrics, "tokens_total", kind="generated") == ends[0].completion_tokens
    assert tools.value(metrics, "adapt_updates_total", outcome="applied") == sum(a.updates for a in answers)
    for weights, field in (("adapted", "logprob"), ("static", "static_logprob")):
        assert tools.value(metrics, "loss_nats_total", part=weights) == -sum(
            getattr(answer.totals, field) for answer in answers
        )
        assert tools.value(metrics, "loss_tokens_total", part=weights) == tokens
    assert tools.value(metrics, "sessions_created_total") == 3
    assert tools.value(metrics, "idempotent_replays_total", result="replayed") == 1
    assert tools.value(metrics, "gradient_norm_count") == sum(a.updates for a in answers)
