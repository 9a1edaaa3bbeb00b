"""``rlstm evaluate``: score texts exactly, as published numbers are; choices are made on held-out text."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import torch

from rlstm_client.cli import inputs
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.state import EXPERT_RATES
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.local import LocalModel
from rlstm_model.network.dropout import DropoutRates
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import Vocab, VocabKind
from rlstm_training.cards import evaluation_section, rewrite_card, with_section
from rlstm_training.commands import console, given
from rlstm_training.commands.choosing import (
    EXPERTS,
    Choice,
    Tried,
    choose_rule,
    keep_choices,
    measurements_of,
    rule_named,
)
from rlstm_training.commands.console import progress_bar, show_json, show_table
from rlstm_training.config import Source
from rlstm_training.corpora import Split, as_text
from rlstm_training.corpora.reading import load_corpus, load_stream
from rlstm_training.corpora.texts import Passage, excerpt, passage, validation_passages
from rlstm_training.evaluation.evaluation import PUBLISHED, Evaluation, total
from rlstm_training.evaluation.measurements import Statistics
from rlstm_training.evaluation.monte_carlo import MonteCarlo, scaled
from rlstm_training.evaluation.procedure import Procedure, record, save_results
from rlstm_training.evaluation.search import Grid
from rlstm_training.evaluation.temperature import TEMPERATURES, search_temperature, static_losses

TEMPERATURE_TOKENS = 50_000

Temperatures = Sequence[tuple[float, float]]
Results = Sequence[tuple[str, list[Evaluation]]]


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is read."""

    files: Sequence[str] = inputs.argument("Text files; - is standard input.")
    corpus: Sequence[str] = inputs.option("A corpus by name, or a folder.")
    split: Sequence[Split] = inputs.option("Of the corpora.", default=("test",))
    stream: Sequence[str] = inputs.option("A stream, read in one session.")
    prefix: int | None = inputs.option(
        "Only the first bytes of each text or segment.", type=click.IntRange(1)
    )
    encoding: str | None = inputs.option("Of the files; else a mark tells, or it is UTF-8.")

    def passages(self, vocab: Vocab) -> list[tuple[str, list[Passage]]]:
        """Every text by its name, as passages. Wrong usage without any; raises CorpusError, OSError."""
        named = [*self.files, *self.corpus, *self.stream]
        if not named:
            raise click.BadParameter("name files, a --corpus or a --stream", param_hint="FILES")
        if len({*named}) < len(named):
            raise click.BadParameter("name each text once", param_hint="FILES")
        raws = [(path, self._file(path)) for path in self.files]
        raws += [
            (f"{name} {split}", load_corpus(name, split)) for name in self.corpus for split in self.split
        ]
        texts = [(name, [self._whole(vocab, raw, name)]) for name, raw in raws]
        for name in self.stream:
            segments = load_stream(name, prefix=self.prefix)
            texts.append((name, [excerpt(vocab, raw, label) for label, raw in segments]))
        return texts

    def _whole(self, vocab: Vocab, raw: bytes, name: str) -> Passage:
        return passage(vocab, raw, name) if self.prefix is None else excerpt(vocab, raw[: self.prefix], name)

    def _file(self, path: str) -> bytes:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return as_text(raw, path, self.encoding)


@dataclass(frozen=True, kw_only=True)
class Asked(Tried):
    """How texts are read: the temperature, how weights learn, what is dropped; and what is kept of it."""

    temperature: str = inputs.option(
        "Multiplies the logits; 'search' chooses it on validation text.", default="1"
    )
    dynamic: bool = inputs.option("Learn while reading, as a session.", default=False)
    rate_scale: float = inputs.option(
        "Multiplies the calibrated rate.", default=1.0, type=click.FloatRange(0)
    )
    search: bool = inputs.option("Learn as is best on validation text, not as calibrated.", default=False)
    search_tokens: int = inputs.option(
        "Of validation text, for --search.", default=10_000, type=click.IntRange(1)
    )
    rule: str | None = inputs.option(
        "A rule of the checkpoint, for --dynamic (its default).", metavar="KIND[:SIZE]"
    )
    experts: int = inputs.option(EXPERTS, default=1, type=click.Choice(EXPERT_RATES))
    recipe: str | None = inputs.option("It was trained by this (default: the model's name).")
    trained_on: str | None = inputs.option("Instead of the recipe's: the corpus whose training text is read.")
    keep: bool = inputs.option("Keep what --search finds as calibration.", default=False)
    monte_carlo: int = inputs.option("Dropout samples; 0 drops nothing.", default=0, type=click.IntRange(0))
    dropout: str | None = inputs.option("As input=.2,cell=.1,state=.1,output=.2 (default: the recipe's).")
    dropout_scale: float = inputs.option(
        "Multiplies the rates of dropout.", default=0.8, type=click.FloatRange(0)
    )
    geometric: bool = inputs.option("Mean of logits, not probabilities.", default=False)
    seed: int = inputs.option("Of the dropout samples.", default=1)
    save: bool = inputs.option("Write evaluation.json and the model card.", default=False)

    def __post_init__(self) -> None:
        if self.keep and not self.search:
            raise click.BadParameter("there is nothing to keep without --search", param_hint="--keep")


@dataclass(frozen=True)
class Work:
    """A model, how it is to be read, and the corpora that choices about that are made on."""

    asked: Asked
    checkpoint: Checkpoint
    device: torch.device
    corpora: Sequence[str]

    @cached_property
    def model(self) -> LanguageModel:
        """The network, on the device."""
        return LanguageModel.of(self.checkpoint.parameters).to(self.device)

    @cached_property
    def temperatures(self) -> Temperatures:
        """Those that were tried, with their losses on validation text in nats a token."""
        if self.asked.temperature != "search":
            return []
        passages, tried = self._validation(TEMPERATURE_TOKENS), []
        losses = static_losses(self.model, passages, bos_id=self.checkpoint.vocab.bos_id)
        with progress_bar("temperatures", len(TEMPERATURES)) as advance:
            for pair in search_temperature(losses):
                tried.append(pair)
                advance(1)
        return tried

    @cached_property
    def temperature(self) -> float:
        """The one that is used. Wrong usage for what is no number."""
        if self.temperatures:
            return min(self.temperatures, key=lambda pair: pair[1])[0]
        try:
            return float(self.asked.temperature)
        except ValueError:
            said = f"{self.asked.temperature!r} is no number, nor 'search'"
            raise click.BadParameter(said, param_hint="--temperature") from None

    @cached_property
    def choice(self) -> Choice | None:
        """How experts are to learn, chosen on validation text, if that is asked for."""
        asked, vocab = self.asked, self.checkpoint.vocab
        if not asked.search:
            return None
        statistics = Statistics(heads=asked.heads, segments=asked.segments)
        passages = self._validation(asked.search_tokens)
        measurements = measurements_of(self.checkpoint, self.device, self._sources, statistics)
        grid, temperature = asked.grid(Grid.usual(vocab.kind)), self.temperature
        return choose_rule(measurements, passages, grid, experts=asked.experts, temperature=temperature)

    def procedure(self) -> Procedure:
        """How texts are read. Wrong usage where settings exclude each other."""
        calibration = self.choice.calibration if self.choice else self._calibration()
        temperature, sampling = self.temperature, self._sampling()
        try:
            return Procedure(
                model=self.model,
                bos_id=self.checkpoint.vocab.bos_id,
                temperature=temperature,
                calibration=calibration,
                experts=self.asked.experts,
                rate_scale=self.asked.rate_scale,
                monte_carlo=sampling,
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    @property
    def _sources(self) -> Sequence[Source]:
        """What it was trained on. Wrong usage if unknown."""
        return given.sources_of(self.asked.recipe or self.checkpoint.name, self.asked.trained_on)

    def _validation(self, tokens: int) -> list[Passage]:
        """The first ``tokens`` tokens of the corpora's validation text, or of the recipe's."""
        corpora = self.corpora or [source.corpus for source in self._sources]
        return validation_passages(self.checkpoint.vocab, list(dict.fromkeys(corpora)), tokens)

    def _calibration(self) -> Calibration | None:
        """The rule named, or the default one. Raises CheckpointError where the model was not calibrated."""
        if not self.asked.dynamic:
            return None
        calibrated, rule = LocalModel(self.checkpoint).calibrated, self.asked.rule
        chosen = calibrated.default if rule is None else rule_named(calibrated, rule)
        return calibrated.choose(chosen.kind, chosen.num_fast_weights)

    def _sampling(self) -> MonteCarlo | None:
        """Dropout samples with the rates that are given, or the recipe's; None for no samples."""
        asked = self.asked
        if not asked.monte_carlo:
            return None
        name = asked.recipe or self.checkpoint.name
        rates = given.recipe_named(name).dropout if asked.dropout is None else _rates(asked.dropout)
        try:
            rates = scaled(rates, asked.dropout_scale)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--dropout-scale") from error
        return MonteCarlo(
            samples=asked.monte_carlo,
            rates=rates,
            averaging="geometric" if asked.geometric else "arithmetic",
            seed=asked.seed,
        )


def _rates(text: str) -> DropoutRates:
    names = [field.name for field in fields(DropoutRates)]
    told = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        return DropoutRates(**{name.strip(): float(rate) for name, rate in told.items()})
    except (TypeError, ValueError) as error:
        expected = f"{text!r} is not NAME=RATE,... with rates below 1 of {', '.join(names)}"
        raise click.BadParameter(expected, param_hint="--dropout") from error


@console.command()
@console.model()
@inputs.given("texts", Texts)
@inputs.given("asked", Asked, heads=16, segments=60)
@given.compute
@inputs.as_json
def evaluate(model: str, texts: Texts, asked: Asked, compute: given.Compute, as_json: bool) -> None:
    """Score texts exactly, token after token: static, and with --dynamic or --search learning.

    All that is searched for is chosen on the validation text of the corpora named, or of the recipe.
    """
    checkpoint, device = load(model), compute.prepare()
    work, passages = Work(asked, checkpoint, device, texts.corpus), texts.passages(checkpoint.vocab)
    procedure, results = work.procedure(), list[tuple[str, list[Evaluation]]]()
    for name, parts in passages:
        with progress_bar(name, procedure.readings * sum(len(part.ids) for part in parts)) as advance:
            results.append((name, procedure.read(parts, advance)))
    settings, kind = procedure.settings(texts.prefix), checkpoint.vocab.kind
    records = [record(total(name, parts), settings, kind) for name, parts in results]
    if asked.keep and work.choice:
        keep_choices(checkpoint, [work.choice])
    if asked.save:
        section = evaluation_section(save_results(checkpoint, records))
        rewrite_card(checkpoint, lambda card: with_section(card, "Evaluation", section))
    if as_json:
        show_json(_told(work, records, results))
    else:
        _show(work, results, kind)


def _told(work: Work, records: Sequence[dict[str, Any]], results: Results) -> dict[str, Any]:
    texts = [
        {**told, "segments": [part.to_json() for part in parts]}
        for told, (_, parts) in zip(records, results, strict=True)
    ]
    return {
        "model": work.checkpoint.name,
        "fingerprint": work.checkpoint.fingerprint,
        "temperatures": [{"temperature": t, "nats_per_token": loss} for t, loss in work.temperatures],
        "search": None if work.choice is None else work.choice.to_json(),
        "texts": texts,
    }


def _show(work: Work, results: Results, kind: VocabKind) -> None:
    """What was tried, and a row a text, and one for each of its parts where it has several."""
    if work.temperatures:
        losses = [(f"{t:g}", f"{loss:.4f}{' *' * (t == work.temperature)}") for t, loss in work.temperatures]
        show_table(("temperature", "nats a token"), losses)
    if work.choice:
        work.choice.show()
    rows = []
    for name, parts in results:
        rows += [_row(part, kind) for part in parts if len(parts) > 1]
        rows.append(_row(total(name, parts), kind))
    show_table(("text", "tokens", "unknown", "perplexity", "static", "adapted", "gain"), rows)
    columns = "static and adapted" if kind == "words" else "static, adapted and gain"
    click.echo(f"{columns} in {PUBLISHED[kind]}; perplexity per token")


def _row(result: Evaluation, kind: VocabKind) -> tuple[str, ...]:
    known = [nats for nats in (result.static_nats, result.adapted_nats) if nats is not None]
    before, after = (
        None if nats is None else result.published(kind, nats)
        for nats in (result.static_nats, result.adapted_nats)
    )
    gain = ""
    if before is not None and after is not None:
        gain = f"{100 * (1 - after / before):+.2f} %" if kind == "words" else f"{before - after:+.4f}"
    digits = 2 if kind == "words" else 4
    return (
        result.text,
        f"{result.tokens:,}",
        f"{result.unknown:,}",
        f"{result.perplexity(known[-1]):.3f}" if known else "",
        *("" if value is None else f"{value:.{digits}f}" for value in (before, after)),
        gain,
    )
