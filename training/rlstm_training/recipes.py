"""Recipes by name (``recipes.toml``): those of one CPU core, the rows of the papers' tables, an ablation."""

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlstm_model.config import ModelConfig
from rlstm_training.config import Recipe

_TABLE: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)


def _joined(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all tables, those of a later one before; tables in them are joined in the same way."""
    joined: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            before = joined.get(name)
            joined[name] = _joined(before, value) if isinstance(before, dict) else value
    return joined


def _fields(name: str) -> dict[str, Any]:
    """A recipe's own fields and those of its bases."""
    own = dict(_TABLE[name])
    bases = own.pop("base", [])
    return _joined(*map(_fields, [bases] if isinstance(bases, str) else bases), own)


def _recipe(name: str) -> Recipe:
    fields: dict[str, Any] = {
        field: None if value is False else value for field, value in _fields(name).items()
    }
    fields.pop("published", None)
    weights = fields.pop("weights", None)
    model = ModelConfig(**{"hidden_size": 1, **fields.pop("model")})
    return Recipe(
        name=name,
        model=model if weights is None else model.with_budget(weights),
        **fields,
    )


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    name: partial(_recipe, name) for name in _TABLE if not name.startswith("_")
}

PUBLISHED: Mapping[str, tuple[float, float]] = {
    name: (table["published"][0], table["published"][1])
    for name, table in _TABLE.items()
    if "published" in table
}
"""The published rows: perplexity of words, bits per character or byte, on test; static, then dynamic."""
