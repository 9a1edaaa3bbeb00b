"""What learning saves, by each rule of a checkpoint, beside full fast weights: `python -m benchmarks.adapt`.

Every text is a session of its own, and all sessions of a method are rows of the same batches. Nothing is
chosen here: rules come as they were calibrated. Full fast weights of one expert are read at 1/3, 1 and 3
times their rate; of these the best for each text counts, in hindsight.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.cases import backend_on, evaluator_of
from benchmarks.models import Subject
from rlstm_client.cli import inputs
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.evaluator import DynamicEvaluator, reader_of
from rlstm_model.adaptation.state import EXPERT_RATES, NonFiniteState
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_training.commands import console
from rlstm_training.commands.choosing import rule_named
from rlstm_training.commands.console import progress_bar, show_json, show_table, warn
from rlstm_training.commands.evaluate import Texts
from rlstm_training.commands.given import Compute, compute
from rlstm_training.corpora.reading import stream_names
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Evaluation, Stream, read_adapting

CORPUS, PREFIX, SEGMENTS_OF_CORPUS = "wikitext-2", 5_000, 10
HINDSIGHT = (1 / 3, 1.0, 3.0)
SINGLES = tuple(sorted(rate * factor for rate in EXPERT_RATES[4] for factor in (0.1, 1.0, 10.0)))
"""The single rates that a mixture of four is held against: its own, and 1/10 and 10 times those."""

Bits = Mapping[str, float]
"""Bits per byte by text; NaN where a session could compute nothing."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a session reads: its rule, how many experts it has, and what the rule's rate is multiplied with."""

    rule: AdaptationConfig
    experts: int = 1
    rate_scale: float = 1.0

    @property
    def learning(self) -> int:
        """Experts that have fast weights."""
        return len(EXPERT_RATES[self.experts])

    def __str__(self) -> str:
        return f"{name_of(self.rule)}, {self.experts} expert{'s' if self.experts > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the texts cost by one method; ``bytes`` are of one session's fast weights, of all experts."""

    method: Method
    bytes: int
    bits: Bits
    guards: int


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Texts, each with a name of its own, and the checkpoint by whose rules they are read."""

    subject: Subject
    passages: Sequence[Passage]
    device: torch.device

    def frozen(self) -> Bits:
        """With the weights as loaded."""
        reader = reader_of(backend_on(self.device, self.subject), self.subject.bos_id, logprobs_only=True)
        found = []
        with self._progress("frozen", 1) as advance:
            for passage in self.passages:
                scores, _ = reader.score(reader.cursor, passage.ids)
                found.append(Evaluation.of(passage, adapted_nats=-scores.total))
                advance(len(passage.ids))
        return _bits(found)

    def learning(self, methods: Iterable[Method]) -> dict[Method, Outcome]:
        """By methods of one rule."""
        wanted, outcomes = list(dict.fromkeys(methods)), {}
        if not wanted:
            return {}
        rule = self.subject.calibrated.statistics.calibration(wanted[0].rule)
        evaluator = evaluator_of(backend_on(self.device, self.subject, rule), self.subject, rule)
        with self._progress(name_of(rule.config), len(wanted)) as advance:
            for method in wanted:
                k = method.experts
                start = evaluator.start(rate_scale=method.rate_scale, experts=k, static=k > 1)
                streams = [Stream([passage], start) for passage in self.passages]
                read = read_each(evaluator, streams, advance)
                outcomes[method] = Outcome(
                    method=method,
                    bytes=method.learning
                    * rule.config.num_fast_weights
                    * np.dtype(rule.space.dtype).itemsize,
                    bits=_bits(read),
                    guards=sum(each.guards for each in read),
                )
        return outcomes

    def _progress(self, label: str, readings: int) -> Any:
        return progress_bar(label, readings * sum(len(passage.ids) for passage in self.passages))


def read_each(
    evaluator: DynamicEvaluator,
    streams: Sequence[Stream],
    advance: Callable[[int], None],
) -> list[Evaluation]:
    """All together; a stream whose state cannot be used costs NaN, and changes no other."""
    try:
        return [part for parts in read_adapting(evaluator, streams, advance) for part in parts]
    except NonFiniteState:
        if len(streams) > 1:
            return [result for each in streams for result in read_each(evaluator, [each], advance)]
        return [Evaluation.of(streams[0].passages[0], adapted_nats=math.nan)]


def _bits(results: Sequence[Evaluation]) -> Bits:
    return {each.text: each.bits_per_byte(each.adapted_nats or math.nan) for each in results}


@dataclass(frozen=True, kw_only=True)
class Full:
    """What texts cost by full fast weights of one expert, at each multiple of their calibrated rate."""

    rule: AdaptationConfig
    bytes: int
    bits: Mapping[float, Bits]

    def share(self, frozen: Bits, own: Bits) -> dict[str, float | None]:
        """By text, which part of what full fast weights save is saved."""
        best = {text: least(bits[text] for bits in self.bits.values()) for text in frozen}
        return {text: share(frozen[text], best[text], own[text]) for text in frozen}

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`load_full` reads back."""
        rates = [{"rate_scale": scale, "bits_per_byte": finite(bits)} for scale, bits in self.bits.items()]
        return {"rule": self.rule.to_json(), "bytes": self.bytes, "rates": rates}


def load_full(path: Path, texts: Mapping[str, Any]) -> Full:
    """The figures of full fast weights in an earlier result; refused unless it has read these ``texts``."""
    try:
        data = json.loads(path.read_bytes())
        known, full = data["texts"], data["full"]
        same = known["model"] == texts["model"] and texts["rule"] in (None, known["rule"])
        if not same or any(known["digests"][name] != own for name, own in texts["digests"].items()):
            raise ValueError("is of another model, calibration or text")
        bits = {
            each["rate_scale"]: {
                name: math.nan if each["bits_per_byte"][name] is None else each["bits_per_byte"][name]
                for name in texts["digests"]
            }
            for each in full["rates"]
        }
        return Full(rule=AdaptationConfig.from_json(full["rule"]), bytes=full["bytes"], bits=bits)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--full-from") from error


def share(frozen: float, full: float, own: float) -> float | None:
    """The part of full's saving that is saved; None where full saves nothing, or one is no number."""
    if not all(map(math.isfinite, (frozen, full, own))) or frozen <= full:
        return None
    return (frozen - own) / (frozen - full)


def mean(values: Iterable[float | None]) -> float | None:
    """Their mean; None where there are none, or one is missing."""
    there = list(values)
    known = [value for value in there if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(there) else None


def least(values: Iterable[float]) -> float:
    """The least of those values that are numbers; NaN where none is."""
    return min(filter(math.isfinite, values), default=math.nan)


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The same with None for what is no finite number, which JSON has no word for."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def mixture_methods(rule: AdaptationConfig) -> list[Method]:
    """What has to be read to judge a mixture of four of a rule."""
    return [Method(rule=rule, experts=4), *(Method(rule=rule, rate_scale=scale) for scale in SINGLES)]


def mixed(rule: AdaptationConfig, frozen: Bits, outcomes: Mapping[Method, Outcome]) -> list[dict[str, Any]]:
    """By text, the mixture of four of a rule beside the single rates; a rate of 0 is the frozen model.

    ``excess``: how much more than the best single rate it cost, as a part; below 0 it is better.
    """
    four, *singles = mixture_methods(rule)
    rows = []
    for text, bits in frozen.items():
        costs = {0.0: bits} | {each.rate_scale: outcomes[each].bits[text] for each in singles}
        best, mixture = least(costs.values()), outcomes[four].bits[text]
        figures = finite({"mixture": mixture, "best": best, "excess": mixture / best - 1})
        best_scale = next((scale for scale, cost in costs.items() if cost == best), None)
        rates = [{"rate_scale": scale, **finite({"bits_per_byte": cost})} for scale, cost in costs.items()]
        rows.append({"text": text, "best_scale": best_scale, **figures, "singles": rates})
    return rows


def name_of(rule: AdaptationConfig) -> str:
    """A rule, for people."""
    return rule.kind if rule.kind == "full" else f"{rule.kind} of {rule.num_fast_weights:,}"


@dataclass(frozen=True, kw_only=True)
class Results:
    """All figures of one run; ``prefix`` are the bytes read of each segment, None for all."""

    model: str
    prefix: int | None
    texts: Mapping[str, Any]
    streams: Sequence[str]
    frozen: Bits
    full: Full | None
    outcomes: Sequence[Outcome]
    mixtures: Mapping[AdaptationConfig, Sequence[dict[str, Any]]]

    def shares(self, outcome: Outcome) -> dict[str, float | None]:
        """By text, and the means over streams and over all; None where there is nothing to take shares of."""
        none: dict[str, float | None] = dict.fromkeys(self.frozen)
        own = none if self.full is None else self.full.share(self.frozen, outcome.bits)
        return {**own, "streams": mean(own[name] for name in self.streams), "all": mean(own.values())}

    def better(self, mixtures: Sequence[dict[str, Any]]) -> int:
        """How many streams cost less by the mixture than by any single rate."""
        return sum((each["excess"] or 0.0) < 0 for each in mixtures if each["text"] in self.streams)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "model": self.model,
            "prefix": self.prefix,
            "texts": self.texts,
            "static": finite(self.frozen),
            "full": None if self.full is None else self.full.to_json(),
            "rows": [
                {
                    "rule": outcome.method.rule.to_json(),
                    "experts": outcome.method.experts,
                    "bytes": outcome.bytes,
                    "bits_per_byte": finite(outcome.bits),
                    "guards": outcome.guards,
                    "share": self.shares(outcome),
                }
                for outcome in self.outcomes
            ],
            "mixtures": [
                {
                    "rule": rule.to_json(),
                    "better_streams": self.better(texts),
                    "texts": list(texts),
                }
                for rule, texts in self.mixtures.items()
            ],
        }

    def show(self) -> None:
        """Tables on standard output."""
        rows = [("frozen", *map(_figure, self.frozen.values()))]
        if self.full is not None:
            for scale, bits in self.full.bits.items():
                rows.append((f"full, rate x {scale:.3g}", *(_figure(bits[name]) for name in self.frozen)))
        rows += [(str(each.method), *map(_figure, each.bits.values())) for each in self.outcomes]
        show_table(("bits per byte", *self.frozen), rows)
        if self.full is not None and self.outcomes:
            shares = [
                (
                    str(each.method),
                    f"{each.bytes:,}",
                    f"1/{self.full.bytes / each.bytes:.1f}",
                    *("" if part is None else f"{100 * part:.1f} %" for part in self.shares(each).values()),
                )
                for each in self.outcomes
            ]
            show_table(("share of full's gain", "bytes", "of full", *self.frozen, "streams", "all"), shares)
        for rule, mixtures in self.mixtures.items():
            self._show_mixtures(rule, mixtures)
        for each in self.outcomes:
            if each.guards:
                click.echo(f"{each.method}: {each.guards} steps skipped, cut back or restarted")

    def _show_mixtures(self, rule: AdaptationConfig, mixtures: Sequence[dict[str, Any]]) -> None:
        figures = {"mixture of 4": "mixture", "best single": "best", "its rate x": "best_scale"}
        rows = [
            (each["text"], *(_figure(each[name]) for name in (*figures.values(), "excess")))
            for each in mixtures
        ]
        show_table((name_of(rule), *figures, "excess"), rows)
        better, count = self.better(mixtures), len(self.streams)
        click.echo(f"better than the best single rate in hindsight on {better} of {count} streams")


def _figure(bits: float | None) -> str:
    return "not finite" if bits is None or not math.isfinite(bits) else f"{bits:.4f}"


def passages_chosen(
    checkpoint: Checkpoint, streams: Sequence[str], corpora: Sequence[str], prefix: int | None
) -> list[Passage]:
    """One passage a text, with the text's name: a stream's segments are one."""
    if not streams and not corpora:
        streams, corpora = stream_names(), (CORPUS,)
    vocab, of_corpus = checkpoint.vocab, None if prefix is None else SEGMENTS_OF_CORPUS * prefix
    streams, corpora = list(dict.fromkeys(streams)), list(dict.fromkeys(corpora))
    given = Texts(files=(), corpus=(), stream=streams, prefix=prefix).passages(vocab) if streams else []
    if corpora:
        given += Texts(files=(), corpus=corpora, stream=(), prefix=of_corpus).passages(vocab)
    return [
        Passage(name=name, ids=[token for p in parts for token in p.ids], bytes=sum(p.bytes for p in parts))
        for name, parts in given
    ]


def texts_read(fingerprint: str, subject: Subject, passages: Sequence[Passage]) -> dict[str, Any]:
    """What was read by which model and rule of full fast weights: nothing else can be compared."""
    full = _full(subject)
    rule = None if full is None else subject.calibrated.statistics.calibration(full).fingerprint
    digests = {each.name: hashlib.sha256(json.dumps(each.ids).encode()).hexdigest() for each in passages}
    return {"model": fingerprint, "rule": rule, "digests": digests}


def _full(subject: Subject) -> AdaptationConfig | None:
    return next((choice for choice in subject.calibrated.choices if choice.kind == "full"), None)


def _read(
    reader: Reader,
    rules: Sequence[AdaptationConfig],
    counts: Sequence[int],
    mixture: bool,
    known: Full | None,
) -> tuple[dict[Method, Outcome], Full | None]:
    """All methods of all rules, and full fast weights unless they are ``known``."""
    full = None if known else _full(reader.subject)
    outcomes: dict[Method, Outcome] = {}
    hindsight = [Method(rule=full, rate_scale=scale) for scale in HINDSIGHT] if full else []
    for rule in dict.fromkeys((*rules, *(method.rule for method in hindsight))):
        wanted = [Method(rule=rule, experts=count) for count in counts if rule in rules]
        wanted += mixture_methods(rule) if mixture and rule in rules else []
        outcomes |= reader.learning([*wanted, *(method for method in hindsight if method.rule == rule)])
    if hindsight:
        read = [outcomes[method] for method in hindsight]
        bits = {each.method.rate_scale: each.bits for each in read}
        known = Full(rule=read[0].method.rule, bytes=read[0].bytes, bits=bits)
    if known is None:
        warn("the checkpoint has no rule for full fast weights: there is nothing to take shares of")
    return outcomes, known


@console.command()
@console.model(default="bytes-small")
@console.streams
@console.corpora
@click.option(
    "--prefix", type=click.IntRange(1), help=f"Bytes of each segment [{PREFIX}]; of a corpus 10 times."
)
@click.option("--whole", is_flag=True, help="Read all bytes.")
@click.option("--rule", multiple=True, metavar="KIND[:SIZE]", help="A rule (all but full).")
@click.option(
    "--experts", type=click.Choice(EXPERT_RATES), multiple=True, help="How many experts (1, 2 and 4)."
)
@click.option("--mixture", is_flag=True, help="Mixtures of four beside single rates.")
@click.option("--full-from", type=inputs.FILE, help="Full's figures, from an earlier --json.")
@compute
@inputs.as_json
def adapt(
    model: str,
    stream: Sequence[str],
    corpus: Sequence[str],
    prefix: int | None,
    whole: bool,
    rule: Sequence[str],
    experts: Sequence[int],
    mixture: bool,
    full_from: Path | None,
    compute: Compute,
    as_json: bool,
) -> None:
    """Say what learning saves: bits per byte, bytes a session, and the share of what full fast weights save.

    Each stream is one session over its segments; each corpus is its test text. Without either, all streams
    and wikitext-2 are read.
    """
    if whole and prefix is not None:
        raise click.BadParameter("--whole reads all bytes", param_hint="--prefix")
    place = compute.prepare()
    checkpoint, subject = load(model), Subject.load(model)
    usual = [choice for choice in subject.calibrated.choices if choice.kind != "full"]
    rules = list(dict.fromkeys(rule_named(subject.calibrated, name) for name in rule or ())) or usual
    counts = list(dict.fromkeys(experts or EXPERT_RATES))
    shown = None if whole else prefix or PREFIX
    passages = passages_chosen(checkpoint, stream or (), corpus or (), shown)
    texts = texts_read(checkpoint.fingerprint, subject, passages)
    known = None if full_from is None else load_full(full_from, texts)
    reader = Reader(subject=subject, passages=passages, device=place)
    frozen = reader.frozen()
    outcomes, full = _read(reader, rules, counts, mixture, known)
    results = Results(
        model=checkpoint.name,
        prefix=shown,
        texts=texts,
        streams=[passage.name for passage in passages if passage.name in stream_names()],
        frozen=frozen,
        full=full,
        outcomes=[outcomes[Method(rule=each, experts=count)] for each in rules for count in counts],
        mixtures={each: mixed(each, frozen, outcomes) for each in rules if mixture},
    )
    if as_json:
        show_json(results.to_json())
    else:
        results.show()


if __name__ == "__main__":
    adapt()
