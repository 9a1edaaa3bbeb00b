"""The device of the simulation: the real worker and scheduler without a thread, and a model that counts.

Everything the server does with a model stays, its evaluators, states, seals and jobs; what is replaced
is the arithmetic of one round (:mod:`fold`), and the thread that waits for work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.backend import NativeBackend
from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.items import (
    BatchItem,
    BatchResult,
    DecodeStep,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.state import AdaptedState, Cursor
from rlstm_model.config import ModelConfig
from rlstm_model.native import Window
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.scores import TokenScores
from rlstm_model.vocab import WordVocab
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.worker import Worker
from simulated import fold
from simulated.fold import Fold
from simulated.loop import SimulatedLoop

VOCAB: Final = WordVocab.of_characters_in("abcdefghij.")
ROUND_SECONDS: Final = 0.01


class FoldEvaluator(DynamicEvaluator):
    """An evaluator whose streams are folds."""

    def reset(self, state: AdaptedState, *, fast_weights: bool, recurrent: bool) -> AdaptedState:
        """Forget."""
        done = fold_of(state).reset(self.bos_id, fast_weights=fast_weights, recurrent=recurrent)
        start = self.start(experts=state.expert_config.experts).start if recurrent else state.start
        return state_of(done, state, start, self.backend.fast_weights)


@cache
def served() -> ServedModel:
    """The served model, with a small kind of fast weights and a large one."""
    config = ModelConfig(vocab_size=VOCAB.size, hidden_size=1, num_layers=1)
    ones = {name: np.ones(shape, np.float32) for name, shape in shapes(config).items()}
    parameters = Parameters(config, ones)
    full = AdaptationConfig(
        kind="full",
        num_fast_weights=config.num_parameters,
        rule="sgd",
        rate=0.1,
        segment=fold.SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=1,
    )
    small = replace(full, kind="output_bias", num_fast_weights=VOCAB.size)
    statistics = GradientStatistics(rms=ones, axes={}, cores={})
    calibrated = CalibrationSet(statistics=statistics, choices=(small, full), fingerprint="c")
    made = ServedModel(
        name="fold", fingerprint="f", parameters=parameters, vocab=VOCAB, calibrated=calibrated
    )
    evaluators = {}
    for rule in made.rules:
        calibration = calibrated.choose(rule.kind, rule.num_fast_weights)
        backend = NativeBackend(parameters, calibration)
        no_bound = 0.0  # a fold's numbers are large, and no norm is taken of them
        evaluators[rule] = FoldEvaluator(backend, calibration, no_bound, VOCAB.bos_id)
    object.__setattr__(made, "_evaluators", evaluators)
    return made


# ---- states that are folds ------------------------------------------------------------------------------


def fold_of(state: AdaptedState) -> Fold:
    """The fold that a state is. Raises ValueError for arrays that are parts of two states."""
    return Fold(
        last=state.now.last,
        read=_number(state.now.states_R2U[:, 0]),
        learned=0 if state.delta_KP is None else _number(state.delta_KP),
        position=state.position,
        pending=tuple(zip(state.pending, state.pending_learn, strict=True)),
    )


def state_of(done: Fold, before: AdaptedState, start: Cursor, size: int) -> AdaptedState:
    """The state of a fold whose unfinished segment began at `start`, with fast weights of that size."""
    now = Cursor(_filled(before.now.states_R2U, done.read), done.last)
    mixture, read = before.mixture, done.position - before.position
    if mixture is not None:
        mixture = mixture._replace(tokens=mixture.tokens + read)
    rows = len(before.expert_config.rates)
    delta = np.full((rows, size), done.learned, np.float32) if done.learned else None
    return replace(
        before,
        delta_KP=delta,
        now=now,
        start=start if done.pending else now.of(before.expert_config.learning),
        mixture=mixture,
        pending=tuple(token for token, _ in done.pending),
        pending_learn=tuple(learn for _, learn in done.pending),
        position=done.position,
        updates=before.updates + (delta is not None and done.learned != _learned(before)),
    )


def _learned(state: AdaptedState) -> int:
    return 0 if state.delta_KP is None else _number(state.delta_KP)


def _number(array: NDArray[np.float32]) -> int:
    first, *others = array.ravel().tolist()
    if any(value != first for value in others):
        raise ValueError("an array holds parts of two states")
    return int(first)


def _filled(like: NDArray[np.float32], value: int) -> NDArray[np.float32]:
    states_R2U = np.zeros(like.shape, np.float32)
    states_R2U[:, 0] = value
    return states_R2U


# ---- rounds ---------------------------------------------------------------------------------------------


def run_batch(works: Sequence[BatchItem]) -> list[BatchResult]:
    """Do each work by counting."""
    return [_do(work) for work in works]


def _do(work: BatchItem) -> BatchResult:
    if isinstance(work, ObserveChunk):
        return _observe(work)
    learned = 0 if work.reader.delta_KP is None else _number(work.reader.delta_KP)
    at = Fold(last=work.cursor.last, read=_number(work.cursor.states_R2U[:, 0]), learned=learned)
    if isinstance(work, ScoreChunk):
        scores, static = [], _static(at, work.ids)
        for token in work.ids:
            scores.append(fold.logprob(at.value, learned, token))
            at = replace(at, read=at.value, last=token)
        after = Cursor(_filled(work.cursor.states_R2U, at.read), at.last, work.cursor.mixture)
        return ScoredChunk(
            _scores(scores), after, np.array(static, np.float32) if work.reader.static else None
        )
    return _turn(work, at)


def _observe(part: ObserveChunk) -> ObservedChunk:
    before = fold_of(part.state)
    done, scores = before.after(part.ids, learn=part.learn)
    state = state_of(done, part.state, part.state.start, part.learner.backend.fast_weights)
    static = np.array(_static(before, part.ids), np.float32) if part.state.expert_config.static else None
    return ObservedChunk(
        state=state,
        scores=_scores(scores),
        static_logprobs=static,
        updates=int(done.learned != before.learned),
    )


def _static(at: Fold, ids: Sequence[int]) -> list[float]:
    scores, value = [], at.value
    for token in ids:
        scores.append(fold.static_logprob(value, token))
        value = fold.step(value, token)
    return scores


def _turn(turn: DecodeStep, at: Fold) -> NextToken:
    shares = fold.weights(at.value, at.learned, VOCAB.size)
    whole = sum(shares)
    log_probs_V = np.array([math.log(share / whole) for share in shares], np.float32)
    experts = [log_probs_V[None]] * turn.cursor.experts
    states_R2U = _filled(turn.cursor.states_R2U, at.value)
    reads = [Window(log_probs_V[None], states_2U, None) for states_2U in states_R2U]
    return NextToken(log_probs_V, experts, reads, turn.cursor, turn.reader)


def _scores(logprobs: Sequence[float]) -> TokenScores:
    count = len(logprobs)
    ranks = np.ones(count, np.int64)
    return TokenScores(
        logprobs=np.array(logprobs, np.float32), ranks=ranks, entropies=np.zeros(count, np.float32)
    )


# ---- the thread that there is none of -------------------------------------------------------------------


class _Idle(Exception):
    """There is nothing to do."""


class Device:
    """Stands where a worker has the condition that its thread waits on: it runs a round when it is notified.

    A round takes time: what is submitted meanwhile is in the next one, and so are cancellations.
    """

    def __init__(self, worker: Worker, loop: SimulatedLoop, computed: Callable[[], None]) -> None:
        """`computed` is called after each round."""
        self._worker, self._loop, self._computed = worker, loop, computed
        self._due = False

    def __enter__(self) -> None:
        """Nobody else is there."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody else is there."""

    def notify(self) -> None:
        """There is work."""
        if not self._due:
            self._due = True
            self._loop.call_later(ROUND_SECONDS, self._round)

    def wait(self, seconds: float | None = None) -> Any:
        """Where the thread would wait, the round is over."""
        raise _Idle

    def _round(self) -> None:
        self._due = False
        worker = self._worker
        try:
            step = worker._next_step()
        except _Idle:
            return
        if step is None:
            worker._refuse_rest()
            return
        worker._run_step(step)
        self.notify()
        self._computed()
