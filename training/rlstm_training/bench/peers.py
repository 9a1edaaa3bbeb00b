"""Speed beside how others do it: learning one session at a time, and scoring by other models of equal size.

Ours run as in a server, where each thread has products of its own; for the others torch splits products as it
sees fit, or not at all, whichever is faster. Texts are random tokens: no speed depends on them.
"""

from dataclasses import dataclass, replace

import torch

from rlstm_model.adaptation.adapted_state import EXPERT_RATES, ExpertConfig
from rlstm_model.adaptation.calibration import Calibration, CalibrationSet
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.torch_backend.graphs import graphed_reading
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.bench import gpt2
from rlstm_training.bench.in_turn import Case, Measured
from rlstm_training.bench.speed import SGEMM_SIZE, multiply_adds
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.bench.works import (
    EagerSession,
    gpt2_scoring,
    lstm_scoring,
    one_session,
    scoring,
    sessions,
    sgemm,
)

ONE_AT_A_TIME = "full weights, one session at a time"
EAGER = f"eager autograd: {ONE_AT_A_TIME}"

# A row that learns is read and gone back through; for full weights each has a gradient too.
_LEARNING, _LEARNING_ALL = 2, 3


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which all are measured.

    sessions  that our ways read at once, and rows of the other models
    context   tokens that GPT-2 reads, and can look back on
    threads   of our thread_pool; of torch for the others, unless they are faster with one
    """

    sessions: int
    context: int
    threads: int
    device: torch.device


def peers(
    calibrated: CalibrationSet,
    calibration: Calibration,
    *,
    bos_id: int,
    under: Conditions,
    thread_pool: ThreadPool | None = None,
) -> list[Case]:
    """A large matrix product, our ways and the others'; GPT-2 only where its library is installed.

    Our sessions learn by ``calibration``, those of full fast weights by what the checkpoint knows of these.
    """
    product = Case(
        name="F.linear, " + " x ".join(3 * [f"{SGEMM_SIZE:,}"]),
        task="sgemm",
        work=sgemm(under.device),
        operations=1,
        threads=(under.threads,),
    )
    return [
        product,
        *_many_sessions(calibrated.model, calibration, bos_id, under, thread_pool),
        *_one_at_a_time(calibrated, bos_id, under),
        _ours_static(calibrated.model, calibration.config.segment, under, thread_pool),
        _torch_lstm(calibrated.model, calibration.config.segment, under),
        *_gpt2(calibrated.model, under),
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


def _many_sessions(
    model: LanguageModel,
    calibration: Calibration,
    bos_id: int,
    under: Conditions,
    thread_pool: ThreadPool | None,
) -> list[Case]:
    """With one expert, and with several and their static row."""
    config, count = calibration.config, under.sessions
    return [
        Case(
            name=f"ours: {config.kind} of {config.num_fast_weights:,}, {count} sessions"
            + (f" of {experts} experts" if experts > 1 else ""),
            task="learning",
            weights=model.config.num_parameters,
            work=sessions(
                model, calibration, bos_id=bos_id, count=count, experts=experts, thread_pool=thread_pool
            ),
            operations=multiply_adds(model) * (int(experts > 1) + _LEARNING * len(EXPERT_RATES[experts])),
            rows=ExpertConfig(experts=experts, static=experts > 1).rows,
            thread_pool=1 if thread_pool is None else thread_pool.threads,
        )
        for experts in EXPERT_RATES
    ]


def _one_at_a_time(calibrated: CalibrationSet, bos_id: int, under: Conditions) -> list[Case]:
    model, full = calibrated.model, _full(calibrated)
    ours = Case(
        name=f"ours: {ONE_AT_A_TIME}",
        task="learning",
        weights=model.config.num_parameters,
        work=one_session(model, full, bos_id=bos_id),
        operations=_LEARNING_ALL * multiply_adds(model),
    )
    return [ours, replace(ours, name=EAGER, work=EagerSession(model, full), threads=_freely(under))]


def _ours_static(
    model: LanguageModel, segment: int, under: Conditions, thread_pool: ThreadPool | None
) -> Case:
    weights = graphed_reading(FrozenWeights(model))
    return Case(
        name=f"ours, {under.sessions} rows",
        task="static",
        weights=model.config.num_parameters,
        work=scoring(weights, segment, under.sessions, thread_pool),
        operations=multiply_adds(model),
        thread_pool=1 if thread_pool is None else thread_pool.threads,
    )


def _torch_lstm(model: LanguageModel, segment: int, under: Conditions) -> Case:
    lstm = TorchLSTM(lstm_of_equal_size(model.config)).to(under.device).requires_grad_(False)
    lstm.initialise(chrono_max=None, generator=torch.Generator(under.device).manual_seed(0))
    return Case(
        name=f"torch.nn.LSTM, {under.sessions} rows",
        task="static",
        weights=sum(weight.numel() for weight in lstm.parameters()),
        work=lstm_scoring(lstm, segment, under.sessions),
        operations=multiply_adds(lstm),
        threads=_freely(under),
    )


def _gpt2(model: LanguageModel, under: Conditions) -> list[Case]:
    if not gpt2.is_installed():
        return []
    config = model.config
    shape = gpt2.shape_of_size(config.num_parameters, vocabulary=config.vocab_size, context=under.context)
    other = gpt2.build(shape).to(under.device)
    return [
        Case(
            name=f"GPT-2, {under.sessions} rows of {under.context} tokens",
            task="static",
            weights=sum(weight.numel() for weight in other.parameters()),
            work=gpt2_scoring(other, shape, under.sessions, under.device),
            operations=shape.multiply_adds,
            threads=_freely(under),
        )
    ]


def _freely(under: Conditions) -> tuple[int, ...]:
    """So that nobody is held back."""
    return tuple(sorted({1, under.threads}))


def _full(calibrated: CalibrationSet) -> Calibration:
    """Full fast weights under their rule or, as speed depends on no rate, under the default's figures."""
    for choice in calibrated.choices:
        if choice.kind == "full":
            return calibrated.choose("full", choice.num_fast_weights)
    weights = calibrated.model.config.num_parameters
    rule = replace(calibrated.default, kind="full", num_fast_weights=weights, rank=0)
    return calibrated.statistics.calibration(calibrated.model, rule)
