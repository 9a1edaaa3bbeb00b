"""The table of recipes."""

from typing import Any

from rlstm_training.commands.console import show_json, show_table
from rlstm_training.config import Recipe
from rlstm_training.corpora import missing_files
from rlstm_training.recipes import RECIPES

HEADERS = ("recipe", "weights", "vocabulary", "layers", "rows x tokens x samples", "steps", "corpora")


def show_recipes(*, as_json: bool) -> None:
    """All recipes in one table, each with what it reads, and whether that is here. Raises CorpusError."""
    rows = [_row(RECIPES[name]()) for name in RECIPES]
    if as_json:
        show_json({"recipes": rows})
        return
    show_table(HEADERS, [_cells(row) for row in rows])


def _row(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model
    corpora = dict.fromkeys(source.corpus for source in recipe.sources)
    return {
        "recipe": recipe.name,
        "weights": model.num_parameters,
        "vocabulary": {"kind": recipe.vocab, "size": model.vocab_size},
        "cell": model.cell,
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "rows": recipe.rows,
        "window": recipe.window,
        "dropout_samples": recipe.dropout_samples,
        "steps": recipe.steps,
        "corpora": {name: not missing_files(name) for name in corpora},
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    vocabulary = row["vocabulary"]
    return (
        row["recipe"],
        f"{row['weights']:,}",
        f"{vocabulary['size']:,} {vocabulary['kind']}",
        f"{row['layers']} {row['cell']} of {row['hidden_size']}",
        f"{row['rows']} x {row['window']} x {row['dropout_samples']}",
        f"{row['steps']:,}",
        ", ".join(name + ("" if here else " (not here)") for name, here in row["corpora"].items()),
    )
