"""The search space: the ranges that the paper's tuner drew from, and the recipe that a draw makes.

Melis et al. 2020, appendix, as Melis 2022 used them (mathematics: §2.16, §3): the dropout between layers is
read as the cells' dropout, and T_max of the Chrono initialisation joins. The size of the embeddings is not
drawn: here it is the hidden size.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Recipe

RangesName = Literal["words", "enwik8"]
Values = Mapping[str, Any]

MOST_ROUNDS, MOST_RANK = 6, 100


def _ranges(*, embedding: float, cell: float, state: float, output: float) -> dict[str, BaseDistribution]:
    """What both sets share, and dropout rates from 0 to those given."""
    return {
        "learning_rate": FloatDistribution(1e-3, 4e-3, log=True),
        "l2": FloatDistribution(5e-6, 1e-3, log=True),
        "dropout_input": FloatDistribution(0.0, embedding),
        "dropout_cell": FloatDistribution(0.0, cell),
        "dropout_state": FloatDistribution(0.0, state),
        "dropout_output": FloatDistribution(0.0, output),
        "rounds": IntDistribution(0, MOST_ROUNDS),
        "rank": IntDistribution(-20, MOST_RANK),
        "chrono_max": FloatDistribution(math.exp(2), math.exp(5), log=True),
    }


RANGES: Mapping[RangesName, dict[str, BaseDistribution]] = {
    "words": _ranges(embedding=0.9, cell=0.95, state=0.8, output=0.95),
    "enwik8": _ranges(embedding=0.2, cell=0.2, state=0.25, output=0.25),
}


def ranges_for(recipe: Recipe) -> RangesName:
    """Those of enwik8 for bytes and for text8, its letters; else those of the paper's smaller corpora."""
    letters = all(source.corpus.endswith("text8") for source in recipe.sources)
    return "enwik8" if recipe.vocab == "bytes" or letters else "words"


def drawn_recipe(base: Recipe, values: Values, *, budget: int) -> Recipe:
    """``base`` with what was drawn, as wide as ``budget`` weights allow.

    A rank of at most 0 is full rank. The ranges' l2 belongs to a loss summed over time, as published
    (mathematics: §2.7): it is converted where ``base`` has the mean over tokens. Raises ConfigError when no
    width has so few weights.
    """
    model = replace(base.model, mogrifier_rounds=values["rounds"], mogrifier_rank=max(0, values["rank"]))
    return replace(
        base,
        model=model.with_budget(budget),
        learning_rate=values["learning_rate"],
        l2=values["l2"] * base.loss_factor / base.window,
        dropout=DropoutRates(
            input=values["dropout_input"],
            cell=values["dropout_cell"],
            state=values["dropout_state"],
            output=values["dropout_output"],
        ),
        chrono_max=values["chrono_max"],
    )


def least_budget(base: Recipe) -> int:
    """The weights that suffice for every draw: the largest mogrifier around a single unit a layer."""
    widest = replace(base.model, hidden_size=1, mogrifier_rounds=MOST_ROUNDS, mogrifier_rank=MOST_RANK)
    return widest.num_parameters


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how. A study belongs to one search.

    recipe     of every draw, but for what is drawn
    ranges     which of the paper's sets of ranges
    budget     weights that a draw's model may have at most; its width follows
    strategy   "random": independent draws, as for the paper's larger corpora; "tpe": each draw knows the
               results before it (Bergstra et al. 2011)
    seed       of the draws; that of every run is the recipe's
    """

    recipe: Recipe
    ranges: RangesName
    budget: int
    strategy: Literal["tpe", "random"] = "tpe"
    seed: int = 1

    def __post_init__(self) -> None:
        least = least_budget(self.recipe)
        if self.budget < least:
            raise ValueError(f"budget must be at least {least:,} weights for every draw, not {self.budget:,}")

    def drawn(self, number: int, values: Values) -> Recipe:
        """The recipe of draw ``number``, which got ``values``."""
        recipe = drawn_recipe(self.recipe, values, budget=self.budget)
        return replace(recipe, name=f"{self.recipe.name}-draw-{number}")

    def sampler(self, number: int) -> BaseSampler:
        """What makes draw ``number``.

        Each draw has its own: a seeded sampler would begin anew in every process, and repeat its draws.
        """
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        if self.strategy == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, constant_liar=True)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that tells searches apart."""
        return {**asdict(self), "recipe": self.recipe.to_json()}
