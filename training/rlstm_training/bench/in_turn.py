"""Measuring in turn: each case in every round, compared with the others within the round.

So a slow moment of the machine meets all sides alike. Medians over the rounds count.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch

from rlstm_training.bench.works import Work

Task: TypeAlias = Literal["sgemm", "learning", "static"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to do a task. The first of each task is ours, which the others are compared with.

    weights     of the model; 0 where there is none
    operations  multiply-adds of a token with matrices that all rows share
    rows        that read a token
    threads     over which torch is to split its products: the fastest number counts, in each round anew
    thread_pool        threads that share the work instead, each with products of its own
    """

    name: str
    task: Task
    work: Work
    operations: float
    weights: int = 0
    rows: int = 1
    threads: tuple[int, ...] = (1,)
    thread_pool: int = 1


class Rate(NamedTuple):
    """Of a case in a round, at the number of threads that was fastest."""

    tokens_per_second: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians over the rounds.

    threads   the number that won most rounds
    of_sgemm  operations, over as many as a large matrix product does in that time
    ours      how many times as fast our way of the same task is
    """

    name: str
    task: Task
    weights: int
    rows: int
    threads: int
    tokens_per_second: float
    slowest: float
    fastest: float
    of_sgemm: float
    ours: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The rates of every case, by name, in every round."""

    cases: Sequence[Case]
    rounds: Sequence[Mapping[str, Rate]]

    def first(self, task: Task) -> Case:
        """Our way of a task, or the matrix product."""
        return next(case for case in self.cases if case.task == task)

    def ratio(self, one: Case, other: Case) -> float:
        """How many times as many tokens a second."""
        return statistics.median(
            rates[one.name].tokens_per_second / rates[other.name].tokens_per_second for rates in self.rounds
        )

    def of_sgemm(self, case: Case) -> float:
        """See :class:`Figures`."""
        product = self.first("sgemm")
        return self.ratio(case, product) * case.operations / product.operations

    def figures(self) -> list[Figures]:
        """Those of each case."""
        return [self._figures(case) for case in self.cases]

    def _figures(self, case: Case) -> Figures:
        own = [rates[case.name] for rates in self.rounds]
        speeds = [rate.tokens_per_second for rate in own]
        return Figures(
            name=case.name,
            task=case.task,
            weights=case.weights,
            rows=case.rows,
            threads=statistics.mode(rate.threads for rate in own),
            tokens_per_second=statistics.median(speeds),
            slowest=min(speeds),
            fastest=max(speeds),
            of_sgemm=self.of_sgemm(case),
            ours=self.ratio(self.first(case.task), case),
        )


def measure(
    cases: Sequence[Case],
    *,
    rounds: int,
    seconds: float,
    device: torch.device,
    on_round: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Each of ``cases`` for ``seconds`` in each of the rounds. ``on_round`` is told how many are done."""
    before, clock = torch.get_num_threads(), _clock(cases, device)
    rates: list[dict[str, Rate]] = []
    try:
        while len(rates) < rounds:
            rates.append({case.name: _fastest(case, seconds, clock, device) for case in cases})
            on_round(len(rates))
    finally:
        torch.set_num_threads(before)
    return Measured(cases=cases, rounds=rates)


def _clock(cases: Sequence[Case], device: torch.device) -> Callable[[], float]:
    """The same for all: where none has a second thread the processor's, to which other work counts less."""
    most = max(max(case.thread_pool, *case.threads) for case in cases)
    return time.process_time if most == 1 and device.type == "cpu" else time.perf_counter


def _fastest(case: Case, seconds: float, clock: Callable[[], float], device: torch.device) -> Rate:
    rates = []
    for threads in case.threads:
        torch.set_num_threads(threads)
        rates.append(Rate(_rate(case.work, seconds, clock, device), max(threads, case.thread_pool)))
    return max(rates)


def _rate(work: Work, seconds: float, clock: Callable[[], float], device: torch.device) -> float:
    """Tokens a second, after a first time that only warms up."""
    work()
    _wait_for(device)
    done, start = 0, clock()
    while True:
        done += work()
        _wait_for(device)
        if clock() - start >= seconds:
            return done / max(clock() - start, 1e-9)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
