"""Speed of one model on this machine: every figure beside the machine's own matrix-product rate.

The rounds are interleaved, so that a slow moment of the machine meets every row alike; the median counts.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.language_model import LanguageModel

SGEMM_SIZE = 2048
BATCH = 64
WINDOW = 64
STREAM = 100


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """``tokens_per_second`` is the median over the rounds; ``flops_share`` of the sgemm rate, or None."""

    name: str
    tokens_per_second: float
    flops_share: float | None


@dataclass(frozen=True, kw_only=True)
class _Case:
    name: str
    tokens: int
    run: Callable[[], None]
    flops_per_token: int


def measure_speed(model: LanguageModel, adapter: Adapter, *, rounds: int) -> list[SpeedRow]:
    """Static scoring at batch 1 and 64, learning one session at a time, and torch.nn.LSTM of equal size.

    Raises ValueError when there is no round.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    cases = [
        _static(model, 1, "static, batch 1"),
        _static(model, BATCH, f"static, batch {BATCH}"),
        _learning(adapter, model, static=False),
        _learning(adapter, model, static=True),
        _torch_lstm(model, BATCH),
    ]
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    sgemm_rates = []
    for _ in range(rounds):
        sgemm_rates.append(_sgemm_rate())
        for case in cases:
            seconds[case.name].append(_seconds(case.run))
    peak = statistics.median(sgemm_rates)
    return [_row(case, statistics.median(seconds[case.name]), peak) for case in cases]


def _row(case: _Case, seconds: float, peak: float) -> SpeedRow:
    rate = case.tokens / seconds
    share = rate * case.flops_per_token / peak if case.flops_per_token else None
    return SpeedRow(name=case.name, tokens_per_second=rate, flops_share=share)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _sgemm_rate() -> float:
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE)
    torch.nn.functional.linear(square, square)
    return 2 * SGEMM_SIZE**3 / _seconds(lambda: torch.nn.functional.linear(square, square))


def _forward_flops(model: LanguageModel) -> int:
    """Two operations for every weight that is multiplied; reading an embedding row multiplies nothing."""
    embedding = model.embedding
    used = model.config.num_parameters - embedding.bias.numel()
    return 2 * (used if embedding.output is None else used - embedding.input.numel())


def _static(model: LanguageModel, batch: int, name: str) -> _Case:
    ids_TB = torch.randint(model.config.vocab_size, (WINDOW, batch))

    @torch.no_grad()
    def run() -> None:
        features, _ = model(ids_TB, model.initial_state(batch))
        model.log_probs(features)

    return _Case(name=name, tokens=ids_TB.numel(), run=run, flops_per_token=_forward_flops(model))


def _learning(adapter: Adapter, model: LanguageModel, *, static: bool) -> _Case:
    ids = torch.randint(model.config.vocab_size, (STREAM,)).tolist()

    def run() -> None:
        for _ in adapter.observe(adapter.start(static=static), ids):
            pass

    name = "learning, one session, full weights" + (", with static reference" if static else "")
    return _Case(name=name, tokens=len(ids), run=run, flops_per_token=0)


def _torch_lstm(model: LanguageModel, batch: int) -> _Case:
    """torch.nn.LSTM with the same layers and about the same weights, with embedding and softmax."""
    config = model.config
    body = config.num_parameters - 2 * config.vocab_size * config.hidden_size
    hidden = max(1, int((body / (8 * config.num_layers)) ** 0.5))
    lstm = torch.nn.LSTM(hidden, hidden, config.num_layers)
    embedding, output = (
        torch.nn.Embedding(config.vocab_size, hidden),
        torch.nn.Linear(hidden, config.vocab_size),
    )
    ids_TB = torch.randint(config.vocab_size, (WINDOW, batch))

    @torch.no_grad()
    def run() -> None:
        torch.log_softmax(output(lstm(embedding(ids_TB))[0]), -1)

    return _Case(
        name=f"torch.nn.LSTM({hidden}), static, batch {batch}",
        tokens=ids_TB.numel(),
        run=run,
        flops_per_token=2 * (8 * config.num_layers * hidden * hidden + config.vocab_size * hidden),
    )
