"""Measuring in turn: ratios are taken within a round, at each case's fastest number of threads."""

import time

import pytest
import torch

from rlstm_training.bench import in_turn as module
from rlstm_training.bench.in_turn import Case, Measured, Rate, measure

CPU = torch.device("cpu")


def _case(name, task="learning", work=lambda: 1, **more):
    return Case(name=name, task=task, work=work, **{"operations": 1, "weights": 10, **more})


CASES = [
    _case("product", "sgemm"),
    _case("ours", operations=30),
    _case("eager"),
    _case("our scoring", "static", operations=20),
    _case("lstm", "static"),
]


@pytest.fixture
def measured():
    """A machine that was ten times slower in two of three rounds."""
    fast = {"product": 4000.0, "ours": 90.0, "eager": 3.0, "our scoring": 50.0, "lstm": 100.0}
    slow = {name: rate / 10 for name, rate in fast.items()}
    threads = {"eager": [1, 2, 2]}
    rounds = [
        {name: Rate(rate, threads.get(name, [1, 1, 1])[place]) for name, rate in rates.items()}
        for place, rates in enumerate((fast, slow, slow))
    ]
    return Measured(cases=CASES, rounds=rounds)


def test_each_is_compared_with_ours_of_its_task_within_a_round(measured):
    """A slow moment changes the speeds of its round and no ratio."""
    told = measured.figures()
    assert [row.ours for row in told] == pytest.approx([1.0, 1.0, 30.0, 1.0, 0.5])
    assert (told[1].slowest, told[1].tokens_per_second, told[1].fastest) == (9.0, 9.0, 90.0)
    assert measured.ratio(CASES[1], CASES[3]) == pytest.approx(1.8)


def test_operations_are_held_against_the_matrix_product(measured):
    """Tokens a second, times what each takes, over the product's; the product's own share is 1."""
    told = measured.figures()
    assert [row.of_sgemm for row in told[:2]] == pytest.approx([1.0, 90 * 30 / 4000])
    assert measured.of_sgemm(measured.first("static")) == pytest.approx(50 * 20 / 4000)


def test_the_number_of_threads_is_that_which_won_most_rounds(measured):
    """Two of the three."""
    assert [row.threads for row in measured.figures()] == [1, 1, 2, 1, 1]


def test_the_fastest_number_of_threads_counts(monkeypatch):
    """Of those over which torch is to split its products; afterwards there are as many as before."""
    speeds = {1: 5.0, 2: 9.0, 3: 7.0}
    monkeypatch.setattr(module, "_rate", lambda *_: speeds[torch.get_num_threads()])
    before, done = torch.get_num_threads(), []
    cases = [_case("ours", thread_pool=4), _case("eager", threads=(1, 2, 3))]
    measured = measure(cases, rounds=2, seconds=0, device=CPU, on_round=done.append)
    assert measured.rounds == [{"ours": Rate(5.0, 4), "eager": Rate(9.0, 2)}] * 2
    assert done == [1, 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rate_is_tokens_over_time(threads):
    """Counted from a second call on: the first, which is slow, only warms up."""
    calls = []

    def work():
        calls.append(torch.get_num_threads())
        return 100

    measured = measure([_case("ours", work=work, threads=(threads,))], rounds=1, seconds=0.02, device=CPU)
    assert set(calls) == {threads}
    assert 0 < measured.rounds[0]["ours"].tokens_per_second <= 100 * (len(calls) - 1) / 0.02


@pytest.mark.parametrize(
    ("others", "clock"),
    [
        ({}, time.process_time),
        ({"threads": (1, 2)}, time.perf_counter),
        ({"thread_pool": 2}, time.perf_counter),
    ],
)
def test_all_are_measured_by_one_clock(others, clock):
    """The time of one thread is the processor's: only where nobody has a second one does it stand for all."""
    assert module._clock([_case("ours"), _case("other", **others)], CPU) is clock
