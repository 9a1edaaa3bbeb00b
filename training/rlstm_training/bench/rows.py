"""Speed of many rows on one device, plainly and by recorded graphs, beside its matrix-product rate.

Static: a segment of each row is read and its tokens are scored. Learning: a segment is read, gone back
through and stepped on. A round: the same as sessions do it, with everything that belongs to a session. Texts
are random tokens. What is measured takes its turn in every round of the measurement, and medians count.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.torch_backend.graphs import graphed_reading
from rlstm_model.adaptation.learner import Learner
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.bench.speed import multiply_adds, sgemm_rate
from rlstm_training.bench.works import Work, scoring, sessions

Task: TypeAlias = Literal["static", "learning", "round"]
Way: TypeAlias = Literal["plain", "graphs", "compiled"]
"""``compiled`` is by graphs too, of a compiled step; there is one of static reading alone."""

# A graph is recorded for what comes again, and the first replays find the device cold.
WARM_UPS = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """``share``: operations of shared matrices, over as many as a large matrix product does in that time."""

    task: Task
    rows: int
    way: Way
    tokens_per_second: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured; ``flops`` are those of a token."""

    task: Task
    rows: int
    way: Way
    work: Work
    flops: float


def measure(
    model: LanguageModel,
    rule: Calibration,
    *,
    bos_id: int,
    rows: Sequence[int],
    seconds: float,
    ways: Sequence[Way] = ("plain",),
) -> list[Figure]:
    """Each task with so many rows, in each of the ways. Without a CUDA device there are no graphs.

    ``seconds`` are about those of each of three rounds of the measurement, without warming up.
    """
    device = model.embedding.input.device
    found = [case for count in rows for way in ways for case in _cases(model, rule, bos_id, count, way)]
    for case in found:
        for _ in range(WARM_UPS):
            case.work()
    sgemm_rate(device)
    rates = []
    for _ in range(3):
        sgemm = sgemm_rate(device)
        rates.append([(_rate(case.work, seconds / len(found), device), sgemm) for case in found])
    return [_figure(case, own) for case, own in zip(found, zip(*rates, strict=True), strict=True)]


def _cases(model: LanguageModel, rule: Calibration, bos_id: int, rows: int, way: Way) -> list[Case]:
    forward, graphs = 2 * multiply_adds(model), way != "plain"
    loaded = FrozenWeights(model, compiled=way == "compiled")
    weights = graphed_reading(loaded) if graphs else loaded
    tasks: list[tuple[Task, Work, float]] = [("static", scoring(weights, rule.config.segment, rows), forward)]
    if way != "compiled":
        learner = Learner(model, rule, bos_id=bos_id, graphs=graphs)
        own = sessions(model, rule, bos_id=bos_id, count=rows, graphs=graphs)
        tasks += [("learning", learning(learner, rows), 2 * forward), ("round", own, 2 * forward)]
    return [Case(task=task, rows=rows, way=way, work=work, flops=flops) for task, work, flops in tasks]


def learning(learner: Learner, rows: int) -> Work:
    """A segment of so many rows, learned from by a step of the rule."""
    segment, state, fast = learner.config.segment, learner.model.initial_state(rows), learner.fast_weights
    ids, targets = _random(learner.model, (2, segment, rows))
    weights_TN = torch.full(ids.shape, 1 / segment, dtype=state.h.dtype, device=ids.device)
    delta_NP = fast.zero(rows)

    @torch.no_grad()
    def work() -> int:
        nonlocal state, delta_NP
        learned = fast.learn(delta_NP, ids, targets, weights_TN, state)
        delta_NP = learner.rule.step(delta_NP, learned.gradient_NP, [1.0] * rows).delta_NP
        state = learned.state
        return rows * segment

    return work


def _rate(work: Work, seconds: float, device: torch.device) -> float:
    """Tokens a second, over at least one run and about so many seconds."""
    _wait_for(device)
    began, tokens = time.perf_counter(), work()
    while time.perf_counter() - began < seconds:
        tokens += work()
        _wait_for(device)  # or far more would be launched than can be done in that time
    _wait_for(device)
    return tokens / (time.perf_counter() - began)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _figure(case: Case, rates: Sequence[tuple[float, float]]) -> Figure:
    return Figure(
        task=case.task,
        rows=case.rows,
        way=case.way,
        tokens_per_second=statistics.median(rate for rate, _ in rates),
        share=statistics.median(rate * case.flops / sgemm for rate, sgemm in rates),
    )


def _random(model: LanguageModel, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, shape, device=model.embedding.input.device)
