"""Procedures: everything that decides what a text costs, in one value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator, ExpertConfig
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import (
    Advance,
    DynamicReading,
    Evaluation,
    Reading,
    StaticReading,
    no_advance,
)
from rlstm_training.evaluation.monte_carlo import MonteCarlo, sampled_adapted_log_probs, sampled_log_probs
from rlstm_training.evaluation.results import EvaluationSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class Procedure:
    """How texts are read: static always, learning as well where there is a calibration.

    Each text is the beginning of all text, and a new session of the weights as loaded: what was learned
    from one, or from validation, is gone before the next.
    """

    model: LanguageModel
    bos_id: int
    temperature: float = 1.0
    calibration: Calibration | None = None
    experts: int = 1
    rate_scale: float = 1.0
    monte_carlo: MonteCarlo | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        sampling = self.monte_carlo
        if sampling is not None and sampling.averaging == "geometric" and self.calibration is not None:
            raise ValueError("the geometric mean has one state for all samples, so it cannot learn")
        if sampling is not None and self.experts > 1:
            raise ValueError("samples of dropout are averaged for one expert, not for several")
        ExpertConfig(experts=self.experts)

    def settings(self, prefix: int | None = None) -> EvaluationSettings:
        """What of it belongs beside a result."""
        return EvaluationSettings(
            temperature=self.temperature,
            adaptation=None if self.calibration is None else self.calibration.config,
            experts=self.experts,
            rate_scale=self.rate_scale,
            monte_carlo=self.monte_carlo,
            prefix=prefix,
        )

    @property
    def readings(self) -> int:
        """How often each token is read."""
        readings = 1 if self.calibration is None else 2
        sampling = self.monte_carlo
        return (
            readings if sampling is None or sampling.averaging == "geometric" else readings * sampling.samples
        )

    def read(self, passages: Sequence[Passage], advance: Advance = no_advance) -> list[Evaluation]:
        """Evaluations of the parts of one text, each of which continues the last one."""
        if self.monte_carlo is not None:
            return self._sample(passages, self.monte_carlo, advance)
        static: Reading = StaticReading(self.model, bos_id=self.bos_id, temperature=self.temperature)
        results = [static.read(part, advance) for part in passages]
        if self.calibration is None:
            return results
        evaluator = DynamicEvaluator(
            self.model,
            self.calibration,
            bos_id=self.bos_id,
            temperature=self.temperature,
            logprobs_only=True,
        )
        learning = DynamicReading(
            evaluator, static=self.experts > 1, experts=self.experts, rate_scale=self.rate_scale
        )
        return [
            replace(learning.read(part, advance), static_nats=result.static_nats)
            for part, result in zip(passages, results, strict=True)
        ]

    def _sample(
        self, passages: Sequence[Passage], sampling: MonteCarlo, advance: Advance
    ) -> list[Evaluation]:
        ids = [token for part in passages for token in part.ids]
        static_N = sampled_log_probs(
            self.model, ids, sampling, bos_id=self.bos_id, temperature=self.temperature, advance=advance
        )
        adapted_N = None
        if self.calibration is not None:
            adapted_N = sampled_adapted_log_probs(
                self.model,
                self.calibration,
                ids,
                sampling,
                bos_id=self.bos_id,
                temperature=self.temperature,
                rate_scale=self.rate_scale,
                advance=advance,
            )
        ends = list(accumulate(len(part.ids) for part in passages))
        return [
            _of_log_probs(part, static_N, adapted_N, slice(end - len(part.ids), end))
            for part, end in zip(passages, ends, strict=True)
        ]


def _of_log_probs(passage: Passage, static_N: Tensor, adapted_N: Tensor | None, place: slice) -> Evaluation:
    return Evaluation(
        text=passage.name,
        tokens=len(passage.ids),
        bytes=passage.bytes,
        unknown=passage.unknown,
        static_nats=-float(static_N[place].sum()),
        adapted_nats=None if adapted_N is None else -float(adapted_N[place].sum()),
    )
