"""Calibration: measure gradient statistics on training text, then choose the rule on held-out text.

One search serves two ends. A session's text is rarely like the training text, so what a checkpoint is
served with is chosen on several kinds of text, one session each. For a published number the choice is made
on the validation text of the same corpus. Neither ever reads a text that is reported on.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration, measure_rms
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import VocabKind
from rlstm_training.batches import Ids
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, dynamic_loss, no_advance


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How gradient statistics are taken: ``heads`` read heads, each over ``segments`` segments."""

    heads: int = 16
    segments: int = 60


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """One point of the search: see :class:`rlstm_model.adaptation.config.AdaptationConfig`."""

    rate: float
    decay: float = 0.0
    epsilon: float = 0.1
    segment: int


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values to try, each list with the usual one first; the rates in any order."""

    rates: tuple[float, ...]
    decays: tuple[float, ...]
    epsilons: tuple[float, ...]
    segments: tuple[int, ...]

    @classmethod
    def usual(cls, kind: VocabKind) -> "Grid":
        """For tokens of a kind (mathematics: §2.16): of words 5 to 20 make a segment, of characters 20 to 50.

        Rates belong to statistics over single segments (mathematics: §8.2): at batches of 100, published
        ones are a tenth of these. Most words are rare and their statistics next to nothing, so that epsilon
        alone bounds the step that their rows take when they do occur: for words it is far larger.
        """
        if kind in ("words", "subwords"):
            return cls(
                rates=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3),
                decays=(0.0, 1e-3),
                epsilons=(3.0, 1.0, 10.0),
                segments=(10, 5, 20),
            )
        return cls(
            rates=(1e-4, 2e-4, 3e-4, 6e-4, 1e-3, 2e-3),
            decays=(0.0, 2e-3),
            epsilons=(0.1, 1.0),
            segments=(20, 50),
        )

    @property
    def most_trials(self) -> int:
        """The most trials that :func:`search` makes."""
        others = len(self.segments) + len(self.epsilons) - 2
        return len(self.rates) * (1 + others) + 2 * (len(self.decays) - 1)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A setting with the bits per byte of every held-out text."""

    setting: Setting
    bits_per_byte: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The objective: each text counts the same."""
        return math.fsum(self.bits_per_byte.values()) / len(self.bits_per_byte)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {**asdict(self.setting), "mean": self.mean, "bits_per_byte": dict(self.bits_per_byte)}


Measure = Callable[[Setting], Mapping[str, float]]


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
    model: LanguageModel,
    sources: Sequence[tuple[Ids, int]],
    *,
    bos_id: int,
    segment: int,
    statistics: Statistics,
) -> Calibration:
    """The statistics of ``model``, rounded as they are stored, under a rate of zero.

    They are those of the loss alone, without dropout, L2 or clipping, at a temperature of 1.
    Raises ValueError when no text fills a segment.
    """
    texts = read_heads(sources, statistics.heads, statistics.segments * segment)
    rms_P, count = measure_rms(model, texts, segment=segment, reduction="mean", bos_id=bos_id)
    config = AdaptationConfig(
        kind="full",
        rule="rms",
        rate=0.0,
        segment=segment,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=count,
    )
    return Calibration(config=config, rms_P=rms_P.to(torch.bfloat16).float())


class Calibrations:
    """Calibrations of one model: statistics belong to a segment length and are measured once for each."""

    def __init__(
        self,
        model: LanguageModel,
        sources: Sequence[tuple[Ids, int]],
        *,
        bos_id: int,
        statistics: Statistics,
    ) -> None:
        self.model = model
        self.bos_id = bos_id
        self._sources = sources
        self._statistics = statistics
        self._measured: dict[int, Calibration] = {}

    def under(self, setting: Setting) -> Calibration:
        """The calibration for a setting. Raises ValueError when no text fills its segment."""
        if setting.segment not in self._measured:
            self._measured[setting.segment] = measure(
                self.model,
                self._sources,
                bos_id=self.bos_id,
                segment=setting.segment,
                statistics=self._statistics,
            )
        measured = self._measured[setting.segment]
        return replace(measured, config=replace(measured.config, **asdict(setting)))


def session_losses(
    calibrations: Calibrations,
    passages: Sequence[Passage],
    *,
    temperature: float = 1.0,
    advance: Advance = no_advance,
) -> Measure:
    """The measure for :func:`search`: bits per byte of each passage, in a session of its own.

    Every session begins with the weights as loaded, so no trial learns from another.
    """

    def bits_per_byte(setting: Setting) -> dict[str, float]:
        adapter = Adapter(
            calibrations.model,
            calibrations.under(setting),
            bos_id=calibrations.bos_id,
            temperature=temperature,
            logprobs_only=True,
        )
        losses = {}
        for passage in passages:
            evaluation = dynamic_loss(adapter, passage, static=False)
            losses[passage.name] = evaluation.bits_per_byte(evaluation.adapted_nats or 0.0)
            advance(len(passage.ids))
        return losses

    return bits_per_byte


def search(measure: Measure, grid: Grid) -> Iterator[Trial]:
    """Try all rates with the first of all else, then what else there is, one thing after the other.

    For each other segment length and epsilon the rates are followed from the best one as long as they get
    better. Decay holds fast weights back, so it is tried at the best rate and at the next one. The best
    trial is :func:`best`.
    """
    rates = sorted(grid.rates)
    first = Setting(rate=rates[0], decay=grid.decays[0], epsilon=grid.epsilons[0], segment=grid.segments[0])
    trials: list[Trial] = []

    def attempt(setting: Setting) -> Trial:
        trials.append(Trial(setting=setting, bits_per_byte=measure(setting)))
        return trials[-1]

    for rate in rates:
        yield attempt(replace(first, rate=rate))
    for segment in grid.segments[1:]:
        yield from _follow(attempt, replace(best(trials).setting, segment=segment), rates)
    for epsilon in grid.epsilons[1:]:
        yield from _follow(attempt, replace(best(trials).setting, epsilon=epsilon), rates)
    chosen = best(trials).setting
    place = rates.index(chosen.rate)
    for decay in grid.decays[1:]:
        for rate in rates[place : place + 2]:
            yield attempt(replace(chosen, decay=decay, rate=rate))


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the least mean; of equals the gentlest. A mean that is no number never wins."""
    return min(trials, key=lambda trial: (not math.isfinite(trial.mean), trial.mean, trial.setting))


def _follow(attempt: Callable[[Setting], Trial], start: Setting, rates: Sequence[float]) -> Iterator[Trial]:
    """Trials at the start's rate, then at higher or, where they are no better, lower ones."""
    place = rates.index(start.rate)
    bottom = attempt(start)
    yield bottom
    for side in (rates[place + 1 :], rates[:place][::-1]):
        least = bottom
        for rate in side:
            trial = attempt(replace(start, rate=rate))
            yield trial
            if best((least, trial)) is least:
                break
            least = trial
        if least is not bottom:
            return
