"""Calibration: measure gradient statistics on training text, then choose the rule on held-out text.

One search serves two ends. A session's text is rarely like the training text, so what a checkpoint is
served with is chosen on several kinds of text, one session each. For a published number the choice is made
on the validation text of the same corpus. Neither ever reads a text that is reported on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.config import Kind
from rlstm_model.vocab import VocabKind
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, Stream, no_advance, read_together
from rlstm_training.evaluation.measurements import FULL, Form, Measurements, Setting


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values to try, each list with the usual one first; the rates in any order."""

    rates: tuple[float, ...]
    decays: tuple[float, ...]
    epsilons: tuple[float, ...]
    segments: tuple[int, ...]

    @classmethod
    def usual(cls, tokens: VocabKind, kind: Kind = "full") -> "Grid":
        """For tokens of a kind (mathematics: §2.16): of words 5 to 20 make a segment, of characters 20 to 50.

        Rates belong to statistics over single segments (mathematics: §8.2): at batches of 100, published
        ones are a tenth of these. Most words are rare and their statistics next to nothing, so that epsilon
        alone bounds the step that their rows take when they do occur: for words it is far larger.
        Within axes a greater epsilon does better: small statistics there are mostly noise.
        """
        if kind in ("subspace", "sparse"):
            rates, full = (5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3), cls.usual(tokens)
            return replace(full, rates=rates, decays=(0.0, 1e-3), epsilons=(1.0, 0.3))
        if kind == "output_bias":
            return replace(cls.usual(tokens), rates=(3e-3, 1e-2, 3e-2, 1e-1))
        if tokens in ("words", "subwords"):
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


Measure = Callable[[Sequence[Setting]], Sequence[Mapping[str, float]]]
"""Bits per byte of each text under settings that differ in their rates alone."""


def session_losses(
    measurements: Measurements,
    passages: Sequence[Passage],
    *,
    form: Form = FULL,
    temperature: float = 1.0,
    advance: Advance = no_advance,
) -> Measure:
    """The measure for :func:`search`: bits per byte of each passage, in a session of its own.

    Every session begins with the weights as loaded, so no trial learns from another. The sessions of all
    passages and rates are rows of one batch.
    """

    def bits_per_byte(settings: Sequence[Setting]) -> list[dict[str, float]]:
        adapter = Adapter(
            measurements.model,
            measurements.under(replace(settings[0], rate=1.0), form),
            bos_id=measurements.bos_id,
            temperature=temperature,
            logprobs_only=True,
        )
        streams = [
            Stream(passage, adapter.start(rate_scale=setting.rate, static=False))
            for setting in settings
            for passage in passages
        ]
        results = read_together(adapter, streams, advance)
        bits = [result.bits_per_byte(result.adapted_nats or 0.0) for result in results]
        names = [passage.name for passage in passages]
        return [
            dict(zip(names, bits[start : start + len(names)], strict=True))
            for start in range(0, len(bits), len(names))
        ]

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

    def attempt(*settings: Setting) -> list[Trial]:
        measured = zip(settings, measure(settings), strict=True)
        trials.extend(Trial(setting=setting, bits_per_byte=bits) for setting, bits in measured)
        return trials[-len(settings) :]

    yield from attempt(*(replace(first, rate=rate) for rate in rates))
    for segment in grid.segments[1:]:
        yield from _follow(attempt, replace(best(trials).setting, segment=segment), rates)
    for epsilon in grid.epsilons[1:]:
        yield from _follow(attempt, replace(best(trials).setting, epsilon=epsilon), rates)
    chosen = best(trials).setting
    place = rates.index(chosen.rate)
    for decay in grid.decays[1:]:
        yield from attempt(*(replace(chosen, decay=decay, rate=rate) for rate in rates[place : place + 2]))


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the least mean; of equals the gentlest. A mean that is no number never wins."""
    return min(trials, key=lambda trial: (not math.isfinite(trial.mean), trial.mean, trial.setting))


def _follow(
    attempt: Callable[[Setting], Sequence[Trial]], start: Setting, rates: Sequence[float]
) -> Iterator[Trial]:
    """Trials at the start's rate, then at higher or, where they are no better, lower ones."""
    place = rates.index(start.rate)
    (bottom,) = attempt(start)
    yield bottom
    for side in (rates[place + 1 :], rates[:place][::-1]):
        least = bottom
        for rate in side:
            (trial,) = attempt(replace(start, rate=rate))
            yield trial
            if best((least, trial)) is least:
                break
            least = trial
        if least is not bottom:
            return
