"""`log_watch.py`: each line is judged by the lines before it, and what is an alarm is not learned."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

USUAL = [f"12:00:{second:02} opened\n" for second in range(16)]
STRANGE = "~~~ ÄÖÜ ÄÖÜ ~~~\n"

scores = st.lists(st.floats(0.01, 8), min_size=1, max_size=80)


@settings(max_examples=50, deadline=None)
@given(scores, scores)
def test_a_threshold_knows_nothing_of_what_comes(example, before, after):
    """What is said of a score depends on those before it alone."""
    module = example("log_watch")

    def alarms(values):
        threshold = module.Threshold(warm_up=5, margin=0.1)
        return [threshold.exceeded(value) for value in values]

    assert alarms(before + after)[: len(before)] == alarms(before)
    assert not any(alarms(before)[:5])


def test_the_threshold_lies_between_the_usual_and_one(example):
    """100 scores of 0.01 to 1: the 98 % quantile is 0.9802, and half of the way to 1 is 0.9901."""
    threshold = example("log_watch").Threshold(warm_up=100, margin=0.5)
    for number in range(1, 101):
        assert threshold.limit is None
        assert not threshold.exceeded(number / 100)

    assert threshold.limit == pytest.approx(0.9901)
    assert threshold.exceeded(0.991)
    assert threshold.limit == pytest.approx(0.9901)  # an alarm is not remembered


def test_a_log_that_has_changed_is_learned_anew(example):
    """Twenty alarms in a row are told; the line after them begins another history."""
    threshold = example("log_watch").Threshold(warm_up=5)
    assert not any(threshold.exceeded(0.1) for _ in range(5))
    assert [threshold.exceeded(0.9) for _ in range(30)] == [True] * 20 + [False] * 10
    assert threshold.limit == pytest.approx(0.97)


def test_only_what_stays_strange_teaches(example):
    """The fourth alarm in a row is learned, as is whatever is none; the next alarm is a first one again."""
    threshold, taught = example("log_watch").Threshold(warm_up=5), []
    for score in [0.1] * 6 + [0.9] * 5 + [0.1, 0.9]:
        threshold.exceeded(score)
        taught.append(threshold.teaches)

    assert taught == [True] * 6 + [False] * 3 + [True] * 2 + [True, False]


@pytest.mark.jobs
def test_a_log_that_changes_is_no_alarm_for_long(example, client):
    """Its new lines are told, then learned, and then are usual."""
    module = example("log_watch")
    with module.watching(client, module.Threshold(warm_up=12, margin=0.2), None, keep=False) as watch:
        told = list(watch.lines([*USUAL, *[STRANGE] * 12]))
    alarms = [line.number for line in told if line.alarm]

    assert alarms == [*range(17, 17 + len(alarms))]
    assert 3 < len(alarms) < 12


@pytest.mark.jobs
def test_it_is_told_while_the_log_is_open(run, server):
    """As behind `tail -f`: an alarm comes when its line has come, not when the log ends."""
    process = run("log_watch", "--url", server.url, "--warm-up", "12", "--margin", "0.2")
    process.stdin.writelines([*USUAL, STRANGE])
    process.stdin.flush()
    alarm = json.loads(process.stdout.readline())
    out, err = process.communicate(timeout=60)

    assert (alarm["number"], alarm["text"], alarm["alarm"]) == (17, STRANGE.rstrip("\n"), True)
    assert alarm["score"] == pytest.approx(alarm["bits"] / (8 + alarm["static_bits"]))
    assert alarm["score"] > alarm["threshold"] > 0
    assert out == ""
    assert "17 lines, 1 alarms" in err


@pytest.mark.jobs
def test_an_alarm_teaches_nothing(example, server, client):
    """The session is the one that read every line and learned from those that were none."""
    module = example("log_watch")
    again, plain = client.sessions.create(), client.sessions.create()
    before = {info.id for info in client.sessions.list()}
    lines = [line.rstrip("\n") for line in (*USUAL, STRANGE, *USUAL[:3])]
    with module.watching(client, module.Threshold(warm_up=12, margin=0.2), None, keep=True) as watch:
        told = list(watch.lines(lines))
        made = {info.id for info in client.sessions.list()} - before
    for line in told:
        assert again.score([line.text + "\n"], unit="bits").best.logprob == pytest.approx(-line.bits)
        again.append(line.text + "\n", learn=not line.alarm)
        static = plain.append(line.text + "\n", learn=False, unit="bits").totals
        assert -line.static_bits == pytest.approx(static.logprob)

    assert [line.number for line in told if line.alarm] == [17]
    assert made == {watch.session.id}
    assert watch.session.info().totals == again.info().totals


@pytest.mark.jobs
def test_a_session_without_frozen_baseline_is_refused(run, server, client):
    """Before there is a line; nothing is appended."""
    session = client.sessions.create(adaptation={"static": False})
    process = run("log_watch", "--url", server.url, "--session", session.id)
    out, told = process.communicate(timeout=60)

    assert process.returncode == 2
    assert told == "rlstm: the session cannot be watched: it has no frozen baseline to compare with\n"
    assert (out, session.info().version) == ("", 0)


@pytest.mark.jobs
def test_bytes_that_are_no_text_stop_no_log(run, server):
    """They are shown replaced; the line after them is read as well."""
    process = run("log_watch", "--url", server.url, "--all")
    process.stdin.buffer.write(b"a \xff line\r\n\nthe last, without an end")
    out, _ = process.communicate(timeout=60)

    assert [json.loads(line)["text"] for line in out.splitlines()] == [
        "a � line",
        "",
        "the last, without an end",
    ]


@pytest.mark.jobs
def test_a_session_goes_on(run, server):
    """What was kept knows the log already: the same lines cost less."""
    process = run("log_watch", "--url", server.url, "--all", "--keep")
    first, told = process.communicate("".join(USUAL[:6]), timeout=60)
    session = told.split()[-1]
    process = run("log_watch", "--url", server.url, "--all", "--session", session)
    second, _ = process.communicate("".join(USUAL[:6]), timeout=60)
    costs = [sum(json.loads(line)["bits"] for line in out.splitlines()) for out in (first, second)]

    assert costs[1] < costs[0]
