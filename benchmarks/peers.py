"""Learning and scoring beside how others do it, on this machine: ``python -m benchmarks.peers``.

Ours run as in a server, on threads of our own; for the others torch splits products as it sees fit, or not at
all, whichever is faster.
"""

import importlib.util
from dataclasses import asdict, dataclass, replace

import click
import torch
from torch import Tensor

from benchmarks.cases import (
    Case,
    Measured,
    Work,
    backend_on,
    evaluator_of,
    measure,
    multiply_adds,
    one_session,
    product_case,
    scoring,
    sessions,
)
from benchmarks.eager import EagerSession
from benchmarks.models import GPT2, Subject, TorchLSTM, gpt2, lstm_of_equal_size
from rlstm_client.cli import inputs
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.state import EXPERT_RATES, ExpertConfig
from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.commands import console
from rlstm_training.commands.choosing import rule_named
from rlstm_training.commands.console import show_json, show_table, warn
from rlstm_training.commands.given import Compute, compute

ONE_AT_A_TIME = "full weights, one session at a time"
EAGER = f"eager autograd: {ONE_AT_A_TIME}"

# A row that learns is read and gone back through; for full weights each has a gradient too.
_LEARNING, _LEARNING_ALL = 2, 3


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


def learning_operations(config: ModelConfig, experts: int) -> int:
    """Multiply-adds of a token in a session of so many experts; of several one is frozen."""
    return multiply_adds(config) * (int(experts > 1) + _LEARNING * len(EXPERT_RATES[experts]))


def cases(subject: Subject, rule: Calibration, under: Conditions) -> list[Case]:
    """A large matrix product, many sessions, many texts, and a session in eager autograd.

    Sessions learn by ``rule``; those of full fast weights by what the checkpoint knows of these.
    """
    config, segment, count = subject.parameters.config, rule.config.segment, under.sessions
    forward, weights, threads = multiply_adds(config), config.num_parameters, (under.threads,)
    evaluator = evaluator_of(backend_on(under.device, subject, rule, under.threads), subject, rule)
    together = [
        Case(
            name=f"ours: {rule.config.kind} of {rule.config.num_fast_weights:,}, {count} sessions"
            + (f" of {experts} experts" if experts > 1 else ""),
            task="learning",
            weights=weights,
            work=sessions(evaluator, count=count, experts=experts),
            operations=learning_operations(config, experts),
            rows=ExpertConfig(experts=experts, static=experts > 1).rows,
            threads=threads,
        )
        for experts in EXPERT_RATES
    ]
    static = Case(
        name=f"ours, {count} rows",
        task="static",
        weights=weights,
        work=scoring(
            backend_on(under.device, subject, None, under.threads),
            bos_id=subject.bos_id,
            length=segment,
            count=count,
        ),
        operations=forward,
        threads=threads,
    )
    network = LanguageModel.of(subject.parameters).to(under.device)
    eager = Case(
        name=EAGER,
        task="learning",
        weights=weights,
        work=EagerSession(network, subject.full_rule()),
        operations=forward * _LEARNING_ALL,
        threads=under.freely,
    )
    return [product_case(under.threads, under.device), *together, static, eager]


def peers(subject: Subject, rule: Calibration, under: Conditions) -> list[Case]:
    """The same, our full weights, and others' models; GPT-2 only where its library is installed."""
    found, full = cases(subject, rule, under), subject.full_rule()
    eager = next(case for case in found if case.name == EAGER)
    static = next(case for case in found if case.task == "static")
    alone = evaluator_of(backend_on(under.device, subject, full, under.threads), subject, full)
    ours = replace(eager, name=f"ours: {ONE_AT_A_TIME}", work=one_session(alone), threads=(under.threads,))
    config = subject.parameters.config
    return [*found, ours, _torch_lstm(static, config, rule.config.segment, under), *_gpt2(config, under)]


def _torch_lstm(ours: Case, config: ModelConfig, segment: int, under: Conditions) -> Case:
    shape = lstm_of_equal_size(config)
    lstm = TorchLSTM(shape).to(under.device).requires_grad_(False)
    lstm.initialise(chrono_max=None, generator=torch.Generator(under.device).manual_seed(0))
    return replace(
        ours,
        name=f"torch.nn.LSTM, {under.sessions} rows",
        weights=sum(weight.numel() for weight in lstm.parameters()),
        work=lstm_scoring(lstm, segment, under.sessions),
        operations=multiply_adds(shape),
        threads=under.freely,
    )


def lstm_scoring(lstm: TorchLSTM, segment: int, rows: int) -> Work:
    """A segment of so many texts, scored by torch.nn.LSTM."""
    device = lstm.embedding.input.device
    ids, targets = torch.randint(lstm.config.vocab_size, (2, segment, rows), device=device)
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


def ratios(measured: Measured) -> dict[str, float]:
    """What learning together gains over one session at a time, what it costs, and what bounds both."""
    learning, static = measured.first("learning"), measured.first("static")
    eager = next(case for case in measured.cases if case.name == EAGER)
    return {
        "learning/peer": measured.ratio(learning, eager),
        "learning/static": measured.ratio(learning, static),
        "static/sgemm": measured.of_sgemm(static),
    }


@console.command()
@console.model(default="bytes-small")
@click.option(
    "--hidden",
    type=click.IntRange(1),
    help="Instead of MODEL: untrained, two layers of so many units, over bytes.",
)
@click.option("--rule", metavar="KIND[:SIZE]", help="Our sessions learn by this (the model's default).")
@click.option(
    "--sessions", type=click.IntRange(1), default=256, help="Sessions that we read at once; others' rows."
)
@click.option("--context", type=click.IntRange(1), default=64, help="Tokens that GPT-2 can look back on.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Each measures all once; medians count.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.5, help="For each of them in a round, at least."
)
@compute
@inputs.as_json
def main(
    model: str,
    hidden: int | None,
    rule: str | None,
    sessions: int,
    context: int,
    rounds: int,
    seconds: float,
    compute: Compute,
    as_json: bool,
) -> None:
    """Measure how fast learning and scoring are beside how others do it, as ratios taken in one run.

    Learning: many sessions together, of one expert, and of several with their frozen row; full weights one
    session at a time, by us and by plain automatic differentiation. Scoring: torch.nn.LSTM and, where
    transformers is installed, GPT-2, with as many weights. The yardstick is one large matrix product;
    operations are multiply-adds with shared matrices.
    """
    if importlib.util.find_spec(GPT2) is None:
        warn("GPT-2 is left out: pip install 'mogrifier-rlstm[peers]'")
    place = compute.prepare()
    subject = Subject.load(model) if hidden is None else Subject.untrained(hidden)
    calibrated = subject.calibrated
    config = calibrated.default if rule is None else rule_named(calibrated, rule)
    chosen = calibrated.choose(config.kind, config.num_fast_weights)
    count = compute.threads or torch.get_num_threads()
    under = Conditions(sessions=sessions, context=context, threads=count, device=place)
    measured = measure(peers(subject, chosen, under), rounds=rounds, seconds=seconds, device=place)
    rows, found = measured.figures(), ratios(measured)
    if as_json:
        conditions = {**asdict(under), "device": str(under.device)}
        show_json({"model": subject.name, "conditions": conditions, "rows": rows, "ratios": found})
        return
    shown = ("weights", "threads", "tokens_per_second", "slowest", "fastest", "rows_per_second")
    cells = [[f"{row['task']}, {row['name']}", *(f"{row[name]:,.0f}" for name in shown)] for row in rows]
    share = [[f"{row[name]:.2f}" for name in ("of_sgemm", "ours")] for row in rows]
    headers = ("", "weights", "threads", "tokens/s", "from", "to", "rows/s", "of sgemm", "ours is x")
    show_table(headers, [[*left, *right] for left, right in zip(cells, share, strict=True)])
    for name, value in found.items():
        click.echo(f"{name:<16} {value:7.2f}")


if __name__ == "__main__":
    main()
