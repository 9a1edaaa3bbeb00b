"""Calibration: measure gradient statistics on training text, then choose the rate on held-out text.

A session's text is rarely like the training text, so the choice is made on several kinds of text, one
session each, and never on a text of a test stream (:mod:`rlstm_training.streams`).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration, measure_rms
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.language_model import LanguageModel
from rlstm_training.batches import Ids
from rlstm_training.evaluation import Advance, dynamic_loss, no_advance
from rlstm_training.texts import Passage

RATES = (1e-4, 2e-4, 3e-4, 6e-4, 1e-3, 2e-3)
DECAYS = (0.0, 2e-3)

Measure = Callable[[float, float], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How gradient statistics are taken: ``heads`` read heads, each over ``segments`` segments."""

    heads: int = 16
    segments: int = 60
    segment: int = 20
    epsilon: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A rate and decay with the bits per byte of every held-out text."""

    rate: float
    decay: float
    bits_per_byte: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The objective: each text counts the same."""
        return math.fsum(self.bits_per_byte.values()) / len(self.bits_per_byte)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "rate": self.rate,
            "decay": self.decay,
            "mean": self.mean,
            "bits_per_byte": dict(self.bits_per_byte),
        }


def read_heads(sources: Sequence[tuple[Ids, int]], heads: int, length: int) -> list[list[int]]:
    """``heads`` texts of up to ``length`` tokens, shared out over the sources by their rows.

    Within a source they begin at equal distances and run on over its end, as the rows of a batch do.
    """
    ends = list(accumulate(rows for _, rows in sources))
    owners = [bisect_right(ends, (head + 0.5) * ends[-1] / heads) for head in range(heads)]
    texts = []
    for index, (ids, _) in enumerate(sources):
        count = owners.count(index)
        for head in range(count):
            places = head * len(ids) // count + np.arange(min(length, len(ids)))
            texts.append([int(token) for token in ids[places % len(ids)]])
    return texts


def measure(
    model: LanguageModel, sources: Sequence[tuple[Ids, int]], *, bos_id: int, statistics: Statistics
) -> Calibration:
    """The statistics of ``model``, rounded as they are stored, under a rate of zero.

    Raises ValueError when no text fills a segment.
    """
    texts = read_heads(sources, statistics.heads, statistics.segments * statistics.segment)
    rms_P, count = measure_rms(model, texts, segment=statistics.segment, reduction="mean", bos_id=bos_id)
    config = AdaptationConfig(
        kind="full",
        rule="rms",
        rate=0.0,
        segment=statistics.segment,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=count,
        epsilon=statistics.epsilon,
    )
    return Calibration(config=config, rms_P=rms_P.to(torch.bfloat16).float())


def session_losses(
    model: LanguageModel,
    calibration: Calibration,
    passages: Sequence[Passage],
    *,
    bos_id: int,
    advance: Advance = no_advance,
) -> Measure:
    """The measure for :func:`search`: bits per byte of each passage, in a session of its own."""

    def bits_per_byte(rate: float, decay: float) -> dict[str, float]:
        adapter = Adapter(model, calibration.with_rate(rate, decay), bos_id=bos_id)
        losses = {}
        for passage in passages:
            evaluation = dynamic_loss(adapter, passage, static=False)
            losses[passage.name] = evaluation.bits_per_byte(evaluation.adapted_nats or 0.0)
            advance(len(passage.ids))
        return losses

    return bits_per_byte


def search(
    measure: Measure, rates: Sequence[float] = RATES, decays: Sequence[float] = DECAYS
) -> Iterator[Trial]:
    """Try all ``rates`` with the first decay, then each other decay at the best rate and at the next one.

    Decay holds fast weights back, so it may want a higher rate. The best trial is :func:`best`.
    """
    rates = sorted(rates)
    first = []
    for rate in rates:
        first.append(Trial(rate=rate, decay=decays[0], bits_per_byte=measure(rate, decays[0])))
        yield first[-1]
    place = rates.index(best(first).rate)
    for decay in decays[1:]:
        for rate in rates[place : place + 2]:
            yield Trial(rate=rate, decay=decay, bits_per_byte=measure(rate, decay))


def most_trials(rates: Sequence[float], decays: Sequence[float]) -> int:
    """The most trials that :func:`search` makes."""
    return len(rates) + 2 * (len(decays) - 1)


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the least mean; of equals the gentlest. A mean that is no number never wins."""
    return min(trials, key=lambda trial: (not math.isfinite(trial.mean), trial.mean, trial.rate, trial.decay))
