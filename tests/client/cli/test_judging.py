"""A watch's judge: what it says of a line, from those before it, and that its note is all that it knows."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.judging import ROOM, Judge, Template, Verdict, read_note

STATIC = 92.0  # bits, so that bits are hundredths of a score
Seen = tuple[str, float]

LINES = st.tuples(
    st.sampled_from(["a 1", "a 12345", "b", "c d", "e 9:9", "# 1", "1 #", "é\0"]), st.floats(0, 300)
)


def judged(judge: Judge, line: Seen) -> Verdict:
    """What it says of a text, which would cost so many bits."""
    template = Template.of(line[0])
    return judge.judge(template, None if judge.knows(template) else (line[1], STATIC))


def new(judge: Judge, *scores: float) -> list[Verdict]:
    """What it says of lines of which each has a template of its own."""
    return [judged(judge, (f"{'x' * (judge.lines + 1)}", 100 * score)) for score in scores]


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, max_size=60), st.lists(LINES, min_size=1, max_size=60))
def test_a_note_is_all_that_a_judge_knows(before: list[Seen], after: list[Seen]) -> None:
    """One that goes on by it says the same of every line, and writes the same note."""
    judge = Judge(margin=0.1, warm_up=5)
    for line in before:
        judged(judge, line)
    other = Judge(margin=0.1, warm_up=5)
    told = read_note(judge.note(place={"at": 7}), other)

    assert told["place"] == {"at": 7}
    assert [judged(judge, line) for line in after] == [judged(other, line) for line in after]
    assert judge.note() == other.note()


def test_the_threshold_lies_between_the_usual_and_one() -> None:
    """100 scores of 0.01 to 1: the 98 % quantile is 0.9802, and half of the way to 1 is 0.9901."""
    judge = Judge(warm_up=100, margin=0.5)
    assert {verdict.threshold for verdict in new(judge, *(n / 100 for n in range(1, 101)))} == {None}

    assert judge.limit == pytest.approx(0.9901)
    (alarm,) = new(judge, 0.991)
    assert (alarm.alarm, alarm.learn) == ("score", False)
    assert judge.limit == pytest.approx(0.9901)  # an alarm is not remembered


def test_a_log_that_has_changed_is_learned_anew() -> None:
    """The fourth alarm in a row is learned; after twenty the line after them begins another history."""
    judge = Judge(warm_up=5)
    new(judge, *[0.1] * 5)
    verdicts = new(judge, *[0.9] * 30)

    assert [verdict.alarm for verdict in verdicts] == ["score"] * 20 + [None] * 10
    assert [verdict.learn for verdict in verdicts] == [False] * 3 + [True] * 27
    (alarm,) = new(judge, 1.5)
    assert (alarm.alarm, alarm.learn) == ("score", False)


def test_what_a_template_explains_is_not_asked_for() -> None:
    """Words that hold digits are fields, and differ from line to line; an alarm's template is not known."""
    judge = Judge(warm_up=2)
    judged(judge, ("user ab12 logged in from 10.0.0.1:22", 50))
    assert judge.knows(Template.of("user x9 logged in from 127.0.0.1:8080"))
    assert not judge.knows(Template.of("user x9 logged out from 127.0.0.1:8080"))
    judged(judge, ("a", 50))
    assert judged(judge, ("strange", 300)).alarm
    assert not judge.knows(Template.of("strange"))
    assert judged(judge, ("user x9 logged in from 127.0.0.1:8080", 0)) == Verdict(
        None, False, 0.0, judge.limit
    )


def test_a_field_that_is_longer_than_ever_is_an_alarm_once() -> None:
    """By two characters or more, in the 21st line of its template and later."""
    judge = Judge(warm_up=2)
    assert [judged(judge, (f"took {n} ms", 50)).alarm for n in (1, 1111, *range(10, 28))] == [None] * 20
    assert judged(judge, ("took 11111 ms", 0)).alarm is None
    assert judged(judge, ("took 1111111 ms", 0)).alarm == "field"
    assert judged(judge, ("took 1111111 ms", 0)).alarm is None


def test_a_note_is_bounded() -> None:
    """However many templates there are, and fields in them; the oldest are forgotten, the newest known."""
    judge = Judge()
    texts = [f"{'x' * (n % 77)} {'y' * (n // 77)} " + "7 " * (n % 150) for n in range(6_000)]
    for text in texts:
        judged(judge, (text, 50))
        judged(judge, (texts[0], 50))

    assert ROOM < len(judge.note()) < 65_536 - 4_096
    assert judge.knows(Template.of(texts[0]))
    assert not judge.knows(Template.of(texts[1]))
    assert judge.knows(Template.of(texts[-1]))


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
