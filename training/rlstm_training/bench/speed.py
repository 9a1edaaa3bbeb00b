"""Speed of training on this machine: tokens a second of our cells and of torch.nn.LSTM, as ratios.

All models have equally many weights, the same vocabulary, batch and window. A turn is what one window costs:
embedding, layers, softmax, loss and the whole backward pass; not the optimiser, which is alike for all. Each
round measures every model once and the machine's own matrix-product rate beside it; ratios are taken
within a round and their median counts, so that a slow moment of the machine meets both sides alike.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rlstm_model.config import CellKind, ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.objective import language_model_loss

SGEMM_SIZE = 2048
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
    precision: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model. ``beside`` names our LSTM that it is compared with, "" for none."""

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


def measure(
    workload: Workload,
    seconds: float,
    *,
    device: torch.device | None = None,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Rounds for about ``seconds``, at least three. ``on_round`` is told how many are done."""
    device = device or torch.device("cpu")
    found = cases(workload, device)
    tokens = workload.batch * workload.window
    for case in found:
        case.turn()
    sgemm_rate(device)
    rates: list[dict[str, float]] = []
    ends = time.perf_counter() + seconds
    while len(rates) < LEAST_ROUNDS or time.perf_counter() < ends:
        sgemm = sgemm_rate(device)
        rates.append({"": sgemm, **{case.name: tokens / _seconds(case.turn, device) for case in found}})
        on_round(len(rates))
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
        our_lstm=median(lambda each: each[case.name] / each[case.beside]) if case.beside else None,
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


def flops_per_token(config: ModelConfig) -> int:
    """Of training: six operations for every weight that is multiplied, two forward and four back."""
    return 6 * multiply_adds(LanguageModel(config))


def multiply_adds(model: LanguageModel) -> int:
    """What reading a token takes: one for every weight that is multiplied.

    Biases are added, and a row of the input embedding is only looked up. Of a mixture of softmaxes each
    multiplies with the whole output matrix.
    """
    matrices = {name: weight.numel() for name, weight in model.named_parameters() if "bias" not in name}
    output = model.embedding.output_matrix.numel()
    for name in ("embedding.input", "embedding.output"):
        matrices.pop(name, None)
    return sum(matrices.values()) + model.config.softmax_components * output


def sgemm_rate(device: torch.device) -> float:
    """Operations a second of one large float32 matrix product."""
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE, device=device)
    return 2 * SGEMM_SIZE**3 / _seconds(lambda: torch.nn.functional.linear(square, square), device)


def _case(name: str, beside: str, config: ModelConfig, workload: Workload, device: torch.device) -> Case:
    generator = torch.Generator(device).manual_seed(0)
    model = (TorchLSTM if name == TORCH else LanguageModel)(config).to(device)
    if isinstance(model, TorchLSTM):
        model.initialise(chrono_max=None, generator=generator)
    else:
        initialise(model, chrono_max=None, generator=generator)
    ids = torch.randint(
        config.vocab_size, (2, workload.window, workload.batch), generator=generator, device=device
    )
    state = model.initial_state(workload.batch)

    def turn() -> None:
        model.zero_grad(set_to_none=True)
        features, _ = model(ids[0], state, precision=workload.precision)
        language_model_loss(model.embedding, features, ids[1], 1, workload.precision).backward()  # type: ignore[no-untyped-call]

    return Case(
        name=name,
        beside=beside,
        parameters=sum(weight.numel() for weight in model.parameters()),
        flops_per_token=flops_per_token(config),
        turn=turn,
    )


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    _wait_for(device)
    began = time.perf_counter()
    act()
    _wait_for(device)
    return max(time.perf_counter() - began, math.ulp(1.0))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
