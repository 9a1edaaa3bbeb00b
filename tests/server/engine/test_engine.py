"""The engine as its callers see it, on a tiny random model."""

import pytest

from rlstm_server.errors import TooLarge
from rlstm_server.schemas.sessions import ResetRequest
from rlstm_server.schemas.text import (
    AdaptationRequest,
)
from rlstm_server.settings import Limits

# ---- sessions ---------------------------------------------------------------------------------------------


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


async def test_a_session_too_large_for_a_commit_is_not_made(store, tools):
    """Its state is written whole each time; the error names the kind, and both numbers."""
    async with tools.engine_on(store, limits=Limits.model_construct(state_bytes=4_000)) as engine:
        with pytest.raises(
            TooLarge,
            match=r"full of [\d,]+ with 4 experts.*RLSTM_LIMITS__STATE_BYTES.*: [\d,]+ given, at most 4,000",
        ):
            await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=4))
        page = await engine.list_sessions(tools.caller(), 10, None)

    assert page.sessions == ()


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
        assert caught.value.facts["given"] == sum(len(text.removeprefix("the ")) for text in texts)
        assert await talk.info() == before
        ended = await talk.append(texts[-1], final=True)
    assert (ended.pending, ended.totals.tokens) == (0, len("".join(texts).split()))


async def test_a_session_does_not_begin_with_a_word_that_does_not_end(store, tools, words):
    """It is refused before the session is made."""
    async with tools.engine_on(store, served=tools.serve(words)) as engine:
        with pytest.raises(TooLarge, match="unfinished word"):
            await tools.Talk.begin(engine, text="x" * 4_097)
    assert await store.count("acme") == 0
