"""Texts are continued a token a batch step: stop strings, choices, prompts; counted and charged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.generate import StopStrings
from rlstm_server.schemas.generation import (
    CompletionRequest,
    EndEvent,
    GenerationSettings,
    PromptEvent,
    TokenEvent,
)
from rlstm_server.schemas.text import AdaptationRequest, ScoreRequest

# ---- stop strings, against a slow reference ---------------------------------------------------------------


BYTES = ByteVocab()
TEXTS = st.text(st.sampled_from("abé€"), max_size=24)
STOPS = st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=4), max_size=3)


def visible(text, stops):
    """The slow reference: the text before the first complete stop string, and whether there is one."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


def play(text, stops, vocab=BYTES, ids=None):
    """Feed a text token by token; return what came out after each, and the object."""
    held, steps = StopStrings(vocab, stops), []
    for token in vocab.encode(text).ids if ids is None else ids:
        steps.append(held.feed(token, -1.0))
        if held.stopped:
            break
    steps.append(held.flush())
    return steps, held


@given(TEXTS, STOPS)
def test_the_visible_text_is_that_of_the_slow_reference(text, stops):
    """Joined, what is released is the text before the first complete stop string."""
    steps, held = play(text, stops)
    shown = "".join(token.text for step in steps for token in step)

    assert (shown, held.stopped) == visible(text, stops)


@given(TEXTS, STOPS)
def test_released_tokens_are_the_visible_text_token_for_token(text, stops):
    """Released ids are exactly the bytes of the visible text: none is lost, none comes twice."""
    steps, _ = play(text, stops)
    ids = bytes(token.id for step in steps for token in step)

    assert ids == visible(text, stops)[0].encode()


@given(TEXTS, STOPS)
def test_nothing_is_held_back_without_reason(text, stops):
    """Before the end, all but the longest beginning of a stop string is out."""
    steps, held = play(text, stops)
    if not held.stopped:
        shown = "".join(token.text for step in steps[:-1] for token in step)
        waiting = text[len(shown) :]

        assert waiting == "" or any(stop.startswith(waiting) for stop in stops)


def test_a_character_is_never_cut():
    """The bytes of a character come out together, with its text at the last one."""
    held = StopStrings(BYTES, ())
    outs = [held.feed(byte, -1.0) for byte in "€".encode()]

    assert outs[:2] == [[], []]
    assert [token.text for token in outs[2]] == ["", "", "€"]


def test_an_incomplete_character_is_flushed_as_a_replacement():
    """At the end of the text, bytes that are no character read as U+FFFD."""
    steps, _ = play("", (), ids=[0xE2])

    assert [token.text for token in steps[-1]] == ["\ufffd"]


def test_what_was_begun_and_not_completed_is_text_of_its_own():
    """The next character's token has that alone."""
    steps, _ = play("", (), ids=[0xE2, 0x82, 97, 200, 98])

    assert [token.text for step in steps for token in step] == ["", "\ufffd", "a", "\ufffd", "b"]


def test_words_are_cut_where_the_stop_string_begins(words):
    """A token that holds the beginning of a stop string keeps the text before it."""
    steps, held = play("the cat sat", (" sa",), vocab=words)

    assert held.stopped
    assert "".join(token.text for step in steps for token in step) == "the cat"


@pytest.mark.parametrize(("before", "shown"), [("the", " cat"), ("the\n", "cat")])
def test_what_came_before_decides_about_the_space(words, before, shown):
    """The first word of a continuation begins with a space inside a line, and with none at its beginning."""
    held = StopStrings(words, (), after=words.encode(before).ids)

    assert "".join(token.text for token in held.feed(words.encode("cat").ids[0], -1.0)) == shown


def test_bytes_before_complete_the_first_character():
    """A text may go on in the middle of a character."""
    first, *rest = "é".encode()
    held = StopStrings(BYTES, (), after=[first])

    assert [token.text for token in held.feed(rest[0], -1.0)] == ["é"]


# ---- one prompt -------------------------------------------------------------------------------------------


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
    *events, _ = await tools.all_of(engine.generate(tools.ask(**settings)))
    tokens = tuple(event.id for event in events)
    request = ScoreRequest(items=[tools.item(tokens=tokens, context="the ")]).by(tools.call(tools.caller()))
    (scored,) = (await engine.score(request)).items

    assert [event.logprob for event in events] == pytest.approx(scored.columns.logprobs, abs=1e-5)
    assert [event.index for event in events] == list(range(8))


# ---- prompts that are read, told and continued ------------------------------------------------------------


def request(tools, *texts, max_tokens=4, choices=1, **options):
    settings = GenerationSettings(max_tokens=max_tokens, seed=1, choices=choices)
    prompts = tuple(texts)
    return CompletionRequest(call=tools.call(tools.caller()), prompts=prompts, settings=settings, **options)


async def test_a_prompt_is_told_once_and_before_its_continuations(engine, tools):
    """Two prompts, three choices each: two prompt events, six ends, numbered over all prompts."""
    events = await tools.all_of(engine.complete(request(tools, "the cat", "a dog", choices=3)))
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
    await tools.all_of(engine.complete(request(tools, "the cat sat", "ab", adaptation=adaptation, choices=2)))
    after = {kind: engine._metrics.tokens.labels(kind)._value.get() for kind in KINDS}

    counted = [after[kind] - before[kind] for kind in KINDS]
    assert counted == [11, 16, 11 if adaptation else 0]


KINDS = ("scored", "generated", "adapted")
