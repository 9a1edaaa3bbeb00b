"""Threads that do batches side by side."""

import threading
from concurrent.futures import wait

import pytest
import torch

from rlstm_model.adaptation import crew as crew_module
from rlstm_model.adaptation.crew import Crew, undivided_products


@pytest.fixture
def crew():
    with Crew(2) as crew:
        yield crew


def test_outcomes_come_in_the_order_of_their_items(crew):
    """Whichever is done first."""
    first_may_end = threading.Event()

    def act(item):
        if item == 0:
            assert first_may_end.wait(10)
        first_may_end.set()
        return item * item

    assert crew.map(act, range(9)) == [item * item for item in range(9)]


def test_all_threads_are_at_work_at_once(crew):
    """Two items meet at a barrier that one alone never passes."""
    both = threading.Barrier(2)
    assert sorted(crew.map(lambda _: both.wait(10), range(2))) == [0, 1]


def test_each_thread_has_its_products_to_itself(crew):
    """A thread of a crew never splits a product."""
    assert crew.map(lambda _: torch.get_num_threads(), range(4)) == [1] * 4


def test_a_single_item_stays_where_it_is(crew):
    """Without a hop to another thread."""
    assert crew.map(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]
    assert crew.map(str, []) == []


def test_an_error_waits_for_the_others(crew):
    """The first error is raised when no thread is at work any more, and the crew works on."""
    done = []

    def act(item):
        if item < 2:
            raise ArithmeticError(item)
        done.append(item)

    with pytest.raises(ArithmeticError, match="0"):
        crew.map(act, range(6))
    assert sorted(done) == [2, 3, 4, 5]
    assert crew.map(abs, [-1, -2]) == [1, 2]


def test_a_crew_has_a_thread():
    """None is wrong usage."""
    with pytest.raises(ValueError, match="at least 1 thread, not 0"):
        Crew(0)


def test_an_interrupt_leaves_nothing_at_work(crew, monkeypatch):
    """What has begun is done, and what has not never will be."""
    begun, go_on, calls = [], threading.Event(), []

    def interrupted(futures):
        calls.append(futures)
        if len(calls) == 1:
            raise KeyboardInterrupt
        go_on.set()
        return wait(futures)

    def act(item):
        begun.append(item)
        assert go_on.wait(10)
        return item

    monkeypatch.setattr(crew_module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.map(act, range(9))
    assert len(begun) <= 2
    assert crew.map(abs, [-3, -4]) == [3, 4]
    assert len(begun) <= 2


def test_products_are_undivided_for_a_while():
    """The number of threads is told, and there again afterwards."""
    threads = torch.get_num_threads()
    with undivided_products() as usual:
        assert (usual, torch.get_num_threads()) == (threads, 1)
    assert torch.get_num_threads() == threads
