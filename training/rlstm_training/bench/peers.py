"""Speed beside how others do it: learning one session at a time, and scoring by other models of equal size.

All are measured in turn, round after round, and compared within a round; medians count. So a slow moment of
the machine meets all sides alike. Texts are random tokens: no speed depends on them.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from rlstm_model.adaptation.calibration import Calibrated, Calibration
from rlstm_model.language_model import LanguageModel
from rlstm_training.bench import gpt2
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.bench.works import (
    EagerSession,
    Work,
    gpt2_scoring,
    lstm_scoring,
    one_session,
    scoring,
    sessions,
)

Task = Literal["learning", "static"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One way to do a task. The first of each task is ours, which the others are compared with.

    threads  the numbers to try: the fastest counts, in each round anew
    """

    name: str
    task: Task
    weights: int
    work: Work
    threads: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians over the rounds. ``ours`` is how many times as fast our way of the same task is."""

    name: str
    task: Task
    weights: int
    tokens_per_second: float
    slowest: float
    fastest: float
    ours: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which all are measured.

    sessions  that our ways read at once, and rows of the other models
    context   tokens that GPT-2 reads, and can look back on
    """

    sessions: int
    context: int
    threads: int
    device: torch.device


def peers(calibrated: Calibrated, calibration: Calibration, *, bos_id: int, under: Conditions) -> list[Peer]:
    """Ours and the others; GPT-2 only where its library is installed.

    Our sessions learn by ``calibration``, those of full fast weights by what the checkpoint knows of these.
    """
    model, full, count = calibrated.model, _full(calibrated), under.sessions
    rule, own = calibration.config, (under.threads,)

    def peer(task: Task, name: str, work: Work, threads: tuple[int, ...] = own) -> Peer:
        return Peer(name=name, task=task, weights=model.config.num_parameters, work=work, threads=threads)

    ours = f"ours: {rule.kind} of {rule.coordinates:,}, {count} sessions"
    each = "full weights, one session at a time"
    return [
        peer("learning", ours, sessions(model, calibration, bos_id=bos_id, count=count)),
        peer("learning", f"ours: {each}", one_session(model, full, bos_id=bos_id)),
        peer("learning", f"eager autograd: {each}", EagerSession(model, full), tuple({1, under.threads})),
        peer("static", f"ours, {count} rows", scoring(calibrated, count)),
        *_other_models(model, rule.segment, under),
    ]


def measure(
    found: Sequence[Peer],
    *,
    rounds: int,
    seconds: float,
    device: torch.device,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[Figures]:
    """Each of ``found`` for ``seconds`` in each of the rounds. ``on_round`` is told how many are done."""
    before = torch.get_num_threads()
    rates: list[dict[str, float]] = []
    try:
        while len(rates) < rounds:
            rates.append({peer.name: _fastest(peer, seconds, device) for peer in found})
            on_round(len(rates))
    finally:
        torch.set_num_threads(before)
    return figures(found, rates)


def figures(found: Sequence[Peer], rates: Sequence[Mapping[str, float]]) -> list[Figures]:
    """From each round's tokens a second by name."""
    ours = {peer.task: peer.name for peer in reversed(found)}
    told = []
    for peer in found:
        own = [each[peer.name] for each in rates]
        told.append(
            Figures(
                name=peer.name,
                task=peer.task,
                weights=peer.weights,
                tokens_per_second=statistics.median(own),
                slowest=min(own),
                fastest=max(own),
                ours=statistics.median(each[ours[peer.task]] / each[peer.name] for each in rates),
            )
        )
    return told


def _other_models(model: LanguageModel, segment: int, under: Conditions) -> list[Peer]:
    config, rows = model.config, under.sessions
    lstm = TorchLSTM(lstm_of_equal_size(config)).to(under.device).requires_grad_(False)
    lstm.initialise(chrono_max=None, generator=torch.Generator(under.device).manual_seed(0))
    found = [_static(f"torch.nn.LSTM, {rows} rows", lstm, lstm_scoring(lstm, segment, rows), under)]
    if gpt2.is_installed():
        context = under.context
        shape = gpt2.shape_of_size(config.num_parameters, vocabulary=config.vocab_size, context=context)
        other = gpt2.build(shape).to(under.device)
        work = gpt2_scoring(other, shape, rows, under.device)
        found.append(_static(f"GPT-2, {rows} rows of {context} tokens", other, work, under))
    return found


def _static(name: str, model: nn.Module, work: Work, under: Conditions) -> Peer:
    weights = sum(weight.numel() for weight in model.parameters())
    return Peer(name=name, task="static", weights=weights, work=work, threads=(under.threads,))


def _full(calibrated: Calibrated) -> Calibration:
    """Full fast weights under their rule or, as speed depends on no rate, under the default's figures."""
    for choice in calibrated.choices:
        if choice.kind == "full":
            return calibrated.choose("full", choice.coordinates)
    weights = calibrated.model.config.num_parameters
    rule = replace(calibrated.default, kind="full", coordinates=weights)
    return calibrated.statistics.calibration(calibrated.model, rule)


def _fastest(peer: Peer, seconds: float, device: torch.device) -> float:
    return max(_rate(peer.work, threads, seconds, device) for threads in peer.threads)


def _rate(work: Work, threads: int, seconds: float, device: torch.device) -> float:
    """Tokens a second. On one thread they are the processor's: what else the machine does counts less."""
    torch.set_num_threads(threads)
    on_gpu = device.type == "cuda"
    now = time.process_time if threads == 1 and not on_gpu else time.perf_counter
    work()
    _wait_for(device)
    done, start = 0, now()
    while True:
        done += work()
        _wait_for(device)
        if now() - start >= seconds:
            return done / max(now() - start, 1e-9)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
