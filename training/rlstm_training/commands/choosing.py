"""Choices made on held-out text, for ``rlstm calibrate`` and ``rlstm evaluate`` alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import click
import torch
from safetensors import SafetensorError

from rlstm_client.cli import inputs
from rlstm_model.adaptation.calibration import (
    Calibration,
    CalibrationSet,
    NotCalibrated,
)
from rlstm_model.adaptation.calibration_file import save_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.checkpoint import ADAPTATION, Checkpoint, CheckpointError
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.cards import calibration_section, rewrite_card, with_section, without_sections
from rlstm_training.commands.console import progress_bar, show_table, warn
from rlstm_training.config import Source
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.texts import Passage, training_texts
from rlstm_training.evaluation.evaluation import read_static
from rlstm_training.evaluation.measurements import FULL, Form, Measurements, Statistics
from rlstm_training.evaluation.search import Grid, Trials, search, session_losses

TITLE = "Adaptation"
EXPERTS = "How many experts are mixed: 1, 2 or 4."


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Values that a search tries, in place of the usual ones; and on what its statistics are taken."""

    rate: Sequence[float] = inputs.option("A rate to try.", type=click.FloatRange(0))
    decay: Sequence[float] = inputs.option("A decay to try.", type=click.FloatRange(0))
    epsilon: Sequence[float] = inputs.option(
        "To try; in multiples of the mean RMS.", type=click.FloatRange(1e-9)
    )
    segment: Sequence[int] = inputs.option("Tokens of a segment, to try.", type=click.IntRange(1))
    heads: int = inputs.option("Read heads of the statistics.", type=click.IntRange(1))
    segments: int = inputs.option("Segments that each of them reads.", type=click.IntRange(1))

    def grid(self, usual: Grid) -> Grid:
        """The grid of the values given, else of the usual ones."""
        return Grid(
            rates=tuple(self.rate) or usual.rates,
            decays=tuple(self.decay) or usual.decays,
            epsilons=tuple(self.epsilon) or usual.epsilons,
            segments=tuple(self.segment) or usual.segments,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What a search for one form of fast weights tried, in sessions of so many experts."""

    measurements: Measurements
    form: Form
    experts: int
    trials: Trials

    @property
    def config(self) -> AdaptationConfig:
        """The rule of the best trial."""
        return self.measurements.config(self.trials.best.setting, self.form)

    @property
    def calibration(self) -> Calibration:
        """The same with its statistics."""
        return self.measurements.under(self.trials.best.setting, self.form)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all trials."""
        return {"rule": self.config.to_json(), "experts": self.experts, **self.trials.to_json()}

    def show(self) -> None:
        """The table of the search; says so when the best rate is the least or greatest of those tried."""
        config, trials = self.config, self.trials
        mixed = f", {self.experts} experts" if self.experts > 1 else ""
        click.echo(f"{config.kind}, {config.num_fast_weights:,} fast weights{mixed}")
        headers, *rows = trials.table()
        chosen = 1 + trials.tried.index(trials.best)
        rows[chosen] = (*rows[chosen][:-1], f"{rows[chosen][-1]} *")
        show_table(headers, rows)
        rates = {trial.setting.rate for trial in trials.tried}
        if len(rates) > 1 and config.rate in (min(rates), max(rates)):
            click.echo("The best rate is at the edge of those tried: try others with --rate.")


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
    statistics = choices[0].measurements.of(choices[0].config.segment)
    rules = tuple(choice.config for choice in choices)
    calibrated = CalibrationSet(statistics=statistics, choices=known.choices if known else rules)
    for rule in rules if known else ():
        calibrated = calibrated.including(rule, first=first)
    try:
        save_calibration(checkpoint.folder / ADAPTATION, calibrated)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint.folder}: cannot be written ({error})") from error

    def rewritten(card: str) -> str:
        card = card if known else without_sections(card, TITLE)
        for choice in choices:
            title = f"{TITLE}: {choice.config.kind}, {choice.config.num_fast_weights:,} fast weights"
            card = with_section(card, title, calibration_section(choice.trials, choice.experts))
        return card

    rewrite_card(checkpoint, rewritten)


def rule_named(calibrated: CalibrationSet, name: str) -> AdaptationConfig:
    """The rule ``KIND[:SIZE]``. Wrong usage when there is none."""
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind, _, size = name.partition(":")
    if kind not in kinds or (size and not size.isdecimal()):
        raise click.BadParameter(f"{name!r} is no KIND[:SIZE] of {', '.join(kinds)}", param_hint="--rule")
    try:
        return calibrated.find(kinds[kind], int(size) if size else None)
    except NotCalibrated as error:
        raise click.BadParameter(str(error), param_hint="--rule") from error


def measurements_of(
    checkpoint: Checkpoint,
    device: torch.device,
    sources: Sequence[Source],
    statistics: Statistics,
    known: CalibrationSet | None = None,
) -> Measurements:
    """Statistics of training texts, as the model's vocabulary has them, or those that are ``known``.

    Raises CorpusError when the texts are missing, too short, or hold what the vocabulary cannot have.
    """
    vocab = checkpoint.vocab
    least = statistics.heads * statistics.segments * 5  # a quarter of what is read, in segments of 20
    texts = training_texts(vocab, sources, least)
    model = LanguageModel.of(checkpoint.parameters).to(device)
    return Measurements(model, texts, bos_id=vocab.bos_id, statistics=statistics, known=known)


def choose_rule(
    measurements: Measurements,
    passages: Sequence[Passage],
    grid: Grid,
    form: Form = FULL,
    *,
    experts: int = 1,
    temperature: float = 1.0,
) -> Choice:
    """Search the grid.

    Raises CorpusError when no text fills a segment, or there are no such fast weights.
    """
    static = {}
    for part in passages:
        model, bos_id = measurements.model, measurements.bos_id
        (result,) = read_static(model, [part], bos_id=bos_id, temperature=temperature)
        static[part.name] = result.bits_per_byte(result.static_nats or 0.0)
    total = sum(len(part.ids) for part in passages) * grid.most_trials
    with progress_bar(f"search {form.kind}", total) as advance:
        losses = session_losses(
            measurements,
            passages,
            form=form,
            experts=experts,
            temperature=temperature,
            advance=advance,
        )
        try:
            *_, trials = search(losses, grid, static)
        except ValueError as error:
            raise CorpusError(f"the statistics of {form.kind}: {error}") from error
    if trials.regret(trials.best.bits_per_byte) >= trials.regret(static):
        warn(f"nothing tried for {form.kind} is better than the weights as loaded: learning would cost bits")
    return Choice(measurements=measurements, form=form, experts=experts, trials=trials)
