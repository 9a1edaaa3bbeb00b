"""Recipes by name: functions that return a complete :class:`rlstm_training.config.Recipe`."""

from collections.abc import Callable

from rlstm_training.config import Recipe
from rlstm_training.recipes.bytes_small import bytes_small

RECIPES: dict[str, Callable[[], Recipe]] = {"bytes-small": bytes_small}
