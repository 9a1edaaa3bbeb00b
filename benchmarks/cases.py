"""Ways to do a task, measured in turn in one run.

Each case is measured in every round and compared with the others within the round, so that a slow moment of
the machine meets all sides alike; medians over the rounds count. Texts are random tokens: no speed depends
on them. Shape suffixes: T tokens of a segment, N rows, V vocabulary.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from benchmarks.models import Subject
from rlstm_model.adaptation.backend import Backend, NativeBackend
from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator, reader_of
from rlstm_model.adaptation.items import ObservedChunk, ScoreChunk, ScoredChunk
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import shapes
from rlstm_model.torch_backend.backend import TorchBackend

SGEMM_SIZE = 2048

Task = Literal["sgemm", "learning", "static"]
Work = Callable[[], int]
"""Does what is measured and returns how many tokens that were."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to do a task. The first of each task is ours, which the others are compared with.

    weights     of the model; 0 where there is none
    operations  multiply-adds of a token with matrices that all rows share
    rows        that read a token
    threads     over which torch is to split its products: the fastest number counts, in each round anew.
                Ours has one number
    """

    name: str
    task: Task
    work: Work
    operations: float
    weights: int = 0
    rows: int = 1
    threads: tuple[int, ...] = (1,)


class Rate(NamedTuple):
    """Of a case in a round, at the number of threads that was fastest."""

    tokens_per_second: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The rates of every case, by name, in every round."""

    cases: Sequence[Case]
    rounds: Sequence[Mapping[str, Rate]]

    def first(self, task: Task) -> Case:
        """Our way of a task, or the matrix product."""
        return next(case for case in self.cases if case.task == task)

    def speed(self, case: Case) -> float:
        """Tokens a second, the median."""
        return statistics.median(rates[case.name].tokens_per_second for rates in self.rounds)

    def ratio(self, one: Case, other: Case) -> float:
        """How many times as many tokens a second."""
        return statistics.median(
            rates[one.name].tokens_per_second / rates[other.name].tokens_per_second for rates in self.rounds
        )

    def of_sgemm(self, case: Case) -> float:
        """Operations, over as many as a large matrix product does in that time."""
        product = self.first("sgemm")
        return self.ratio(case, product) * case.operations / product.operations

    def figures(self) -> list[dict[str, Any]]:
        """Of each case, medians over the rounds; ``ours``: how many times as fast our way of the task is."""
        rows = []
        for case in self.cases:
            own = [rates[case.name] for rates in self.rounds]
            speeds = [rate.tokens_per_second for rate in own]
            rows.append(
                {
                    "name": case.name,
                    "task": case.task,
                    "weights": case.weights,
                    "rows": case.rows,
                    "threads": statistics.mode(rate.threads for rate in own),
                    "tokens_per_second": statistics.median(speeds),
                    "slowest": min(speeds),
                    "fastest": max(speeds),
                    "rows_per_second": case.rows * statistics.median(speeds),
                    "of_sgemm": self.of_sgemm(case),
                    "ours": self.ratio(self.first(case.task), case),
                }
            )
        return rows


def measure(cases: Sequence[Case], *, rounds: int, seconds: float, device: torch.device) -> Measured:
    """Each of ``cases`` for ``seconds`` in each of the rounds, after a first time that only warms up.

    By one clock for all: where none has a second thread the processor's, to which other work counts less.
    """
    most = max(max(case.threads) for case in cases)
    clock = time.process_time if most == 1 and device.type == "cpu" else time.perf_counter
    before = torch.get_num_threads()
    try:
        for case in cases:
            case.work()
        rates = [{case.name: _fastest(case, seconds, clock, device) for case in cases} for _ in range(rounds)]
    finally:
        torch.set_num_threads(before)
    return Measured(cases=cases, rounds=rates)


def _fastest(case: Case, seconds: float, clock: Callable[[], float], device: torch.device) -> Rate:
    rates = []
    for threads in case.threads:
        torch.set_num_threads(threads)
        rates.append(Rate(rate(case.work, seconds, clock, device), threads))
    return max(rates)


def rate(work: Work, seconds: float, clock: Callable[[], float], device: torch.device) -> float:
    """Tokens a second."""
    wait_for(device)
    done, start = 0, clock()
    while True:
        done += work()
        wait_for(device)
        if clock() - start >= seconds:
            return done / max(clock() - start, 1e-9)


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- what is done -----------------------------------------------------------------------------------------


def multiply_adds(config: ModelConfig) -> int:
    """What reading a token takes: one for every weight that is multiplied.

    Biases are added, and a row of the input embedding is only looked up. Of a mixture of softmaxes each
    multiplies with the whole output matrix.
    """
    matrices = {name: int(np.prod(shape)) for name, shape in shapes(config).items() if "bias" not in name}
    output = matrices.pop("embedding.input")
    output = matrices.pop("embedding.output", output)
    return sum(matrices.values()) + config.softmax_components * output


def product_case(threads: int, device: torch.device) -> Case:
    """One large float32 matrix product. Its multiply-adds stand for tokens."""
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE, device=device)

    def work() -> int:
        functional.linear(square, square)
        return SGEMM_SIZE**3

    name = "F.linear, " + " x ".join(3 * [f"{SGEMM_SIZE:,}"])
    return Case(name=name, task="sgemm", work=work, operations=1, threads=(threads,))


def backend_on(
    device: torch.device, subject: Subject, rule: Calibration | None = None, threads: int | None = None
) -> Backend:
    """What computes there as a server's does."""
    if device.type == "cuda":
        return TorchBackend.of(subject.parameters, rule, device=str(device))
    return NativeBackend(subject.parameters, rule, threads=threads)


def evaluator_of(backend: Backend, subject: Subject, rule: Calibration) -> DynamicEvaluator:
    """Dynamic evaluation that gives log-probabilities alone."""
    return DynamicEvaluator(backend, rule, subject.parameters.norm, subject.bos_id, logprobs_only=True)


def sessions(evaluator: DynamicEvaluator, *, count: int, experts: int = 1) -> Work:
    """A segment of each of so many sessions that have learned before: read, scored and learned from.

    A session of several ``experts`` has a frozen row.
    """
    segment = evaluator.segment
    ids = random_ids(evaluator.backend.vocab_size, count + 1, segment)
    *_, learned = evaluator.observe(evaluator.start(experts=experts, static=experts > 1), ids[-1])
    # All from one state: a state is a value, and each row gets its own copy of it.
    chunks = [evaluator.chunk(learned.state, own) for own in ids[:-1]]

    def work() -> int:
        done = run_batch(chunks)
        return sum(len(one.scores) for one in done if isinstance(one, ObservedChunk))

    return work


def one_session(evaluator: DynamicEvaluator) -> Work:
    """A segment of one session, which goes on and on."""
    (ids,) = random_ids(evaluator.backend.vocab_size, 1, evaluator.segment)
    state = evaluator.start(static=False)

    def work() -> int:
        nonlocal state
        for observed in evaluator.observe(state, ids):
            state = observed.state
        return len(ids)

    return work


def scoring(backend: Backend, *, bos_id: int, length: int, count: int) -> Work:
    """So many tokens of each of so many texts, scored with the weights as loaded."""
    reader = reader_of(backend, bos_id, logprobs_only=True)
    texts = random_ids(backend.vocab_size, count, length)
    cursors = [reader.cursor] * count

    def work() -> int:
        items = [ScoreChunk(reader, cursor, tuple(ids)) for cursor, ids in zip(cursors, texts, strict=True)]
        done = [one for one in run_batch(items) if isinstance(one, ScoredChunk)]
        cursors[:] = [one.cursor for one in done]
        return sum(len(one.scores) for one in done)

    return work


def random_ids(vocabulary: int, count: int, length: int) -> list[list[int]]:
    """So many texts of so many tokens."""
    drawn: list[list[int]] = np.random.default_rng(0).integers(vocabulary, size=(count, length)).tolist()
    return drawn
