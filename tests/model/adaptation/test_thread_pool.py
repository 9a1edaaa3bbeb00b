"""Threads that do batches side by side."""

import threading
from concurrent.futures import wait

import pytest
import torch
from rlstm_model.adaptation.thread_pool import ThreadPool, single_threaded_products

from rlstm_model.adaptation import thread_pool as crew_module


@pytest.fixture
def thread_pool():
    with ThreadPool(2) as thread_pool:
        yield thread_pool


def test_outcomes_come_in_the_order_of_their_items(thread_pool):
    """Whichever is done first."""
    first_may_end = threading.Event()

    def act(item):
        if item == 0:
            assert first_may_end.wait(10)
        first_may_end.set()
        return item * item

    assert thread_pool.map(act, range(9)) == [item * item for item in range(9)]


def test_all_threads_are_at_work_at_once(thread_pool):
    """Two items meet at a barrier that one alone never passes."""
    both = threading.Barrier(2)
    assert sorted(thread_pool.map(lambda _: both.wait(10), range(2))) == [0, 1]


def test_each_thread_has_its_products_to_itself(thread_pool):
    """A thread of a thread pool never splits a product."""
    assert thread_pool.map(lambda _: torch.get_num_threads(), range(4)) == [1] * 4


def test_a_single_item_stays_where_it_is(thread_pool):
    """Without a hop to another thread."""
    assert thread_pool.map(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]
    assert thread_pool.map(str, []) == []


def test_an_error_waits_for_the_others(thread_pool):
    """The first error is raised when no thread is at work any more, and the thread pool works on."""
    done = []

    def act(item):
        if item < 2:
            raise ArithmeticError(item)
        done.append(item)

    with pytest.raises(ArithmeticError, match="0"):
        thread_pool.map(act, range(6))
    assert sorted(done) == [2, 3, 4, 5]
    assert thread_pool.map(abs, [-1, -2]) == [1, 2]


def test_a_crew_has_a_thread():
    """None is wrong usage."""
    with pytest.raises(ValueError, match="at least 1 thread, not 0"):
        ThreadPool(0)


def test_an_interrupt_leaves_nothing_at_work(thread_pool, monkeypatch):
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
        thread_pool.map(act, range(9))
    assert len(begun) <= 2
    assert thread_pool.map(abs, [-3, -4]) == [3, 4]
    assert len(begun) <= 2


def test_products_are_undivided_for_a_while():
    """The number of threads is told, and there again afterwards."""
    threads = torch.get_num_threads()
    with single_threaded_products() as usual:
        assert (usual, torch.get_num_threads()) == (threads, 1)
    assert torch.get_num_threads() == threads
