"""Where a model comes from: its recipe and the corpora that choices about it are made on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import typer

from rlstm_model.checkpoint import Checkpoint
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.commands.choosing import Choice, choose_rule, choose_temperature, measurements_of
from rlstm_training.commands.console import recipe_named
from rlstm_training.config import Recipe
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.calibrate import Grid
from rlstm_training.evaluation.measurements import Statistics
from rlstm_training.evaluation.monte_carlo import MonteCarlo, scaled
from rlstm_training.evaluation.validation import validation_passages

TEMPERATURE_TOKENS = 50_000


@dataclass(frozen=True)
class Origin:
    """A model with its recipe's name, and the corpora it is evaluated on."""

    checkpoint: Checkpoint
    recipe_name: str | None
    trained_on: str | None
    corpora: Sequence[str]

    def recipe(self) -> Recipe:
        """The recipe that it was trained by, on the corpus it was trained on. Wrong usage if unknown."""
        return recipe_named(self.recipe_name or self.checkpoint.name, self.trained_on)

    def validation(self, tokens: int) -> list[Passage]:
        """The first ``tokens`` tokens of the corpora's validation text, or of the recipe's."""
        corpora = self.corpora or [source.corpus for source in self.recipe().sources]
        return validation_passages(self.checkpoint.vocab, list(dict.fromkeys(corpora)), tokens)

    def temperatures(self) -> list[tuple[float, float]]:
        """Temperatures with their losses on validation text, in nats a token."""
        return choose_temperature(self.checkpoint, self.validation(TEMPERATURE_TOKENS))

    def rule(
        self, grid: Grid, statistics: Statistics, tokens: int, *, experts: int, temperature: float
    ) -> Choice:
        """How so many experts are to learn, chosen on ``tokens`` tokens of validation text."""
        passages = self.validation(tokens)
        measurements = measurements_of(self.checkpoint, self.recipe(), statistics)
        return choose_rule(measurements, passages, grid, experts=experts, temperature=temperature)

    def monte_carlo(
        self, samples: int, dropout: str | None, scale: float, geometric: bool, seed: int
    ) -> MonteCarlo | None:
        """Dropout samples with the rates written in ``dropout``, or the recipe's; None for no samples."""
        if not samples:
            return None
        averaging: Literal["geometric", "arithmetic"] = "geometric" if geometric else "arithmetic"
        rates = self.recipe().dropout if dropout is None else _rates(dropout)
        try:
            rates = scaled(rates, scale)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--dropout-scale") from error
        return MonteCarlo(samples=samples, rates=rates, averaging=averaging, seed=seed)


def _rates(text: str) -> DropoutRates:
    names = [field.name for field in fields(DropoutRates)]
    given = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        return DropoutRates(**{name.strip(): float(rate) for name, rate in given.items()})
    except (TypeError, ValueError) as error:
        expected = f"{text!r} is not NAME=RATE,... with rates below 1 of {', '.join(names)}"
        raise typer.BadParameter(expected, param_hint="--dropout") from error
