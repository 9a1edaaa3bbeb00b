"""What ``rlstm evaluate`` does: choose on held-out text, read, and tell."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import torch

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import Checkpoint
from rlstm_model.local import LocalModel
from rlstm_model.network.dropout import DropoutRates
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import Vocab, VocabKind
from rlstm_training.cards import evaluation_section, rewrite_card, with_section
from rlstm_training.commands.choosing import (
    Choice,
    choose_rule,
    grid_of,
    keep_choices,
    measurements_of,
    rule_named,
)
from rlstm_training.commands.console import progress_bar, show_json, show_table
from rlstm_training.commands.given import recipe_named, sources_of
from rlstm_training.config import Source
from rlstm_training.corpora import CorpusError, Split, as_text
from rlstm_training.corpora.reading import load_corpus, load_stream
from rlstm_training.corpora.texts import Passage, excerpt, passage, validation_passages
from rlstm_training.evaluation.evaluation import PUBLISHED, Evaluation, total
from rlstm_training.evaluation.measurements import Statistics
from rlstm_training.evaluation.monte_carlo import MonteCarlo, scaled
from rlstm_training.evaluation.procedure import Procedure, record, save_results
from rlstm_training.evaluation.search import Grid
from rlstm_training.evaluation.temperature import TEMPERATURES, search_temperature, static_losses

TEMPERATURE_TOKENS = 50_000

Texts = Sequence[tuple[str, list[Passage]]]
Temperatures = Sequence[tuple[float, float]]


def texts_given(
    vocab: Vocab,
    files: Sequence[str],
    corpora: Sequence[str],
    splits: Sequence[Split],
    streams: Sequence[str],
    prefix: int | None,
    encoding: str | None = None,
) -> list[tuple[str, list[Passage]]]:
    """Every text named, by its name, as passages. Wrong usage when none is; raises CorpusError."""
    named = [*files, *corpora, *streams]
    if not named:
        raise click.BadParameter("name files, a --corpus or a --stream", param_hint="FILES")
    if len({*named}) < len(named):
        raise click.BadParameter("name each text once", param_hint="FILES")

    def whole(raw: bytes, name: str) -> tuple[str, list[Passage]]:
        one = passage(vocab, raw, name) if prefix is None else excerpt(vocab, raw[:prefix], name)
        return name, [one]

    texts = [whole(_file(path, encoding), path) for path in files]
    texts += [whole(load_corpus(name, split), f"{name} {split}") for name in corpora for split in splits]
    for name in streams:
        segments = load_stream(name, prefix=prefix)
        texts.append((name, [excerpt(vocab, raw, label) for label, raw in segments]))
    return texts


def _file(path: str, encoding: str | None) -> bytes:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    return as_text(raw, path, encoding)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: its recipe, and the corpora that choices about it are made on."""

    checkpoint: Checkpoint
    device: torch.device
    recipe_name: str | None
    trained_on: str | None
    corpora: Sequence[str]

    @cached_property
    def model(self) -> LanguageModel:
        """The network, on the device."""
        return LanguageModel.of(self.checkpoint.parameters).to(self.device)

    @property
    def sources(self) -> Sequence[Source]:
        """What it was trained on. Wrong usage if unknown."""
        return sources_of(self.recipe_name or self.checkpoint.name, self.trained_on)

    def validation(self, tokens: int) -> list[Passage]:
        """The first ``tokens`` tokens of the corpora's validation text, or of the recipe's."""
        corpora = self.corpora or [source.corpus for source in self.sources]
        return validation_passages(self.checkpoint.vocab, list(dict.fromkeys(corpora)), tokens)

    def temperatures(self) -> Temperatures:
        """Temperatures with their losses on validation text, in nats a token."""
        passages = self.validation(TEMPERATURE_TOKENS)
        losses = static_losses(self.model, passages, bos_id=self.checkpoint.vocab.bos_id)
        tried = []
        with progress_bar("temperatures", len(TEMPERATURES)) as advance:
            for pair in search_temperature(losses):
                tried.append(pair)
                advance(1)
        return tried

    def rule(
        self,
        values: Mapping[str, Sequence[float] | None],
        heads: int,
        segments: int,
        tokens: int,
        experts: int,
        temperature: float,
    ) -> Choice:
        """How so many experts are to learn, chosen of ``values`` on ``tokens`` tokens of validation text."""
        grid = grid_of(Grid.usual(self.checkpoint.vocab.kind), **values)
        statistics = Statistics(heads=heads, segments=segments)
        passages = self.validation(tokens)
        measurements = measurements_of(self.checkpoint, self.device, self.sources, statistics)
        return choose_rule(measurements, passages, grid, experts=experts, temperature=temperature)

    def calibration(self, rule: str | None) -> Calibration:
        """The rule named, or the default one. Raises CheckpointError where the model was not calibrated."""
        calibrated = LocalModel(self.checkpoint).calibrated
        chosen = calibrated.default if rule is None else rule_named(calibrated, rule)
        return calibrated.choose(chosen.kind, chosen.num_fast_weights)

    def procedure(
        self, calibration: Calibration | None, sampling: MonteCarlo | None, settings: Mapping[str, Any]
    ) -> Procedure:
        """How texts are to be read. Wrong usage where settings exclude each other."""
        model, bos_id = self.model, self.checkpoint.vocab.bos_id
        try:
            return Procedure(
                model=model, bos_id=bos_id, calibration=calibration, monte_carlo=sampling, **settings
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    def monte_carlo(
        self, samples: int, dropout: str | None, scale: float, geometric: bool, seed: int
    ) -> MonteCarlo | None:
        """Dropout samples with the rates written in ``dropout``, or the recipe's; None for no samples."""
        if not samples:
            return None
        name = self.recipe_name or self.checkpoint.name
        rates = recipe_named(name, None).dropout if dropout is None else _rates(dropout)
        try:
            rates = scaled(rates, scale)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--dropout-scale") from error
        return MonteCarlo(
            samples=samples, rates=rates, averaging="geometric" if geometric else "arithmetic", seed=seed
        )


def _rates(text: str) -> DropoutRates:
    names = [field.name for field in fields(DropoutRates)]
    given = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        return DropoutRates(**{name.strip(): float(rate) for name, rate in given.items()})
    except (TypeError, ValueError) as error:
        expected = f"{text!r} is not NAME=RATE,... with rates below 1 of {', '.join(names)}"
        raise click.BadParameter(expected, param_hint="--dropout") from error


def temperature_of(text: str) -> float:
    """A number. Wrong usage for anything else."""
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number, nor 'search'", param_hint="--temperature") from None


def read(texts: Texts, procedure: Procedure) -> list[tuple[str, list[Evaluation]]]:
    """Read every text, with a progress bar."""
    results = []
    for name, passages in texts:
        tokens = sum(len(part.ids) for part in passages) * procedure.readings
        with progress_bar(name, tokens) as advance:
            results.append((name, procedure.read(passages, advance)))
    return results


def tell(
    checkpoint: Checkpoint,
    results: Sequence[tuple[str, list[Evaluation]]],
    settings: dict[str, Any],
    temperatures: Temperatures,
    choice: Choice | None,
    keep: bool,
    save: bool,
    as_json: bool,
) -> None:
    """Keep and print what was found, as it was asked for."""
    kind = checkpoint.vocab.kind
    records = [record(total(name, parts), settings, kind) for name, parts in results]
    if keep and choice:
        keep_choices(checkpoint, [choice])
    if save:
        section = evaluation_section(save_results(checkpoint, records))
        rewrite_card(checkpoint, lambda card: with_section(card, "Evaluation", section))
    if as_json:
        texts = [
            {**told, "segments": [part.to_json() for part in parts]}
            for told, (_, parts) in zip(records, results, strict=True)
        ]
        show_json(
            {
                "model": checkpoint.name,
                "fingerprint": checkpoint.fingerprint,
                "temperatures": [{"temperature": t, "nats_per_token": loss} for t, loss in temperatures],
                "search": None if choice is None else choice.to_json(),
                "texts": texts,
            }
        )
        return
    if temperatures:
        best = min(temperatures, key=lambda pair: pair[1])
        rows = [(f"{t:g}", f"{loss:.4f}{' *' if (t, loss) == best else ''}") for t, loss in temperatures]
        show_table(("temperature", "nats a token"), rows)
    if choice:
        choice.show()
    _show(results, kind)


def _show(results: Sequence[tuple[str, list[Evaluation]]], kind: VocabKind) -> None:
    """A row a text, and one for each of its parts where it has several."""
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
