"""Texts are continued a token a round, whatever else is in it."""

import pytest

from rlstm_server.schemas.generation import TokenEvent
from rlstm_server.schemas.text import ScoreRequest
from rlstm_server.schemas.wire import Call


async def test_choices_are_distinct_and_reproducible(engine, tools):
    """The same seed gives the same texts, another seed others, and choices differ among themselves."""
    _, first, ends = await tools.collect(engine.generate(tools.ask(n=3)))
    _, again, _ = await tools.collect(engine.generate(tools.ask(n=3)))
    _, other, _ = await tools.collect(engine.generate(tools.ask(n=3, seed=2)))
    _, single, _ = await tools.collect(engine.generate(tools.ask()))

    assert first == again != other
    assert len({tuple(ids) for ids in first.values()}) == 3
    assert single[0] == first[0]
    assert {end.finish_reason for end in ends.values()} == {"length"}
    assert [len(ids) for ids in first.values()] == [12] * 3


async def test_logprobs_are_those_of_scoring(engine, tools):
    """A generated token's log-probability is what scoring gives it, whatever the temperature."""
    settings = {"max_tokens": 8, "temperature": 2.0}
    events = [
        event async for event in engine.generate(tools.ask(**settings)) if isinstance(event, TokenEvent)
    ]
    tokens = tuple(event.id for event in events)
    request = ScoreRequest(items=[tools.item(tokens=tokens, context="the ")]).by(Call(caller=tools.caller()))
    (scored,) = (await engine.score(request)).items

    assert [event.logprob for event in events] == pytest.approx(scored.columns.logprobs, abs=1e-5)
    assert [event.index for event in events] == list(range(8))


async def test_a_stop_string_across_tokens_ends_the_text_before_it(engine, tools):
    """Of a text that would go on, what comes before the stop string is shown, and nothing of it."""
    texts, _, _ = await tools.collect(engine.generate(tools.ask(max_tokens=40)))
    full = texts[0]
    stop = full[10:13]
    texts, ids, ends = await tools.collect(engine.generate(tools.ask(max_tokens=40, stop=(stop,))))

    assert texts[0] == full[: full.index(stop)]
    assert ends[0].finish_reason == "stop"
    assert ends[0].completion_tokens == len(ids[0])


async def test_an_empty_prompt_means_the_beginning(engine, tools):
    """Without a prompt the text begins after bos."""
    _, _, ends = await tools.collect(engine.generate(tools.ask(prompt="")))
    _, _, prompted = await tools.collect(engine.generate(tools.ask()))

    assert (ends[0].prompt_tokens, prompted[0].prompt_tokens) == (0, 4)
