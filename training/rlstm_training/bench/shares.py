"""Yardsticks for learning: the gain of full fast weights, and the best of single rates in hindsight."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlstm_model.adaptation.adapted_state import EXPERT_RATES
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_training.bench.adaptation import Bits, Method, Outcome
from rlstm_training.corpora.texts import Passage

HINDSIGHT: Final = (1 / 3, 1.0, 3.0)
"""What the rate of full fast weights is multiplied with: the best for each text counts."""

SINGLES: Final = tuple(sorted(rate * factor for rate in EXPERT_RATES[4] for factor in (0.1, 1.0, 10.0)))
"""The single rates that a mixture of four is held against: its own, and 1/10 and 10 times those."""


class ReferenceMismatch(Exception):
    """A file with no figures of full fast weights, or with those of another model, rule or text."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What was read by which model: figures of anything else cannot be compared.

    model, rule  fingerprints; ``rule`` is that of full fast weights, None where there is none
    digests      of the tokens, by text
    """

    model: str
    rule: str | None
    digests: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {"model": self.model, "rule": self.rule, "digests": dict(self.digests)}


def digest(passage: Passage) -> str:
    """sha256 of a text's tokens."""
    return hashlib.sha256(json.dumps(passage.ids).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What texts cost by full fast weights of one expert, at each multiple of their calibrated rate."""

    rule: AdaptationConfig
    bytes: int
    bits: Mapping[float, Bits]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Reference":
        """From outcomes (at least one) that differ in their rates alone."""
        first = outcomes[0]
        bits = {outcome.method.rate_scale: outcome.bits for outcome in outcomes}
        return cls(rule=first.method.rule, bytes=first.bytes, bits=bits)

    def best(self, text: str) -> float:
        """The least that the text cost at any rate; NaN where it cost no number at all."""
        return least(bits[text] for bits in self.bits.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`load_reference` reads back."""
        rates = [{"rate_scale": scale, "bits_per_byte": finite(bits)} for scale, bits in self.bits.items()]
        return {"rule": self.rule.to_json(), "bytes": self.bytes, "rates": rates}


def load_reference(path: Path, texts: Texts) -> Reference:
    """The reference in an earlier result. Raises ReferenceMismatch unless model, rule and texts are alike."""
    try:
        data = json.loads(path.read_bytes())
        known, full = data["texts"], data["full"]
        if full is None:
            raise ReferenceMismatch(f"{path}: holds no figures of full fast weights")
        _check(path, known, texts)
        bits = {
            float(each["rate_scale"]): {
                name: math.nan if value is None else float(value)
                for name, value in each["bits_per_byte"].items()
            }
            for each in full["rates"]
        }
        rule = AdaptationConfig.from_json(full["rule"])
        reference = Reference(rule=rule, bytes=int(full["bytes"]), bits=bits)
    except OSError as error:
        raise ReferenceMismatch(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ReferenceMismatch(f"{path}: is no result of rlstm bench adapt --json ({error})") from error
    if any(texts.digests.keys() - rate.keys() for rate in bits.values()) or not bits:
        raise ReferenceMismatch(f"{path}: lacks figures of some of the texts")
    return reference


def _check(path: Path, known: Mapping[str, Any], texts: Texts) -> None:
    if known["model"] != texts.model:
        raise ReferenceMismatch(f"{path}: is of another model")
    if texts.rule is not None and known["rule"] != texts.rule:
        raise ReferenceMismatch(f"{path}: is of another calibration of full fast weights")
    for name, own in texts.digests.items():
        if known["digests"].get(name) != own:
            raise ReferenceMismatch(f"{path}: has not read the same {name}")


def share(static: float, full: float, own: float) -> float | None:
    """Which part of what full fast weights save is saved; None where they save nothing, or one is no number.

    Costs may be in any unit: a text's bits a byte are its bits over its length, which is the same for all.
    """
    if not all(map(math.isfinite, (static, full, own))) or static <= full:
        return None
    return (static - own) / (static - full)


def shares(static: Bits, reference: Reference, own: Bits) -> dict[str, float | None]:
    """By text, the share of the reference's gain."""
    return {name: share(static[name], reference.best(name), own[name]) for name in static}


def mean(values: Sequence[float | None]) -> float | None:
    """Their mean; None where there are none, or one is missing."""
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there and len(there) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A mixture of four on one text, beside the single rates; a multiple of 0 is the static model."""

    text: str
    mixture: float
    singles: Mapping[float, float]

    @property
    def best(self) -> float:
        """The least that a single rate cost."""
        return least(self.singles.values())

    @property
    def best_scale(self) -> float | None:
        """The multiple of the calibrated rate that cost least; None where none cost a number."""
        return next((scale for scale, bits in self.singles.items() if bits == self.best), None)

    @property
    def excess(self) -> float:
        """How much more than the best single rate it cost, as a part; below 0 it is better."""
        return self.mixture / self.best - 1

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        singles = [{"rate_scale": s, **finite({"bits_per_byte": b})} for s, b in self.singles.items()]
        figures = {"mixture": self.mixture, "best": self.best, "excess": self.excess}
        return {"text": self.text, "best_scale": self.best_scale, **finite(figures), "singles": singles}


def methods_of_reference(full: AdaptationConfig) -> list[Method]:
    """What has to be read for a :class:`Reference`."""
    return [Method(rule=full, rate_scale=scale) for scale in HINDSIGHT]


def methods_of_mixture(rule: AdaptationConfig) -> list[Method]:
    """What has to be read to judge a mixture of four of a rule."""
    return [Method(rule=rule, experts=4), *(Method(rule=rule, rate_scale=scale) for scale in SINGLES)]


def mixed(rule: AdaptationConfig, static: Bits, outcomes: Mapping[Method, Outcome]) -> list[Mixed]:
    """By text, the mixture of four of a rule, from outcomes of all that :func:`methods_of_mixture` names."""
    four, *singles = methods_of_mixture(rule)
    return [
        Mixed(
            text=text,
            mixture=outcomes[four].bits[text],
            singles={0.0: bits} | {single.rate_scale: outcomes[single].bits[text] for single in singles},
        )
        for text, bits in static.items()
    ]


def least(values: Iterable[float]) -> float:
    """The least of those values that are numbers; NaN where none is."""
    return min((value for value in values if math.isfinite(value)), default=math.nan)


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The same with None for what is no finite number, which JSON has no word for."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
