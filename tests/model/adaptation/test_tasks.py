"""Which rows read what, and how many of them make a pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation import tasks
from rlstm_model.adaptation.batch_step import DecodeStep, ScoreChunk
from rlstm_model.adaptation.reader import frozen_reader
from rlstm_model.adaptation.rows import Lesson, Reading
from rlstm_model.adaptation.tasks import Task, batches, task_of


@pytest.fixture(scope="module")
def evaluator(make_evaluator):
    return make_evaluator(rank=2)


def observed(evaluator, count, **expert_config):
    state = evaluator.start(**expert_config)
    for part in evaluator.observe(state, [1 + i % 9 for i in range(count)]):
        state = part.state
    return state


@pytest.mark.parametrize(
    ("expert_config", "rows"),
    [({"static": False}, (0, 1)), ({}, (1, 1)), ({"experts": 2}, (1, 1)), ({"experts": 4}, (1, 3))],
    ids=str,
)
def test_the_rows_of_a_part(evaluator, expert_config, rows):
    """The static one reads apart; the others learn where the segment ends, and read on where not."""
    static, learning = rows
    state = observed(evaluator, 6, **expert_config)
    assert task_of(evaluator.chunk(state, (5,))).rows == (static, learning, 0)
    lesson = task_of(evaluator.chunk(state, (5, 6)))
    assert lesson.rows == (static, 0, learning)
    assert (lesson.lesson.targets, lesson.lesson.reading.ids) == ((5, 6, 5, 6), (4, 5, 6, 5))
    assert task_of(evaluator.chunk(evaluator.start(**expert_config), (5,))).rows == (static + learning, 0, 0)


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_the_rows_of_a_reader(evaluator, experts):
    """Those that are mixed, of several the static one without fast weights; the bare model has one.

    Where the static one is wanted too it is read beside a single expert, if the stream has it.
    """
    reader = evaluator.reader(observed(evaluator, 6, experts=experts))
    mixed = (int(experts > 1), max(1, experts - 1), 0)
    assert task_of(ScoreChunk(reader, reader.cursor, (1, 2, 3))).rows == mixed
    turn = task_of(DecodeStep(reader, reader.cursor))
    assert turn.rows == mixed
    assert turn.own.ids == (reader.cursor.last,)
    static = evaluator.reader(observed(evaluator, 6, experts=experts), static=True)
    assert task_of(ScoreChunk(static, static.cursor, (1, 2, 3))).rows == (1, max(1, experts - 1), 0)
    none = evaluator.reader(observed(evaluator, 6, static=False), static=True)
    assert task_of(ScoreChunk(none, none.cursor, (1, 2, 3))).rows == (0, 1, 0)
    bare = frozen_reader(evaluator.model, 1)
    assert task_of(ScoreChunk(bare, bare.cursor, (1, 2, 3))).rows == (1, 0, 0)


kinds = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from("pol")), min_size=1, max_size=20
)


@settings(max_examples=50, deadline=None)
@given(kinds, st.integers(1, 2000), st.integers(1, 3))
def test_batches_hold_what_a_pass_should(evaluator, kinds, elements, threads):
    """Every task once; never more rows of a kind nor more logits than that, unless it is a single task."""
    made = []
    for rows, length, kind in kinds:
        reading = Reading((0,) * length, evaluator.model.initial_state(rows))
        made.append(
            Task(
                reading if kind == "p" else None,
                reading if kind == "o" else None,
                Lesson(reading, (0,) * length, [1.0] * length) if kind == "l" else None,
            )
        )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "ELEMENTS_AT_ONCE", elements)
        patched.setattr(type(evaluator.rows.weights), "at_once", 5)
        found = list(batches(evaluator.rows, made, threads))
    assert sorted(place for batch in found for place in batch) == list(range(len(made)))
    for batch in found:
        rows = torch.tensor([made[i].rows for i in batch]).sum(0)
        logits = int(rows.sum()) * max(made[i].length for i in batch) * 11
        assert len(batch) == 1 or (int(rows.max()) <= 5 and logits <= elements)


@pytest.mark.parametrize(("count", "threads", "sizes"), [
    (256, 1, [256]), (256, 2, [128, 128]), (256, 4, [64] * 4), (600, 1, [256, 256, 88]), (600, 2, [150] * 4),
    (3, 2, [3]), (10, 2, [8, 2]), (40, 4, [10] * 4),
])  # fmt: skip
def test_every_thread_has_its_share(evaluator, monkeypatch, count, threads, sizes):
    """Batches of equal cost, a multiple of the threads in number; none of less than a tile but the rest."""
    monkeypatch.setitem(vars(evaluator.rows.weights), "tile", 8)
    reading = Reading((0, 0), evaluator.model.initial_state(1))
    made = [Task(reading, None, Lesson(reading, (0, 0), [1.0, 1.0]))] * count
    assert [len(batch) for batch in batches(evaluator.rows, made, threads)] == sizes


def test_what_learns_costs_more(evaluator):
    """So the thread that learns has fewer works than the one that only reads."""
    reading = Reading((0, 0), evaluator.model.initial_state(1))
    learning = Task(None, None, Lesson(reading, (0, 0), [1.0, 1.0]))
    found = list(batches(evaluator.rows, [learning] * 64 + [Task(reading, None, None)] * 192, 2))
    assert [len(batch) for batch in found] == [64, 192]
