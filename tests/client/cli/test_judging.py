"""A watch's judge: what it says of a line, from those before it, and that its note is all that it knows."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.judging import ROOM, Judge, Verdict, read_note

STATIC = 92.0  # bits, so that bits are hundredths of a score
Line = tuple[str, float]

LINES = st.tuples(
    st.sampled_from(["a 1", "a 12345", "b", "b c d e", "b c e d", "b c d f", "e 9:9", "# 1", "1 #", "é\0"]),
    st.floats(0, 300),
)


def judged(judge: Judge, line: Line) -> Verdict:
    """What it says of a text, which would cost so many bits."""
    seen = judge.compare(line[0])
    return judge.judge(seen, (line[1], STATIC) if seen.new else None)


def new(judge: Judge, *scores: float) -> list[Verdict]:
    """What it says of lines of which each has a template of its own."""
    return [judged(judge, (f"{'x' * (judge.lines + 1)}", 100 * score)) for score in scores]


def taught(*texts: str, lines: int = 30) -> Judge:
    """One that knows these well, and is warm."""
    judge = Judge(warm_up=2)
    for text in texts * lines:
        judged(judge, (text, 0))
    return judge


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, max_size=90), st.lists(LINES, min_size=1, max_size=60))
def test_a_note_is_all_that_a_judge_knows(before: list[Line], after: list[Line]) -> None:
    """One that goes on by it says the same of every line, and writes the same note."""
    judge = Judge(warm_up=5)
    for line in before:
        judged(judge, line)
    other = Judge(warm_up=5)
    told = read_note(judge.note(place={"at": 7}), other)

    assert told["place"] == {"at": 7}
    assert [judged(judge, line) for line in after] == [judged(other, line) for line in after]
    assert judge.note() == other.note()


def test_a_score_above_the_threshold_is_an_alarm_that_teaches_nothing() -> None:
    """From the end of the warm-up; what follows it in a row is told and learned."""
    judge = Judge(threshold=0.8, warm_up=2)
    verdicts = new(judge, 0.9, 0.9, 0.8, 0.81, 0.9, 0.9, 0.9, 0.9, 0.1, 0.9)

    assert [verdict.reason for verdict in verdicts] == [None] * 3 + ["score"] * 5 + [None, "score"]
    assert [verdict.learn for verdict in verdicts] == [True] * 3 + [False] + [True] * 5 + [False]
    assert verdicts[3].score == 0.81


def test_what_a_template_explains_is_not_asked_for() -> None:
    """Words that hold digits are fields, and differ from line to line, as does white space."""
    judge = taught("user ab12 logged in from 10.0.0.1:22", lines=1)

    assert judged(judge, ("user  x9 logged in from 127.0.0.1:8080", 0)) == Verdict(None, False, None)
    assert judge.compare("user x9 logged out from 127.0.0.1:8080").new
    new(judge, 2.0)
    assert judge.compare("x" * judge.lines).new  # an alarm's template is not known


def test_a_field_that_is_longer_than_ever_is_an_alarm_once() -> None:
    """By two characters or more, in a template that is well known."""
    assert judged(taught("took 1111 ms", lines=29), ("took 1111111 ms", 0)).reason is None
    judge = taught("took 1111 ms")
    assert judged(judge, ("took 11111 ms", 0)).reason is None
    assert judged(judge, ("took 1111111 ms", 0)) == Verdict("field", False, None)
    assert judged(judge, ("took 1111111 ms", 0)).reason is None


def test_a_word_that_never_changed_is_an_alarm_once() -> None:
    """One alone, in a well known template; where it has changed before, the line is asked what it costs."""
    assert taught("took 1 ms a", lines=29).compare("took 1 s a").new
    judge = taught("took 1 ms a", "took 1 ms or more")
    assert judge.compare("took 1 s or less").new
    assert judged(judge, ("took 22 s a", 0)) == Verdict("word", False, None)
    assert judged(judge, ("took 22 s a", 0)).reason is None
    assert judge.compare("took 1 h a").new
    assert taught("three words only").compare("three words less").new


def test_words_in_another_order_are_an_alarm_once() -> None:
    """Of any template; what parts them does not matter."""
    judge = taught("took|1|ms a", lines=2)
    assert judged(judge, ("ms|1|took a", 0)) == Verdict("order", False, None)
    assert judged(judge, ("ms|1|took a", 0)).reason is None


@pytest.mark.parametrize(
    ("known", "line", "reason", "words"),
    [
        ("took 1111 ms a", " took 1111111 ms a\n", "field", ["1111111"]),
        ("took 1 ms a", "\ttook 22  s a", "word", ["s"]),
        ("took|1|ms a", "ms|1|took a", "order", ["ms", "took"]),
        ("|took é 1 ms", "|took 1 é ms", "order", ["1", "é"]),
    ],
)
def test_what_made_an_alarm_is_told(known: str, line: str, reason: str, words: list[str]) -> None:
    """By places in the line; and how many like it there were, in the note too."""
    judge = taught(known)
    seen = judge.compare(line)
    judge.judge(seen, None)

    assert [line[start:end] for start, end in seen.spans] == words
    assert (seen.reason, judge.alike) == (reason, {f"{seen.name} {reason}": 1})
    other = Judge()
    read_note(judge.note(), other)
    assert other.alike == judge.alike


def test_nothing_is_an_alarm_before_the_end_of_the_warm_up() -> None:
    """Of no kind."""
    judge = Judge(warm_up=100)
    for text in ["took 1111 ms a"] * 40 + ["took 1 s a", "ms 1 took a", "took 1111111 ms a"]:
        assert judged(judge, (text, 300)).reason is None


def test_a_note_is_bounded() -> None:
    """However many templates there are, and words in them; the oldest are forgotten, the newest known."""
    judge = Judge()
    texts = [f"{'x' * (n % 77)} {'y' * (n // 77)} " + "7 " * (n % 150) for n in range(1_500)]
    for text in texts:
        judged(judge, (text, 50))
        judged(judge, (texts[0], 50))

    assert ROOM / 2 < len(judge.note()) < 65_536 - 4_096
    assert not judge.compare(texts[0]).new
    assert judge.compare(texts[1]).name not in judge.templates
    assert not judge.compare(texts[-1]).new


@pytest.mark.parametrize("note", ["{}", "[]", "no JSON", '{"watch": 2}', '{"watch": 1}'])
def test_a_note_of_something_else_is_refused(note: str) -> None:
    """In one line."""
    with pytest.raises(CommandError, match="not one that this watch can read"):
        read_note(note, Judge())


def test_a_session_without_a_note_begins() -> None:
    """It may have read a text that no watch knows of."""
    judge = Judge()
    known: dict[str, Any] = read_note("", judge)

    assert (known, judge.lines) == ({}, 0)
    assert json.loads(judge.note())["lines"] == 0
