"""Curves: what a run's metrics say, read leniently, for reports and for the search.

Every version's records can be read. A line that says nothing is counted and passed over: a report of a
damaged run is better than none.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlstm_training.config import Recipe, VocabKind


@dataclass(frozen=True, kw_only=True)
class Training:
    """The mean loss (nats a token) of the steps since the record before, their rate and speed."""

    step: int
    loss: float
    rate: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Nats a token at one evaluation: of the reported weights, the raw ones and the two averages.

    Lengths count the iterates of each average, and of the reported weights. ``None``: an empty average, or
    a record from before these were written. ``seconds`` since the run began.
    """

    step: int
    nats: float
    raw: float | None = None
    short: float | None = None
    long: float | None = None
    short_length: int | None = None
    long_length: int | None = None
    length: int | None = None
    seconds: float | None = None

    @property
    def averaged(self) -> bool:
        """Whether the reported weights are an average."""
        return self.length is not None and self.length > 1


@dataclass(frozen=True, kw_only=True)
class Reset:
    """A divergence: at ``step`` the run went back to the weights of ``to_step``."""

    step: int
    to_step: int
    rate_scale: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run's records in the order of its steps, and the numbers of the lines that cannot be read."""

    training: tuple[Training, ...] = ()
    validations: tuple[Validation, ...] = ()
    resets: tuple[Reset, ...] = ()
    damaged_lines: tuple[int, ...] = ()

    @property
    def last_step(self) -> int:
        """The newest step with a record; 0 without any."""
        return max((points[-1].step for points in (self.training, self.validations) if points), default=0)

    @property
    def best(self) -> Validation | None:
        """The evaluation with the lowest loss, the first of equals."""
        finite = [point for point in self.validations if math.isfinite(point.nats)]
        return min(finite, key=lambda point: point.nats, default=None)


def read_curves(path: Path) -> Curves:
    """The curves in a metrics file, of a running process too. Raises OSError when it cannot be read."""
    parts: dict[type, list[Any]] = {Training: [], Validation: [], Reset: []}
    damaged: list[int] = []
    text = path.read_bytes()
    # A kill, or a process that writes this very moment, leaves half a last line.
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            point = _point(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged.append(number)
            continue
        if point is not None:
            parts[type(point)].append(point)
    return Curves(
        training=tuple(parts[Training]),
        validations=tuple(parts[Validation]),
        resets=tuple(parts[Reset]),
        damaged_lines=tuple(damaged),
    )


def validation(record: Mapping[str, Any]) -> Validation | None:
    """The evaluation that a record of the metrics tells of, if it does.

    Raises KeyError, TypeError, ValueError or AttributeError when the record is damaged.
    """
    if "valid" not in record:
        return None
    bits = [math.nan if value is None else float(value) for value in record["valid"].values()]
    if not bits:
        raise ValueError("an evaluation of no text")
    nats, lengths = record.get("nats", {}), record.get("lengths", {})
    reported, seconds = nats.get("reported"), record.get("seconds")
    return Validation(
        step=int(record["step"]),
        nats=math.fsum(bits) / len(bits) * math.log(2) if reported is None else float(reported),
        raw=_finite(nats.get("raw")),
        short=_finite(nats.get("short")),
        long=_finite(nats.get("long")),
        short_length=_count(lengths.get("short")),
        long_length=_count(lengths.get("long")),
        length=_count(lengths.get("reported")),
        seconds=None if seconds is None else float(seconds),
    )


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _point(record: Mapping[str, Any]) -> Training | Validation | Reset | None:
    step = int(record["step"])
    if "reset" in record:
        told = record["reset"]
        return Reset(
            step=step,
            to_step=int(told["to_step"]),
            rate_scale=float(told["rate_scale"]),
            why=str(told["why"]),
        )
    if "loss" in record:
        numbers = {name: float(record[name]) for name in ("loss", "rate", "tokens_per_second")}
        return Training(step=step, **numbers)
    return validation(record)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is published for a kind of vocabulary, as a function of nats a token."""

    name: str
    of: Callable[[float], float]
    digits: int


_BITS_PER: Mapping[VocabKind, str] = {"bytes": "bits per byte", "characters": "bits per character"}


def measure_of(vocab: VocabKind) -> Measure:
    """Bits per byte or character; perplexity per token for words and subwords."""
    if vocab in _BITS_PER:
        return Measure(name=_BITS_PER[vocab], of=lambda nats: nats / math.log(2), digits=4)
    name = "perplexity" if vocab == "words" else "perplexity per subword"
    return Measure(name=name, of=lambda nats: math.exp(min(nats, 700.0)), digits=2)


def seconds_of(curves: Curves, recipe: Recipe) -> float | None:
    """How long a run took, evaluations included; where that was not written, from its training speed."""
    known = [(point.step, point.seconds) for point in curves.validations if point.seconds is not None]
    since, total = known[-1] if known else (0, 0.0)
    for point in curves.training:
        if point.step > since and point.tokens_per_second > 0:
            total += (point.step - since) * recipe.tokens_per_step / point.tokens_per_second
            since = point.step
    return total if curves.training or known else None
