"""Calibration: measure gradient statistics on training text, then choose the rule on held-out text.

One search serves two ends. A session's text is rarely like the training text, so what a checkpoint is
served with is chosen on several kinds of text, one session each. For a published number the choice is made
on the validation text of the same corpus. Neither ever reads a text that is reported on.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlstm_model.adaptation.config import Kind
from rlstm_model.vocab import VocabKind
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Advance, Stream, evaluator_of, no_advance, read_adapting
from rlstm_training.evaluation.measurements import FULL, Form, Measurements, Setting

# What a text may gain, at least, as a part of its bits: where it gains less, the search sees only noise.
_LEAST_GAIN = 0.01

# Vocabularies of tokens of several characters.
_LONG = ("words", "subwords", "pieces")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values to try, each list with the usual one first; the rates in any order."""

    rates: tuple[float, ...]
    decays: tuple[float, ...]
    epsilons: tuple[float, ...]
    segments: tuple[int, ...]

    @classmethod
    def usual(cls, tokens: VocabKind, kind: Kind = "full") -> "Grid":
        """For tokens of a kind (docs/mathematics.md §2.16): 5 to 20 words make a segment, 20 to 50 of others.

        Rates belong to statistics over single segments (docs/mathematics.md §8.2): at batches of 100,
        published ones are a tenth of these. Most words are rare and their statistics next to nothing, so
        that epsilon alone bounds the step that their rows take when they do occur: for words it is larger.
        Within axes a greater epsilon does better: small statistics there are mostly noise. Words, of which a
        text has fewer than bytes, bear greater rates there.
        """
        if kind == "subspace":
            full = cls.usual(tokens)
            rates: tuple[float, ...] = (3e-4, 5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 8e-3)
            if tokens in _LONG:
                rates = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
            return replace(full, rates=rates, decays=(0.0, 1e-3, 3e-3), epsilons=(1.0,))
        if kind == "output_bias":
            return replace(cls.usual(tokens), rates=(3e-3, 1e-2, 3e-2, 1e-1))
        if tokens in _LONG:
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
        """Over the texts."""
        return math.fsum(self.bits_per_byte.values()) / len(self.bits_per_byte)


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What a search has tried; ``static`` holds each text's bits per byte with the weights as loaded."""

    static: Mapping[str, float]
    tried: tuple[Trial, ...] = ()

    def trying(self, measure: "Measure", *settings: Setting) -> "Trials":
        """With these settings tried as well."""
        measured = zip(settings, measure(settings), strict=True)
        more = (Trial(setting=setting, bits_per_byte=bits) for setting, bits in measured)
        return replace(self, tried=(*self.tried, *more))

    def regret(self, bits_per_byte: Mapping[str, float]) -> float:
        """The objective: the part of what learning may gain that is missed, the mean over texts.

        0 is the best trial's on every text, 1 as much as the weights as loaded. Counted in bits, a text far
        from the training text would outweigh those near it. Where next to nothing can be gained, a hundredth
        of the text's bits stands for it. Infinite where a text's bits are no number.
        """
        missed = []
        for name, static in self.static.items():
            bits = [trial.bits_per_byte[name] for trial in self.tried]
            least = min(filter(math.isfinite, bits), default=math.inf)
            missed.append((bits_per_byte[name] - least) / max(static - least, _LEAST_GAIN * static))
        mean = math.fsum(missed) / len(missed)
        return mean if math.isfinite(mean) else math.inf

    @property
    def best(self) -> Trial:
        """The trial with the least regret; of equals the gentlest. What is no number never wins."""
        return self.best_of(self.tried)

    def best_of(self, trials: Sequence[Trial]) -> Trial:
        """The best of some of the trials, by all of them."""
        return min(trials, key=lambda trial: (self.regret(trial.bits_per_byte), trial.setting))

    def table(self) -> list[tuple[str, ...]]:
        """Headers, the weights as loaded, and every trial, as text."""
        headers = ("segment", "rate", "decay", "epsilon", *self.static, "mean", "regret")
        rows = [(("static", "", "", ""), self.static)]
        for trial in self.tried:
            chosen = trial.setting
            figures = (str(chosen.segment), f"{chosen.rate:g}", f"{chosen.decay:g}", f"{chosen.epsilon:g}")
            rows.append((figures, trial.bits_per_byte))
        return [headers, *((*figures, *self._figures(bits)) for figures, bits in rows)]

    def _figures(self, bits_per_byte: Mapping[str, float]) -> list[str]:
        """Of each text, their mean, and the part of the possible gain that is missed."""
        bits = [bits_per_byte[name] for name in self.static]
        return [f"{value:.4f}" for value in (*bits, math.fsum(bits) / len(bits), self.regret(bits_per_byte))]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "chosen": self._json(self.best),
            "static": dict(self.static),
            "trials": [self._json(trial) for trial in self.tried],
        }

    def _json(self, trial: Trial) -> dict[str, Any]:
        bits = dict(trial.bits_per_byte)
        return {
            **asdict(trial.setting),
            "regret": self.regret(bits),
            "mean": trial.mean,
            "bits_per_byte": bits,
        }


Measure = Callable[[Sequence[Setting]], Sequence[Mapping[str, float]]]
"""Bits per byte of each text under settings that differ in their rates alone."""


def session_losses(
    measurements: Measurements,
    passages: Sequence[Passage],
    *,
    form: Form = FULL,
    experts: int = 1,
    temperature: float = 1.0,
    advance: Advance = no_advance,
) -> Measure:
    """The measure for :func:`search`: bits per byte of each passage, in a session of so many experts.

    Every session begins with the weights as loaded, so no trial learns from another. The sessions of all
    passages and rates are rows of one batch.
    """

    def bits_per_byte(settings: Sequence[Setting]) -> list[dict[str, float]]:
        evaluator = evaluator_of(
            measurements.model,
            measurements.under(replace(settings[0], rate=1.0), form),
            bos_id=measurements.bos_id,
            temperature=temperature,
        )
        streams = [
            Stream([passage], evaluator.start(rate_scale=setting.rate, static=experts > 1, experts=experts))
            for setting in settings
            for passage in passages
        ]
        results = read_adapting(evaluator, streams, advance)
        bits = [result.bits_per_byte(result.adapted_nats or 0.0) for (result,) in results]
        names = [passage.name for passage in passages]
        return [
            dict(zip(names, bits[start : start + len(names)], strict=True))
            for start in range(0, len(bits), len(names))
        ]

    return bits_per_byte


def search(measure: Measure, grid: Grid, static: Mapping[str, float]) -> Iterator[Trials]:
    """Try all rates with the first of all else, then what else there is, one thing after the other.

    For each other segment length and epsilon the rates are followed from the best one as long as they get
    better. Decay holds fast weights back, so it is tried at the best rate and at the next one. What comes
    are all trials so far; ``static`` is of :class:`Trials`.
    """
    rates = sorted(grid.rates)
    first = Setting(rate=rates[0], decay=grid.decays[0], epsilon=grid.epsilons[0], segment=grid.segments[0])
    trials = Trials(static=static).trying(measure, *(replace(first, rate=rate) for rate in rates))
    yield trials
    for segment in grid.segments[1:]:
        trials = yield from _follow(trials, measure, replace(trials.best.setting, segment=segment), rates)
    for epsilon in grid.epsilons[1:]:
        trials = yield from _follow(trials, measure, replace(trials.best.setting, epsilon=epsilon), rates)
    chosen = trials.best.setting
    place = rates.index(chosen.rate)
    for decay in grid.decays[1:]:
        held_back = (replace(chosen, decay=decay, rate=rate) for rate in rates[place : place + 2])
        trials = trials.trying(measure, *held_back)
        yield trials


def _follow(
    trials: Trials, measure: Measure, start: Setting, rates: Sequence[float]
) -> Generator[Trials, None, Trials]:
    """Try the start's rate, then higher or, where they are no better, lower ones."""
    place = rates.index(start.rate)
    trials = trials.trying(measure, start)
    yield trials
    bottom = trials.tried[-1]
    for side in (rates[place + 1 :], rates[:place][::-1]):
        least = bottom
        for rate in side:
            trials = trials.trying(measure, replace(start, rate=rate))
            yield trials
            if trials.best_of((least, trials.tried[-1])) is least:
                break
            least = trials.tried[-1]
        if least is not bottom:
            break
    return trials
