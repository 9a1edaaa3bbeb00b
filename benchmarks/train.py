"""Speed of training on this machine: tokens a second of our cells and of torch.nn.LSTM, as ratios.

All models have equally many weights, the same vocabulary, batch and window. A turn is what one window costs:
embedding, layers, softmax, loss and the whole backward pass; not the optimiser, which is alike for all. Each
round measures every model once and the machine's own matrix-product rate beside it; ratios are taken
within a round and their median counts, so that a slow moment of the machine meets both sides alike.

    python -m benchmarks.train --hidden 512
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import click
import torch

from benchmarks.cases import SGEMM_SIZE, multiply_adds, wait_for
from benchmarks.models import TorchLSTM, lstm_of_equal_size
from rlstm_client.cli import inputs
from rlstm_model.config import CellKind, ConfigError, ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.commands.given import Compute
from rlstm_training.config import Precision
from rlstm_training.objective import language_model_loss

LEAST_ROUNDS = 3
TORCH = "torch.nn.LSTM"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What every model gets. ``hidden`` is the RLSTM's, whose weights the others match."""

    hidden: int = 256
    layers: int = 2
    rounds: int = 4
    rank: int = 40
    vocabulary: int = 256
    batch: int = 128
    window: int = 40
    precision: Precision = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """Of the inputs of our matrix products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model. ``beside`` names our LSTM that it is compared with, where it is measured."""

    name: str
    beside: str
    parameters: int
    flops_per_token: int
    turn: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians over the rounds; ratios to the matrix-product rate, to torch's LSTM and to ours.

    ``our_lstm`` is None for the LSTMs. ``slowest`` and ``fastest`` are tokens a second of single rounds.
    """

    name: str
    parameters: int
    tokens_per_second: float
    slowest: float
    fastest: float
    sgemm: float
    torch_lstm: float
    our_lstm: float | None


def measure(workload: Workload, seconds: float, device: torch.device, *, beside: bool = True) -> list[Row]:
    """Rounds for about ``seconds``, at least three; ``beside``: our LSTMs too."""
    found = cases(workload, device)
    found = found if beside else [found[0], found[-1]]
    tokens = workload.batch * workload.window
    for case in found:
        case.turn()
    sgemm_rate(device)
    rates: list[dict[str, float]] = []
    ends = time.perf_counter() + seconds
    while len(rates) < LEAST_ROUNDS or time.perf_counter() < ends:
        sgemm = sgemm_rate(device)
        rates.append({"": sgemm, **{case.name: tokens / seconds_of(case.turn, device) for case in found}})
    return [row(case, rates) for case in found]


def row(case: Case, rates: Sequence[dict[str, float]]) -> Row:
    """One model's figures, from each round's tokens a second by name; "" is the matrix-product rate."""

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(each) for each in rates)

    own = [each[case.name] for each in rates]
    return Row(
        name=case.name,
        parameters=case.parameters,
        tokens_per_second=statistics.median(own),
        slowest=min(own),
        fastest=max(own),
        sgemm=median(lambda each: each[case.name] * case.flops_per_token / each[""]),
        torch_lstm=median(lambda each: each[case.name] / each[TORCH]),
        our_lstm=median(lambda each: each[case.name] / each[case.beside])
        if case.beside and case.beside in rates[0]
        else None,
    )


def cases(workload: Workload, device: torch.device) -> list[Case]:
    """RLSTM and LSTM, with rounds and without, and torch's."""
    rlstm = ModelConfig(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        num_layers=workload.layers,
        mogrifier_rounds=workload.rounds,
        mogrifier_rank=workload.rank,
    )
    shapes: list[tuple[str, str, ModelConfig]] = []
    for rounds in sorted({workload.rounds, 0}, reverse=True):
        pair: list[tuple[CellKind, str]] = [("rlstm", f"LSTM, {rounds} rounds"), ("lstm", "")]
        for cell, beside in pair:
            shape = replace(rlstm, cell=cell, mogrifier_rounds=rounds).with_budget(rlstm.num_parameters)
            shapes.append((f"{cell.upper()}, {rounds} rounds", beside, shape))
    shapes.append((TORCH, "", lstm_of_equal_size(rlstm)))
    return [_case(name, beside, shape, workload, device) for name, beside, shape in shapes]


def sgemm_rate(device: torch.device) -> float:
    """Operations a second of one large float32 matrix product."""
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE, device=device)
    return 2 * SGEMM_SIZE**3 / seconds_of(lambda: torch.nn.functional.linear(square, square), device)


def seconds_of(act: Callable[[], object], device: torch.device) -> float:
    """How long something takes, on a device that does not wait for it too."""
    wait_for(device)
    began = time.perf_counter()
    act()
    wait_for(device)
    return max(time.perf_counter() - began, 1e-9)


def _case(name: str, beside: str, config: ModelConfig, workload: Workload, device: torch.device) -> Case:
    generator = torch.Generator(device).manual_seed(0)
    model = (TorchLSTM if name == TORCH else LanguageModel)(config).to(device)
    if isinstance(model, TorchLSTM):
        model.initialise(chrono_max=None, generator=generator)
    else:
        initialise(model, chrono_max=None, generator=generator)
    size = (2, workload.window, workload.batch)
    ids = torch.randint(config.vocab_size, size, generator=generator, device=device)
    state, dtype = model.initial_state(workload.batch), workload.dtype

    def turn() -> None:
        model.zero_grad(set_to_none=True)
        features, _ = model(ids[0], state, precision=dtype)
        loss = language_model_loss(model.embedding, features, ids[1], 1, dtype)
        loss.backward()  # type: ignore[no-untyped-call]

    return Case(
        name=name,
        beside=beside,
        parameters=sum(weight.numel() for weight in model.parameters()),
        # Two operations for every multiplied weight forward, four back.
        flops_per_token=6 * multiply_adds(config),
        turn=turn,
    )


@console.command()
@click.option("--hidden", type=click.IntRange(1), default=256, help="Units a layer of the RLSTM.")
@click.option("--layers", type=click.IntRange(1), default=2, help="Layers of every model.")
@click.option("--rounds", type=click.IntRange(0), default=4, help="Mogrifier rounds.")
@click.option("--rank", type=click.IntRange(0), default=40, help="Rank of the rounds' matrices; 0: full.")
@click.option("--vocabulary", type=click.IntRange(1), default=256, help="Symbols of the vocabulary.")
@click.option("--batch", type=click.IntRange(1), default=128, help="Rows.")
@click.option("--window", type=click.IntRange(1), default=40, help="Tokens a row and step.")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="float32",
    help="Of the inputs of our matrix products.",
)
@click.option("--seconds", type=click.FloatRange(0), default=30.0, help="How long to measure, about.")
@inputs.given("compute", Compute, threads=1)
@inputs.as_json
def train(seconds: float, compute: Compute, as_json: bool, **sizes: Any) -> None:
    """Measure how fast models train, as ratios taken in one run.

    RLSTM, LSTM and torch.nn.LSTM with equally many weights read the same windows in turn, beside the
    machine's rate for one large matrix product.
    """
    workload = Workload(**sizes)
    try:
        rows = measure(workload, seconds, compute.prepare())
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    if as_json:
        under = {"workload": asdict(workload), **asdict(compute)}
        show_json({**under, "rows": [asdict(row) for row in rows]})
        return
    headers = ("", "weights", "tokens/s", "from", "to", "of sgemm", "of torch's", "of our LSTM")
    show_table(headers, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    speeds = (row.parameters, row.tokens_per_second, row.slowest, row.fastest)
    ratios = (row.sgemm, row.torch_lstm, row.our_lstm)
    ours = ["" if value is None else f"{value:.2f}" for value in ratios]
    return [row.name, *(f"{value:,.0f}" for value in speeds), *ours]


if __name__ == "__main__":
    train()
