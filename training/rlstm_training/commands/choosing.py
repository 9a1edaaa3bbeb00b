"""Choices made on held-out text, for ``rlstm calibrate`` and ``rlstm evaluate`` alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from safetensors import SafetensorError

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import ADAPTATION, Checkpoint, CheckpointError
from rlstm_training.cards import calibration_section, rewrite_section
from rlstm_training.commands.console import progress_bar, warn
from rlstm_training.config import Recipe
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.texts import Passage, prepare
from rlstm_training.evaluation.calibrate import (
    Calibrations,
    Grid,
    Statistics,
    Trial,
    best,
    search,
    session_losses,
)
from rlstm_training.evaluation.evaluation import StaticReading
from rlstm_training.evaluation.temperature import TEMPERATURES, search_temperature, static_losses

RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="It was trained by this (default: the model's name).")
]
Rates = Annotated[list[float] | None, typer.Option("--rate", min=0, help="A rate to try.")]
Decays = Annotated[list[float] | None, typer.Option("--decay", min=0, help="A decay to try.")]
Epsilons = Annotated[
    list[float] | None, typer.Option("--epsilon", min=1e-9, help="To try; in multiples of the mean RMS.")
]
Segments = Annotated[list[int] | None, typer.Option("--segment", min=1, help="Tokens of a segment, to try.")]
Heads = Annotated[int, typer.Option("--heads", min=1, help="Read heads of the statistics.")]
HeadSegments = Annotated[int, typer.Option("--segments", min=1, help="Segments that each of them reads.")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What a search tried, and the calibration of its best trial.

    ``static`` holds the bits per byte of each text with the weights as loaded.
    """

    trials: Sequence[Trial]
    static: Mapping[str, float]
    calibration: Calibration

    @property
    def winner(self) -> Trial:
        """The best trial."""
        return best(self.trials)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all trials."""
        tried = [trial.to_json() for trial in self.trials]
        return {"chosen": self.winner.to_json(), "static": dict(self.static), "trials": tried}

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write the calibration beside the checkpoint, and the search into its card."""
        try:
            self.calibration.save(checkpoint.folder / ADAPTATION, checkpoint.model)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{checkpoint.folder}: cannot be written ({error})") from error
        section = calibration_section(self.trials, self.winner, self.static)
        rewrite_section(checkpoint, "Adaptation", section)


def grid_of(
    usual: Grid,
    rates: Sequence[float] | None,
    decays: Sequence[float] | None,
    epsilons: Sequence[float] | None,
    segments: Sequence[int] | None,
) -> Grid:
    """What was asked for, and the usual where nothing was."""
    return Grid(
        rates=tuple(rates or usual.rates),
        decays=tuple(decays or usual.decays),
        epsilons=tuple(epsilons or usual.epsilons),
        segments=tuple(segments or usual.segments),
    )


def choose_rule(
    checkpoint: Checkpoint,
    recipe: Recipe,
    passages: Sequence[Passage],
    grid: Grid,
    statistics: Statistics,
    temperature: float = 1.0,
) -> Choice:
    """Search the grid, with statistics of the recipe's training text.

    Raises CheckpointError when the model's vocabulary is not that text's, CorpusError when no text fills a
    segment.
    """
    texts, vocab = prepare(recipe)
    if vocab != checkpoint.vocab:
        raise CheckpointError(
            f"{checkpoint.folder}: its vocabulary is not that of recipe {recipe.name}'s training text"
        )
    calibrations = Calibrations(checkpoint.model, texts.train, bos_id=vocab.bos_id, statistics=statistics)
    static = _static(checkpoint, passages, temperature)
    with progress_bar("search", sum(len(part.ids) for part in passages) * grid.most_trials) as advance:
        losses = session_losses(calibrations, passages, temperature=temperature, advance=advance)
        try:
            trials = list(search(losses, grid))
        except ValueError as error:
            raise CorpusError(f"recipe {recipe.name}: {error}") from error
    winner = best(trials)
    if winner.mean >= math.fsum(static.values()) / len(static):
        warn("no setting that was tried is better than the weights as loaded: learning would cost bits")
    return Choice(trials=trials, static=static, calibration=calibrations.under(winner.setting))


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


def _static(checkpoint: Checkpoint, passages: Sequence[Passage], temperature: float) -> dict[str, float]:
    bits = {}
    for part in passages:
        reading = StaticReading(checkpoint.model, bos_id=checkpoint.vocab.bos_id, temperature=temperature)
        result = reading.read(part)
        bits[part.name] = result.bits_per_byte(result.static_nats or 0.0)
    return bits
