"""Jobs: works asked for, results sent, many texts as one job."""

import pytest

from rlstm_model.adaptation.batch_step import DecodeStep, ObserveChunk, ScoreChunk
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.steps import Ask, census, together


def counting(name, rounds, log):
    """Asks for a work named after it in each round, and returns what it was sent."""
    got = []
    try:
        for number in range(rounds):
            got += yield Ask([(name, number)], [f"{name}{number}"])
    finally:
        log.append(name)
    return got


def run(steps):
    """Drive a job, sending its works back; its result, and the asks it made."""
    asks, sent = [], None
    while True:
        try:
            asks.append(steps.send(sent))
        except StopIteration as stop:
            return stop.value, asks
        sent = asks[-1].works


def test_each_text_is_sent_its_own_and_results_are_in_order():
    """Whoever ends first, results stand where their texts stood, and every text got what it asked for."""
    log = []
    result, asks = run(together((counting(name, n, log) for name, n in [("a", 3), ("b", 1), ("c", 2)]), 9))

    assert result == [[("a", 0), ("a", 1), ("a", 2)], [("b", 0)], [("c", 0), ("c", 1)]]
    assert [len(ask.works) for ask in asks] == [3, 2, 1]
    assert [event for ask in asks for event in ask.events] == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert log == ["b", "c", "a"]


def test_as_many_texts_as_allowed_go_at_once():
    """A place that becomes free is taken in the same round."""
    _, asks = run(together((counting(n, 1 + n % 2, []) for n in range(7)), 2))

    assert [len(ask.works) for ask in asks] == [2, 2, 2, 2, 2]


def test_a_text_without_works_takes_no_round():
    """Texts that are over at once leave their places to the others; all together may be none."""
    assert run(together((counting(n, 0, []) for n in range(5)), 2)) == ([[]] * 5, [])
    assert run(together([], 2)) == ([], [])


def test_an_error_ends_all_texts():
    """When one raises, the others are closed and the error comes out."""
    log = []

    def broken():
        yield Ask(["x"])
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        run(together([counting("a", 5, log), broken(), counting("b", 5, log)], 3))
    assert log == ["a", "b"]


def test_a_census_tells_what_rows_are_for(tools):
    """Parts that end a segment and learn are updates, other texts are scored, and a turn is one token."""
    served = tools.serve(ByteVocab())
    state = tools.before_text(served, experts=2).adapted
    evaluator = served.evaluator()
    reader = evaluator.reader(state)
    ids = tuple(range(tools.SEGMENT))
    works = [
        evaluator.chunk(state, ids),
        evaluator.chunk(state, ids, learn=False),
        evaluator.chunk(state, ids[:2]),
        ScoreChunk(served.reader, served.reader.cursor, ids[:3]),
        DecodeStep(reader, reader.cursor),
    ]
    assert isinstance(works[0], ObserveChunk)
    rows, tokens = census(works)
    assert rows == {"update": 2, "score": 2 + 2 + 1, "generate": 2}
    assert tokens == {"update": 5, "score": 5 + 2 + 3, "generate": 1}
