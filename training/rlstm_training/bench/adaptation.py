"""Quality of learning: what texts cost by each rule of a checkpoint, every text a session of its own.

All sessions of a rule, whatever their experts and rates, are rows of the same batches. Nothing is chosen
here: rules come as they were calibrated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlstm_model.adaptation.adapted_state import EXPERT_RATES
from rlstm_model.adaptation.calibration import Calibration, CalibrationSet
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.evaluator import DynamicEvaluator, NonFiniteState
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, Evaluation, Stream, no_advance, read_together

# Fast weights of all sessions that are read at once: some five times this many numbers are in memory.
_WEIGHTS_AT_ONCE = 2**26

Bits = Mapping[str, float]
"""Bits per byte by text; NaN where a session could compute nothing."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a session reads: its rule, how many experts it has, and what the rule's rate is multiplied with."""

    rule: AdaptationConfig
    experts: int = 1
    rate_scale: float = 1.0

    @property
    def learners(self) -> int:
        """Experts that have fast weights."""
        return len(EXPERT_RATES[self.experts])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the texts cost by one method.

    bytes   of one session's fast weights, those of all experts
    guards  by text, how often something was kept from happening to its session
    """

    method: Method
    bytes: int
    bits: Bits
    guards: Mapping[str, int]


def idle_rule(calibrated: CalibrationSet) -> Calibration:
    """A rule by which nothing is ever learned: its sessions share all weights, and so all products."""
    model = calibrated.model
    rule = replace(
        calibrated.default,
        kind="output_bias",
        num_fast_weights=model.config.vocab_size,
        rank=0,
        rule="sgd",
        rate=0.0,
        decay=0.0,
    )
    return calibrated.statistics.calibration(model, rule)


class Bench:
    """Texts, and the checkpoint whose rules they are read by."""

    def __init__(
        self,
        calibrated: CalibrationSet,
        passages: Sequence[Passage],
        *,
        bos_id: int,
        thread_pool: ThreadPool | None = None,
    ) -> None:
        """The names of ``passages`` are the texts', and differ. A ``thread_pool`` changes no figure."""
        self._calibrated = calibrated
        self._passages = passages
        self._bos_id = bos_id
        self._thread_pool = thread_pool

    @property
    def tokens(self) -> int:
        """Of all texts together: what one method reads."""
        return sum(len(passage.ids) for passage in self._passages)

    def static(self, advance: Advance = no_advance) -> Bits:
        """With the weights as loaded."""
        evaluator = self._evaluator(idle_rule(self._calibrated))
        streams = [Stream(passage, evaluator.start(static=False)) for passage in self._passages]
        return _bits(read_each(evaluator, streams, advance, self._thread_pool))

    def learning(self, methods: Sequence[Method], advance: Advance = no_advance) -> Iterator[Outcome]:
        """By methods that have one rule in common; they come in their order, as soon as they are read."""
        if not methods:
            return
        rule = self._calibrated.statistics.calibration(self._calibrated.model, methods[0].rule)
        evaluator = self._evaluator(rule)
        zero = rule.fast_weights(self._calibrated.model).zero(1)
        for together in _batches(methods, len(self._passages) * rule.config.num_fast_weights):
            for method, results in zip(together, self._read(evaluator, together, advance), strict=True):
                yield Outcome(
                    method=method,
                    bytes=method.learners * zero.nbytes,
                    bits=_bits(results),
                    guards={result.text: result.guards for result in results},
                )

    def _evaluator(self, rule: Calibration) -> DynamicEvaluator:
        return DynamicEvaluator(self._calibrated.model, rule, bos_id=self._bos_id, logprobs_only=True)

    def _read(
        self, evaluator: DynamicEvaluator, methods: Sequence[Method], advance: Advance
    ) -> Iterator[list[Evaluation]]:
        streams = [
            Stream(
                passage,
                evaluator.start(
                    rate_scale=method.rate_scale, experts=method.experts, static=method.experts > 1
                ),
            )
            for method in methods
            for passage in self._passages
        ]
        results = read_each(evaluator, streams, advance, self._thread_pool)
        count = len(self._passages)
        return (results[start : start + count] for start in range(0, len(results), count))


def read_each(
    evaluator: DynamicEvaluator,
    streams: Sequence[Stream],
    advance: Advance = no_advance,
    thread_pool: ThreadPool | None = None,
) -> list[Evaluation]:
    """As :func:`~rlstm_training.evaluation.evaluation.read_together`.

    A stream whose state cannot be used costs NaN, and changes no other.
    """
    try:
        return read_together(evaluator, streams, advance, thread_pool)
    except NonFiniteState:
        return [_alone(evaluator, stream) for stream in streams]


def _alone(evaluator: DynamicEvaluator, stream: Stream) -> Evaluation:
    try:
        return read_together(evaluator, [stream])[0]
    except NonFiniteState:
        passage = stream.passage
        return Evaluation(
            text=passage.name,
            tokens=len(passage.ids),
            bytes=passage.bytes,
            unknown=passage.unknown,
            static_nats=None,
            adapted_nats=math.nan,
        )


def _batches(methods: Sequence[Method], weights: int) -> Iterator[Sequence[Method]]:
    """As many methods at once as memory allows, at least one; a learner of all texts has ``weights``."""
    start = 0
    while start < len(methods):
        end, used = start + 1, methods[start].learners * weights
        while end < len(methods) and (used := used + methods[end].learners * weights) <= _WEIGHTS_AT_ONCE:
            end += 1
        yield methods[start:end]
        start = end


def _bits(results: Sequence[Evaluation]) -> Bits:
    return {
        result.text: math.nan if result.adapted_nats is None else result.bits_per_byte(result.adapted_nats)
        for result in results
    }
