"""Recipes by name: functions that return a complete :class:`rlstm_training.config.Recipe`."""

from collections.abc import Callable

from rlstm_training.config import Recipe
from rlstm_training.recipes.bytes_small import bytes_small
from rlstm_training.recipes.characters_small import characters_small
from rlstm_training.recipes.tiny import tiny
from rlstm_training.recipes.words_small import words_small

RECIPES: dict[str, Callable[[], Recipe]] = {
    "bytes-small": bytes_small,
    "characters-small": characters_small,
    "tiny": tiny,
    "words-small": words_small,
}
