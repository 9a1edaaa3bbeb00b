"""Prompts are read and continued by one job, which is counted, charged and ended like any other."""

from dataclasses import replace

import pytest

from rlstm_server.caller import Quota, TokenBucket
from rlstm_server.errors import RateLimited, TooLarge
from rlstm_server.schemas.generation import (
    CompletionRequest,
    EndEvent,
    GenerationSettings,
    PromptEvent,
    TokenEvent,
)
from rlstm_server.schemas.text import AdaptationRequest, Passage


def request(tools, *texts, max_tokens=4, choices=1, **options):
    settings = GenerationSettings(max_tokens=max_tokens, seed=1, choices=choices)
    prompts = tuple(Passage(text=text) for text in texts)
    return CompletionRequest(caller=tools.caller(), prompts=prompts, settings=settings, **options)


async def events_of(engine, asked):
    return [event async for event in engine.complete(asked)]


async def test_a_prompt_is_told_once_and_before_its_continuations(engine, tools):
    """Two prompts, three choices each: two prompt events, six ends, numbered over all prompts."""
    events = await events_of(engine, request(tools, "the cat", "a dog", choices=3))
    prompts = [event for event in events if isinstance(event, PromptEvent)]
    ends = {event.choice: event for event in events if isinstance(event, EndEvent)}
    first = {}
    for place, event in enumerate(events):
        if isinstance(event, TokenEvent):
            first.setdefault(event.choice // 3, place)

    assert [(prompt.prompt, prompt.text) for prompt in prompts] == [(0, "the cat"), (1, "a dog")]
    assert sorted(ends) == list(range(6))
    assert all(events.index(prompt) < first[prompt.prompt] for prompt in prompts)
    assert [ends[choice].prompt_tokens for choice in (0, 5)] == [7, 5]


@pytest.mark.parametrize("adaptation", [None, AdaptationRequest()])
async def test_what_is_read_and_written_is_counted(engine, tools, adaptation):
    """Scored tokens are those with a number; what is learned from is counted as adapted."""
    before = {kind: engine._metrics.tokens.labels(kind)._value.get() for kind in KINDS}
    await events_of(engine, request(tools, "the cat sat", "ab", adaptation=adaptation, choices=2))
    after = {kind: engine._metrics.tokens.labels(kind)._value.get() for kind in KINDS}

    counted = [after[kind] - before[kind] for kind in KINDS]
    assert counted == [11, 16, 11 if adaptation else 0]


KINDS = ("scored", "generated", "adapted")


async def test_a_quota_is_charged_for_all_prompts_and_choices(engine, tools):
    """After one that used more than a second's worth, the next one waits."""
    for name, rate, refuses in (("tokens", 1, True), ("generated", 1, True), ("generated", 1_000, False)):
        quota = Quota(**{name: TokenBucket(name, rate)})
        asked = request(tools, "abcd", "efgh", choices=2)
        asked = replace(asked, caller=replace(asked.caller, quota=quota))
        await events_of(engine, asked)
        refused = [error for error in [await failure(engine, asked)] if error]
        assert [type(error) for error in refused] == [RateLimited] * refuses


async def failure(engine, asked):
    try:
        await events_of(engine, asked)
    except RateLimited as error:
        return error
    return None


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "named"), [(300, 1, "300"), (1, 70_000, "70,000"), (9, 10_000, "90,000")]
)
async def test_what_is_too_much_is_refused_before_any_work(engine, tools, prompts, max_tokens, named):
    """By both numbers."""
    change = {
        "prompts": (Passage(text="a"),) * prompts,
        "settings": GenerationSettings(max_tokens=max_tokens),
    }
    with pytest.raises(TooLarge, match=named):
        await events_of(engine, replace(request(tools, "a"), **change))
    assert engine.worker.active == 0
