"""Choices made on held-out text, for ``rlstm calibrate`` and ``rlstm evaluate`` alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer
from safetensors import SafetensorError

from rlstm_model.adaptation.adapted_state import ExpertConfig
from rlstm_model.adaptation.calibration import (
    Calibration,
    CalibrationSet,
    NotCalibrated,
    load_calibration,
    save_calibration,
)
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.checkpoint import ADAPTATION, Checkpoint, CheckpointError
from rlstm_training.cards import ADAPTATION_TITLE, calibration_section, remove_sections, rewrite_section
from rlstm_training.commands.console import progress_bar, warn
from rlstm_training.config import Recipe
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.texts import Passage, prepare
from rlstm_training.evaluation.calibrate import Grid, Trial, Trials, search, session_losses
from rlstm_training.evaluation.evaluation import StaticReading
from rlstm_training.evaluation.measurements import FULL, Form, Measurements, Statistics
from rlstm_training.evaluation.temperature import TEMPERATURES, search_temperature, static_losses


def _experts(count: int) -> int:
    try:
        ExpertConfig(experts=count)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return count


RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="It was trained by this (default: the model's name).")
]
Rates = Annotated[list[float] | None, typer.Option("--rate", min=0, help="A rate to try.")]
Decays = Annotated[list[float] | None, typer.Option("--decay", min=0, help="A decay to try.")]
Epsilons = Annotated[
    list[float] | None, typer.Option("--epsilon", min=1e-9, help="To try; in multiples of the mean RMS.")
]
Segments = Annotated[list[int] | None, typer.Option("--segment", min=1, help="Tokens of a segment, to try.")]
Experts = Annotated[
    int, typer.Option("--experts", callback=_experts, help="How many experts are mixed: 1, 2 or 4.")
]
Heads = Annotated[int, typer.Option("--heads", min=1, help="Read heads of the statistics.")]
HeadSegments = Annotated[int, typer.Option("--segments", min=1, help="Segments that each of them reads.")]


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values to try, as they were asked for; where none were, the usual ones."""

    rates: Sequence[float] | None = None
    decays: Sequence[float] | None = None
    epsilons: Sequence[float] | None = None
    segments: Sequence[int] | None = None

    def grid(self, usual: Grid) -> Grid:
        """What is tried."""
        return Grid(
            rates=tuple(self.rates or usual.rates),
            decays=tuple(self.decays or usual.decays),
            epsilons=tuple(self.epsilons or usual.epsilons),
            segments=tuple(self.segments or usual.segments),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What a search for one form of fast weights tried, in sessions of so many experts."""

    measurements: Measurements
    form: Form
    experts: int
    trials: Trials

    @property
    def winner(self) -> Trial:
        """The best trial."""
        return self.trials.best

    @property
    def config(self) -> AdaptationConfig:
        """The rule of the best trial."""
        return self.measurements.config(self.winner.setting, self.form)

    @property
    def calibration(self) -> Calibration:
        """The same with its statistics."""
        return self.measurements.under(self.winner.setting, self.form)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all trials."""
        return {"rule": self.config.to_json(), "experts": self.experts, **self.trials.to_json()}


def keep_choices(
    checkpoint: Checkpoint,
    choices: Sequence[Choice],
    known: CalibrationSet | None = None,
    *,
    first: bool = False,
) -> None:
    """Write the rules beside the checkpoint, and the searches into its card.

    The first is the default; those that are ``known`` come before. All must be of one segment length, to
    which statistics belong.
    """
    statistics = choices[0].measurements.of(choices[0].winner.setting.segment)
    rules = tuple(choice.config for choice in choices)
    calibrated = CalibrationSet(
        model=checkpoint.model, statistics=statistics, choices=known.choices if known else rules
    )
    for rule in rules if known else ():
        calibrated = calibrated.including(rule, first=first)
    try:
        save_calibration(checkpoint.folder / ADAPTATION, calibrated)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint.folder}: cannot be written ({error})") from error
    if known is None:
        remove_sections(checkpoint, ADAPTATION_TITLE)
    for choice in choices:
        section = calibration_section(choice.trials, choice.experts)
        title = f"{ADAPTATION_TITLE}: {choice.config.kind}, {choice.config.num_fast_weights:,} fast weights"
        rewrite_section(checkpoint, title, section)


def calibrated_of(checkpoint: Checkpoint) -> CalibrationSet:
    """What a checkpoint was calibrated to. Raises CheckpointError where it was not, CalibrationError."""
    file = checkpoint.adaptation_file
    if file is None:
        raise CheckpointError(f"{checkpoint.folder}: has no calibration; run rlstm calibrate")
    return load_calibration(file, checkpoint.model)


def rule_named(calibrated: CalibrationSet, name: str) -> AdaptationConfig:
    """The rule ``KIND[:COORDINATES]``. Wrong usage when there is none."""
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind, _, size = name.partition(":")
    if kind not in kinds or (size and not size.isdecimal()):
        raise typer.BadParameter(
            f"{name!r} is no KIND[:COORDINATES] of {', '.join(kinds)}", param_hint="--rule"
        )
    try:
        return calibrated.find(kinds[kind], int(size) if size else None)
    except NotCalibrated as error:
        raise typer.BadParameter(str(error), param_hint="--rule") from error


def measurements_of(
    checkpoint: Checkpoint, recipe: Recipe, statistics: Statistics, known: CalibrationSet | None = None
) -> Measurements:
    """Statistics of the recipe's training text, or those that are ``known``.

    Raises CheckpointError when the model's vocabulary is not that text's.
    """
    texts, vocab = prepare(recipe)
    if vocab != checkpoint.vocab:
        raise CheckpointError(
            f"{checkpoint.folder}: its vocabulary is not that of recipe {recipe.name}'s training text"
        )
    return Measurements(
        checkpoint.model, texts.train, bos_id=vocab.bos_id, statistics=statistics, known=known
    )


def choose_rule(
    measurements: Measurements,
    passages: Sequence[Passage],
    grid: Grid,
    form: Form = FULL,
    *,
    experts: int = 1,
    temperature: float = 1.0,
    thread_pool: ThreadPool | None = None,
) -> Choice:
    """Search the grid; a ``thread_pool`` makes that faster and nothing else.

    Raises CorpusError when no text fills a segment, or there are no such fast weights.
    """
    static = _static(measurements, passages, temperature)
    total = sum(len(part.ids) for part in passages) * grid.most_trials
    with progress_bar(f"search {form.kind}", total) as advance:
        losses = session_losses(
            measurements,
            passages,
            form=form,
            experts=experts,
            temperature=temperature,
            advance=advance,
            thread_pool=thread_pool,
        )
        try:
            *_, trials = search(losses, grid, static)
        except ValueError as error:
            raise CorpusError(f"the statistics of {form.kind}: {error}") from error
    if trials.regret(trials.best.bits_per_byte) >= trials.regret(static):
        warn(f"nothing tried for {form.kind} is better than the weights as loaded: learning would cost bits")
    return Choice(measurements=measurements, form=form, experts=experts, trials=trials)


def choose_temperature(checkpoint: Checkpoint, passages: Sequence[Passage]) -> list[tuple[float, float]]:
    """The temperatures that were tried with their losses, in nats a token: the best is the least."""
    with progress_bar("temperature", sum(len(part.ids) for part in passages)) as advance:
        losses = static_losses(checkpoint.model, passages, bos_id=checkpoint.vocab.bos_id, advance=advance)
    with progress_bar("temperatures", len(TEMPERATURES)) as advance:
        tried = []
        for pair in search_temperature(losses):
            tried.append(pair)
            advance(1)
    return tried


def _static(measurements: Measurements, passages: Sequence[Passage], temperature: float) -> dict[str, float]:
    bits = {}
    for part in passages:
        reading = StaticReading(measurements.model, bos_id=measurements.bos_id, temperature=temperature)
        result = reading.read(part)
        bits[part.name] = result.bits_per_byte(result.static_nats or 0.0)
    return bits
