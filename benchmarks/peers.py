"""Learning and scoring beside how others do it, on this machine: ``python -m benchmarks.peers``.

Ours run as in a server, where each thread has products of its own; for the others torch splits products as it
sees fit, or not at all, whichever is faster. Texts are random tokens: no speed depends on them. Each case is
measured in every round and compared with the others within the round, so that a slow moment of the machine
meets all sides alike; medians over the rounds count.

Shape suffixes: T tokens of a segment, N rows, V vocabulary.
"""

import copy
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer
from torch import Tensor
from torch.nn import functional

from benchmarks.models import GPT2, TorchLSTM, gpt2, lstm_of_equal_size, untrained
from benchmarks.train import SGEMM_SIZE, multiply_adds, wait_for
from rlstm_model.adaptation.state import EXPERT_RATES, ExpertConfig
from rlstm_model.adaptation.calibration import Calibration, CalibrationSet
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import FrozenWeights, Weights
from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.torch_backend.graphs import graphed_reading
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.checkpoint import load
from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import ByteVocab
from rlstm_training.commands.choosing import calibrated_of, rule_named
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_compute,
    show_json,
    show_table,
    warn,
)
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Stream, read_together

ONE_AT_A_TIME = "full weights, one session at a time"
EAGER = f"eager autograd: {ONE_AT_A_TIME}"

# A row that learns is read and gone back through; for full weights each has a gradient too.
_LEARNING, _LEARNING_ALL = 2, 3

Task = Literal["sgemm", "learning", "static"]
Work = Callable[[], int]
"""Does what is measured and returns how many tokens that were."""


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


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Sessions that we read at once, others' rows; tokens that GPT-2 looks back on; threads of our pool."""

    sessions: int
    context: int
    threads: int
    device: torch.device

    @property
    def freely(self) -> tuple[int, ...]:
        """Numbers of threads to choose from, so that nobody is held back."""
        return tuple(sorted({1, self.threads}))


def peers(
    calibrated: CalibrationSet,
    rule: Calibration,
    *,
    bos_id: int,
    under: Conditions,
    thread_pool: ThreadPool | None = None,
) -> list[Case]:
    """A large matrix product, our ways and the others'; GPT-2 only where its library is installed.

    Our sessions learn by ``rule``; those of full fast weights by what the checkpoint knows of these.
    """
    model, segment, count = calibrated.model, rule.config.segment, under.sessions
    forward, weights = multiply_adds(model), model.config.num_parameters
    pooled = 1 if thread_pool is None else thread_pool.threads
    product = Case(
        name="F.linear, " + " x ".join(3 * [f"{SGEMM_SIZE:,}"]),
        task="sgemm",
        work=sgemm(under.device),
        operations=1,
        threads=(under.threads,),
    )
    together = [
        Case(
            name=f"ours: {rule.config.kind} of {rule.config.num_fast_weights:,}, {count} sessions"
            + (f" of {experts} experts" if experts > 1 else ""),
            task="learning",
            weights=weights,
            work=sessions(model, rule, bos_id=bos_id, count=count, experts=experts, thread_pool=thread_pool),
            operations=forward * (int(experts > 1) + _LEARNING * len(EXPERT_RATES[experts])),
            rows=ExpertConfig(experts=experts, static=experts > 1).rows,
            thread_pool=pooled,
        )
        for experts in EXPERT_RATES
    ]
    alone = Case(
        name=f"ours: {ONE_AT_A_TIME}",
        task="learning",
        weights=weights,
        work=one_session(model, full_rule(calibrated), bos_id=bos_id),
        operations=_LEARNING_ALL * forward,
    )
    eager = EagerSession(model, full_rule(calibrated))
    static = Case(
        name=f"ours, {count} rows",
        task="static",
        weights=weights,
        work=scoring(graphed_reading(FrozenWeights(model)), segment, count, thread_pool),
        operations=forward,
        thread_pool=pooled,
    )
    others = [replace(alone, name=EAGER, work=eager, threads=under.freely), static]
    return [
        product,
        *together,
        alone,
        *others,
        _torch_lstm(static, model, segment, under),
        *_gpt2(model.config, under),
    ]


def _torch_lstm(ours: Case, model: LanguageModel, segment: int, under: Conditions) -> Case:
    lstm = TorchLSTM(lstm_of_equal_size(model.config)).to(under.device).requires_grad_(False)
    lstm.initialise(chrono_max=None, generator=torch.Generator(under.device).manual_seed(0))
    return replace(
        ours,
        name=f"torch.nn.LSTM, {under.sessions} rows",
        weights=sum(weight.numel() for weight in lstm.parameters()),
        work=lstm_scoring(lstm, segment, under.sessions),
        operations=multiply_adds(lstm),
        threads=under.freely,
        thread_pool=1,
    )


def ratios(measured: "Measured") -> dict[str, float]:
    """What learning together gains over one session at a time, what it costs, and what bounds both."""
    learning, static = measured.first("learning"), measured.first("static")
    eager = next(case for case in measured.cases if case.name == EAGER)
    return {
        "learning/peer": measured.ratio(learning, eager),
        "learning/static": measured.ratio(learning, static),
        "static/sgemm": measured.of_sgemm(static),
    }


def full_rule(calibrated: CalibrationSet) -> Calibration:
    """Full fast weights under their rule or, as speed depends on no rate, under the default's figures."""
    known = next((choice for choice in calibrated.choices if choice.kind == "full"), None)
    weights = calibrated.model.config.num_parameters
    rule = known or replace(calibrated.default, kind="full", num_fast_weights=weights, rank=0)
    return calibrated.statistics.calibration(calibrated.model, rule)


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
    """Each of ``cases`` for ``seconds`` in each of the rounds.

    By one clock for all: where none has a second thread the processor's, to which other work counts less.
    """
    most = max(max(case.thread_pool, *case.threads) for case in cases)
    clock = time.process_time if most == 1 and device.type == "cpu" else time.perf_counter
    before = torch.get_num_threads()
    try:
        rates = [{case.name: _fastest(case, seconds, clock, device) for case in cases} for _ in range(rounds)]
    finally:
        torch.set_num_threads(before)
    return Measured(cases=cases, rounds=rates)


def _fastest(case: Case, seconds: float, clock: Callable[[], float], device: torch.device) -> Rate:
    rates = []
    for threads in case.threads:
        torch.set_num_threads(threads)
        rates.append(Rate(rate(case.work, seconds, clock, device), max(threads, case.thread_pool)))
    return max(rates)


def rate(work: Work, seconds: float, clock: Callable[[], float], device: torch.device) -> float:
    """Tokens a second, after a first time that only warms up."""
    work()
    wait_for(device)
    done, start = 0, clock()
    while True:
        done += work()
        wait_for(device)
        if clock() - start >= seconds:
            return done / max(clock() - start, 1e-9)


def sgemm(device: torch.device) -> Work:
    """One large float32 matrix product. Its multiply-adds stand for tokens."""
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE, device=device)

    def work() -> int:
        functional.linear(square, square)
        return SGEMM_SIZE**3

    return work


def sessions(
    model: LanguageModel,
    rule: Calibration,
    *,
    bos_id: int,
    count: int,
    experts: int = 1,
    graphs: bool = True,
    thread_pool: ThreadPool | None = None,
) -> Work:
    """A segment of each of so many sessions that have learned before: read, scored and learned from.

    A session of several ``experts`` has a frozen row. ``graphs``: see the adaptation's learner.
    """
    evaluator = DynamicEvaluator(model, rule, bos_id=bos_id, logprobs_only=True, graphs=graphs)
    segment = rule.config.segment
    ids = _random(model, (count + 1, segment)).tolist()
    *_, learned = evaluator.observe(evaluator.start(experts=experts, static=experts > 1), ids[-1])
    # All from one state: a state is a value, and each row gets its own copy of it.
    streams = [Stream(Passage(name="", ids=own, bytes=segment), learned.state) for own in ids[:-1]]

    def work() -> int:
        read_together(evaluator, streams, thread_pool=thread_pool)
        return count * segment

    return work


def one_session(model: LanguageModel, rule: Calibration, *, bos_id: int) -> Work:
    """A segment of one session, which goes on and on."""
    evaluator = DynamicEvaluator(model, rule, bos_id=bos_id, logprobs_only=True)
    ids = _random(model, (rule.config.segment,)).tolist()
    state = evaluator.start(static=False)

    def work() -> int:
        nonlocal state
        for observed in evaluator.observe(state, ids):
            state = observed.state
        return len(ids)

    return work


class EagerSession:
    """The same as one would write it: tokens step by step, automatic differentiation, the rule by weight.

    ``model`` is its own, whose weights follow the text.
    """

    def __init__(self, model: LanguageModel, full: Calibration, ids: Tensor | None = None) -> None:
        """``ids`` ``[S + 1]`` is what is read over and over, each token predicting the next; else random."""
        rule, segment = full.config, full.config.segment
        ids = _random(model, (segment + 1,)) if ids is None else ids
        self.model = copy.deepcopy(model).requires_grad_(True)
        self._read, self._targets = ids[:-1, None], ids[1:]
        self._state = model.initial_state(1)
        self._rate = rule.rate
        self._weights = [weight for weight in self.model.parameters() if weight.numel()]
        self._loaded = [weight.detach().clone() for weight in self._weights]
        rms_P = full.rms_P.to(self._loaded[0])
        parts = [part for part in FullFastWeights(model).split(rms_P).values() if part.numel()]
        mean = float(rms_P.double().mean())
        self._scales = [part + rule.epsilon * mean for part in parts]
        self._pulls = [(rule.decay / mean * part).clamp(max=1.0) for part in parts]

    def __call__(self) -> int:
        """A segment."""
        state, features = self._state, []
        for ids_1 in self._read:
            feature, state = self.model.step(ids_1, state)
            features.append(feature)
        loss = functional.cross_entropy(self.model.logits(torch.cat(features)), self._targets)
        gradients = torch.autograd.grad(loss, self._weights)
        self._state = state.detach()
        with torch.no_grad():
            columns = (self._weights, self._loaded, gradients, self._scales, self._pulls)
            for weight, loaded, gradient, scale, pull in zip(*columns, strict=True):
                weight.sub_(self._rate * gradient / scale + pull * (weight - loaded))
        return len(self._targets)


def scoring(weights: Weights, segment: int, rows: int, thread_pool: ThreadPool | None = None) -> Work:
    """A segment of so many texts, scored with the weights as loaded; a ``thread_pool`` shares the rows."""
    if thread_pool is not None:
        tiles = -(-rows // weights.tile)
        count = min(thread_pool.threads, tiles)
        ends = [min(rows, weights.tile * (tiles * share // count)) for share in range(count + 1)]
        shares = [scoring(weights, segment, end - start) for start, end in pairwise(ends)]
        return lambda: sum(thread_pool.map(lambda share: share(), shares))
    state = weights.model.initial_state(rows)
    ids, targets = _random(weights.model, (2, segment, rows))

    @torch.no_grad()
    def work() -> int:
        nonlocal state
        logits_TNV, state = weights.read(None, ids, state)
        _score(logits_TNV, targets)
        return rows * segment

    return work


def lstm_scoring(lstm: TorchLSTM, segment: int, rows: int) -> Work:
    """The same by torch.nn.LSTM."""
    ids, targets = _random(lstm, (2, segment, rows))
    state = lstm.initial_state(rows)

    @torch.no_grad()
    def work() -> int:
        nonlocal state
        features, state = lstm(ids, state)
        _score(lstm.logits(features), targets)
        return rows * segment

    return work


def _score(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))


def _random(model: LanguageModel, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(model.config.vocab_size, shape, device=model.embedding.input.device)


def _gpt2(config: ModelConfig, under: Conditions) -> list[Case]:
    """GPT-2 with as many weights, whose windows each begin with nothing to look back on."""
    built = gpt2(config, under.context)
    if built is None:
        return []
    model, operations = built
    model.to(under.device)
    ids, targets = torch.randint(config.vocab_size, (2, under.sessions, under.context), device=under.device)

    @torch.no_grad()
    def work() -> int:
        _score(model(input_ids=ids).logits, targets)
        return under.sessions * under.context

    return [
        Case(
            name=f"GPT-2, {under.sessions} rows of {under.context} tokens",
            task="static",
            weights=sum(weight.numel() for weight in model.parameters()),
            work=work,
            operations=operations,
            threads=under.freely,
        )
    ]


@command
def main(
    model: Model = "bytes-small",
    hidden: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of MODEL: untrained, two layers of so many units, over bytes."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(metavar="KIND[:SIZE]", help="Our sessions learn by this (the model's default)."),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that we read at once; others' rows.")] = 256,
    context: Annotated[int, typer.Option(min=1, help="Tokens that GPT-2 can look back on.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures all once; medians count.")] = 5,
    seconds: Annotated[float, typer.Option(min=0, help="For each of them in a round, at least.")] = 0.5,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how fast learning and scoring are beside how others do it, as ratios taken in one run.

    Learning: many sessions together, of one expert, and of several with their frozen row; full weights one
    session at a time, by us and by plain automatic differentiation. Scoring: torch.nn.LSTM and, where
    transformers is installed, GPT-2, with as many weights. The yardstick is one large matrix product;
    operations are multiply-adds with shared matrices.
    """
    if importlib.util.find_spec(GPT2) is None:
        warn("GPT-2 is left out: pip install 'mogrifier-rlstm[peers]'")
    with prepare_compute(device, threads) as compute:
        if hidden is None:
            checkpoint = load(model, compute.device)
            name, bos_id, calibrated = checkpoint.name, checkpoint.vocab.bos_id, calibrated_of(checkpoint)
        else:
            name, bos_id = f"untrained, {hidden} units", ByteVocab().bos_id
            calibrated = untrained(hidden, compute.device)
        config = calibrated.default if rule is None else rule_named(calibrated, rule)
        chosen = calibrated.choose(config.kind, config.num_fast_weights)
        under = Conditions(sessions=sessions, context=context, threads=compute.threads, device=compute.device)
        cases = peers(calibrated, chosen, bos_id=bos_id, under=under, thread_pool=compute.thread_pool)
        measured = measure(cases, rounds=rounds, seconds=seconds, device=compute.device)
    rows, found = measured.figures(), ratios(measured)
    if as_json:
        conditions = {**asdict(under), "device": str(under.device)}
        show_json({"model": name, "conditions": conditions, "rows": rows, "ratios": found})
        return
    shown = ("weights", "threads", "tokens_per_second", "slowest", "fastest", "rows_per_second")
    cells = [[f"{row['task']}, {row['name']}", *(f"{row[name]:,.0f}" for name in shown)] for row in rows]
    share = [[f"{row[name]:.2f}" for name in ("of_sgemm", "ours")] for row in rows]
    headers = ("", "weights", "threads", "tokens/s", "from", "to", "rows/s", "of sgemm", "ours is x")
    show_table(headers, [[*left, *right] for left, right in zip(cells, share, strict=True)])
    for name, value in found.items():
        typer.echo(f"{name:<16} {value:7.2f}")


if __name__ == "__main__":
    typer.run(main)
