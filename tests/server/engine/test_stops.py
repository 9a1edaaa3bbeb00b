"""Stop strings, against a slow reference that looks at the whole text each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.generate import StopStrings

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
