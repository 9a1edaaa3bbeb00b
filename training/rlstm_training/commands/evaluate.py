"""``rlstm evaluate``: score texts exactly, as published numbers are."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import Checkpoint, CheckpointError, load
from rlstm_model.dropout import DropoutRates
from rlstm_model.vocab import Vocab
from rlstm_training.calibrate import Grid, Statistics
from rlstm_training.cards import evaluation_section, rewrite_section
from rlstm_training.commands.choosing import (
    Choice,
    Decays,
    Epsilons,
    Heads,
    HeadSegments,
    Rates,
    RecipeName,
    Segments,
    choose_rule,
    choose_temperature,
    grid_of,
)
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_device,
    progress_bar,
    recipe_named,
    show_json,
)
from rlstm_training.commands.tables import show_results, show_temperatures, show_trials
from rlstm_training.config import Recipe
from rlstm_training.corpora import CorpusError, load_corpus
from rlstm_training.evaluation import Evaluation, total
from rlstm_training.monte_carlo import MonteCarlo, scaled
from rlstm_training.procedure import Procedure
from rlstm_training.results import record, save_results
from rlstm_training.streams import load_stream
from rlstm_training.texts import Passage, excerpt, passage
from rlstm_training.validation import validation_passages

TEMPERATURE_TOKENS = 50_000

Prefix = Annotated[int | None, typer.Option(min=1, help="Only the first bytes of each text or segment.")]


class SplitName(StrEnum):
    """A split, as the command line names it: typer takes no list of literals."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"


@command
def evaluate(
    model: Model,
    files: Annotated[list[str] | None, typer.Argument(help="Text files; - is standard input.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="A corpus by name, or a folder.")] = None,
    split: Annotated[list[SplitName] | None, typer.Option(help="Of the corpora (default: test).")] = None,
    stream: Annotated[list[str] | None, typer.Option(help="A stream, read in one session.")] = None,
    prefix: Prefix = None,
    temperature: Annotated[
        str, typer.Option(help="Multiplies the logits; 'search' chooses it on validation text.")
    ] = "1",
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Learn while reading, as a session.")] = False,
    rate_scale: Annotated[float, typer.Option(min=0, help="Multiplies the calibrated rate.")] = 1.0,
    search: Annotated[
        bool, typer.Option("--search", help="Learn as is best on validation text, not as calibrated.")
    ] = False,
    search_tokens: Annotated[int, typer.Option(min=1, help="Of validation text, for --search.")] = 10_000,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    recipe: RecipeName = None,
    trained_on: Annotated[
        str | None, typer.Option(help="Instead of the recipe's: the corpus whose training text is read.")
    ] = None,
    heads: Heads = 16,
    segments: HeadSegments = 60,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what --search finds as the calibration.")
    ] = False,
    monte_carlo: Annotated[int, typer.Option(min=0, help="Dropout samples; 0 drops nothing.")] = 0,
    dropout: Annotated[
        str | None, typer.Option(help="As input=.2,cell=.1,state=.1,output=.2 (default: the recipe's).")
    ] = None,
    dropout_scale: Annotated[float, typer.Option(min=0, help="Multiplies the rates of dropout.")] = 0.8,
    geometric: Annotated[
        bool, typer.Option("--geometric", help="Mean of logits, not probabilities.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the dropout samples.")] = 1,
    save: Annotated[bool, typer.Option("--save", help="Write evaluation.json and the model card.")] = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score texts exactly, token after token: static, and with --dynamic or --search learning.

    All that is searched for is chosen on the validation text of the corpora named, or of the recipe.
    """
    checkpoint = load(model, prepare_device(device, threads))
    texts = _texts(
        checkpoint.vocab, files or (), corpus or (), split or [SplitName.TEST], stream or (), prefix
    )
    if keep and not search:
        raise typer.BadParameter("there is nothing to keep without --search", param_hint="--keep")
    home = _Home(checkpoint, recipe, trained_on, corpus or ())
    tried = home.temperatures() if temperature == "search" else []
    chosen = min(tried, key=lambda pair: pair[1])[0] if tried else _temperature(temperature)
    choice = None
    if search:
        grid = grid_of(Grid.usual(checkpoint.vocab.kind), rate, decay, epsilon, segment)
        choice = home.rule(grid, Statistics(heads=heads, segments=segments), search_tokens, chosen)
    calibration = choice.calibration if choice else _calibration(checkpoint) if dynamic else None
    sampling = None
    if monte_carlo:
        averaging: Literal["geometric", "arithmetic"] = "geometric" if geometric else "arithmetic"
        rates = home.dropout(dropout, dropout_scale)
        sampling = MonteCarlo(samples=monte_carlo, rates=rates, averaging=averaging, seed=seed)
    procedure = _procedure(checkpoint, chosen, calibration, rate_scale, sampling)
    results = []
    for name, passages in texts:
        tokens = sum(len(part.ids) for part in passages) * procedure.readings
        with progress_bar(name, tokens) as advance:
            results.append((name, procedure.read(passages, advance)))
    if keep and choice:
        choice.keep(checkpoint)
    if save:
        _save(checkpoint, results, procedure, prefix)
    if as_json:
        show_json(_report(checkpoint, results, procedure, prefix, tried, choice))
    else:
        if tried:
            show_temperatures(tried)
        if choice:
            show_trials(choice.trials, choice.static)
        show_results(results, checkpoint.vocab.kind)


def load_adapter(checkpoint: Checkpoint) -> Adapter:
    """The adapter of a calibrated checkpoint. Raises CheckpointError, CalibrationError."""
    return Adapter(checkpoint.model, _calibration(checkpoint), bos_id=checkpoint.vocab.bos_id)


@dataclass(frozen=True)
class _Home:
    """Where a model comes from, and the corpora it is evaluated on: what choices are made with."""

    checkpoint: Checkpoint
    recipe_name: str | None
    trained_on: str | None
    corpora: Sequence[str]

    def recipe(self) -> Recipe:
        return recipe_named(self.recipe_name or self.checkpoint.name, self.trained_on)

    def validation(self, tokens: int) -> list[Passage]:
        corpora = self.corpora or [source.corpus for source in self.recipe().sources]
        return validation_passages(self.checkpoint.vocab, list(dict.fromkeys(corpora)), tokens)

    def temperatures(self) -> list[tuple[float, float]]:
        return choose_temperature(self.checkpoint, self.validation(TEMPERATURE_TOKENS))

    def rule(self, grid: Grid, statistics: Statistics, tokens: int, temperature: float) -> Choice:
        passages = self.validation(tokens)
        return choose_rule(self.checkpoint, self.recipe(), passages, grid, statistics, temperature)

    def dropout(self, text: str | None, scale: float) -> DropoutRates:
        rates = self.recipe().dropout if text is None else _rates(text)
        try:
            return scaled(rates, scale)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--dropout-scale") from error


def _procedure(
    checkpoint: Checkpoint,
    temperature: float,
    calibration: Calibration | None,
    rate_scale: float,
    sampling: MonteCarlo | None,
) -> Procedure:
    try:
        return Procedure(
            model=checkpoint.model,
            bos_id=checkpoint.vocab.bos_id,
            temperature=temperature,
            calibration=calibration,
            rate_scale=rate_scale,
            monte_carlo=sampling,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _calibration(checkpoint: Checkpoint) -> Calibration:
    file = checkpoint.adaptation_file
    if file is None:
        raise CheckpointError(f"{checkpoint.folder}: has no calibration; run rlstm calibrate")
    return Calibration.load(file, checkpoint.model)


def _temperature(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number, nor 'search'", param_hint="--temperature") from None


def _rates(text: str) -> DropoutRates:
    names = [field.name for field in fields(DropoutRates)]
    given = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        return DropoutRates(**{name.strip(): float(rate) for name, rate in given.items()})
    except (TypeError, ValueError) as error:
        expected = f"{text!r} is not NAME=RATE,... with rates below 1 of {', '.join(names)}"
        raise typer.BadParameter(expected, param_hint="--dropout") from error


def _texts(
    vocab: Vocab,
    files: Sequence[str],
    corpora: Sequence[str],
    splits: Sequence[SplitName],
    streams: Sequence[str],
    prefix: int | None,
) -> list[tuple[str, list[Passage]]]:
    texts = [
        *(_file(vocab, path, prefix) for path in files),
        *(_corpus(vocab, name, split, prefix) for name in corpora for split in splits),
        *(_stream(vocab, name, prefix) for name in streams),
    ]
    if not texts:
        raise typer.BadParameter("name files, a --corpus or a --stream", param_hint="FILES")
    return texts


def _file(vocab: Vocab, path: str, prefix: int | None) -> tuple[str, list[Passage]]:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    return _whole(vocab, raw, path, prefix)


def _corpus(vocab: Vocab, name: str, split: SplitName, prefix: int | None) -> tuple[str, list[Passage]]:
    return _whole(vocab, load_corpus(name, split.value), f"{name} {split}", prefix)


def _whole(vocab: Vocab, raw: bytes, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    if prefix is None:
        return name, [passage(vocab, raw, name)]
    return name, [excerpt(vocab, raw[:prefix], name)]


def _stream(vocab: Vocab, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    segments = load_stream(name, prefix=prefix)
    return name, [excerpt(vocab, raw, label) for label, raw in segments]


def _save(
    checkpoint: Checkpoint,
    results: Sequence[tuple[str, list[Evaluation]]],
    procedure: Procedure,
    prefix: int | None,
) -> None:
    settings, kind = procedure.settings(prefix), checkpoint.vocab.kind
    kept = save_results(checkpoint, [record(total(name, parts), settings, kind) for name, parts in results])
    rewrite_section(checkpoint, "Evaluation", evaluation_section(kept))


def _report(
    checkpoint: Checkpoint,
    results: Sequence[tuple[str, list[Evaluation]]],
    procedure: Procedure,
    prefix: int | None,
    temperatures: Sequence[tuple[float, float]],
    choice: Choice | None,
) -> dict[str, Any]:
    settings, kind = procedure.settings(prefix), checkpoint.vocab.kind
    texts = [
        {**record(total(name, parts), settings, kind), "segments": [part.to_json() for part in parts]}
        for name, parts in results
    ]
    return {
        "model": checkpoint.name,
        "fingerprint": checkpoint.fingerprint,
        "temperatures": [{"temperature": t, "nats_per_token": loss} for t, loss in temperatures],
        "search": None if choice is None else choice.to_json(),
        "texts": texts,
    }
