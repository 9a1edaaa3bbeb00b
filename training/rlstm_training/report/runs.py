"""Runs as a report sees them: finished, running, interrupted or damaged, of this version or an older one."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rlstm_training.config import FORMAT_VERSION, Averaging, Recipe
from rlstm_training.report.curves import Curves, read_curves
from rlstm_training.run import RunDirectory

Status = Literal["finished", "running", "interrupted", "not begun"]

RECIPE, METRICS = "recipe.json", "metrics.jsonl"


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run that could be read. ``label`` tells it from the report's others."""

    label: str
    folder: Path
    recipe: Recipe
    curves: Curves
    status: Status
    format_version: int

    @property
    def outdated(self) -> bool:
        """Whether the run was written by an older version, which alone can go on with it."""
        return self.format_version != FORMAT_VERSION


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that a report could not show, and why."""

    folder: Path
    what: str


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """Every run in ``paths``, each a run directory or a folder with runs at any depth; and what is wrong."""
    runs: list[Run] = []
    problems: list[Problem] = []
    folders = list(dict.fromkeys(folder for path in paths for folder in _find(path, problems)))
    for folder, label in zip(folders, _labels(folders), strict=True):
        try:
            recipe, version = _read_recipe(folder / RECIPE)
        except ValueError as error:
            problems.append(Problem(folder=folder, what=f"{RECIPE}: {error}"))
            continue
        curves = _read_curves(folder, problems)
        status = _status(folder, recipe, curves)
        run = Run(
            label=label, folder=folder, recipe=recipe, curves=curves, status=status, format_version=version
        )
        runs.append(run)
    return runs, problems


def _find(path: Path, problems: list[Problem]) -> Iterator[Path]:
    """Run directories at and below ``path``; what lies within a run is not looked at."""

    def unreadable(error: OSError) -> None:
        problems.append(Problem(folder=Path(error.filename), what=str(error.strerror)))

    found = False
    for folder, inner, files in os.walk(path, onerror=unreadable):
        if RECIPE in files or METRICS in files:
            found = True
            inner.clear()
            yield Path(folder)
        inner.sort()
    if not found and path.is_dir():
        problems.append(Problem(folder=path, what="holds no run"))
    elif path.exists() and not path.is_dir():
        problems.append(Problem(folder=path, what="is not a folder"))


def _labels(folders: Sequence[Path]) -> list[str]:
    """The folders' paths from where they part; the name of one alone."""
    absolute = [folder.resolve() for folder in folders]
    if len(absolute) < 2:
        return [folder.name for folder in absolute]
    shared = Path(os.path.commonpath(absolute))
    return [str(folder.relative_to(shared)) for folder in absolute]


def _read_recipe(path: Path) -> tuple[Recipe, int]:
    """A recipe of any format up to this version's: fields that it lacks are what they are without a word.

    Raises ValueError.
    """
    try:
        data: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror) from error
    except ValueError as error:
        raise ValueError(f"is damaged ({error})") from error
    if not isinstance(data, dict):
        raise ValueError("is no recipe")
    version = data.get("format_version")
    if isinstance(version, int) and version < FORMAT_VERSION:
        data = {"averaging": asdict(Averaging()), **data, "format_version": FORMAT_VERSION}
        return Recipe.from_json(data), version
    return Recipe.from_json(data), FORMAT_VERSION


def _read_curves(folder: Path, problems: list[Problem]) -> Curves:
    try:
        curves = read_curves(folder / METRICS)
    except FileNotFoundError:
        return Curves()
    except OSError as error:
        problems.append(Problem(folder=folder, what=f"{METRICS}: {error.strerror}"))
        return Curves()
    if curves.damaged_lines:
        lines = ", ".join(map(str, curves.damaged_lines[:5])) + (", …" if curves.damaged_lines[5:] else "")
        problems.append(Problem(folder=folder, what=f"{METRICS}: cannot read line {lines}; shown without"))
    return curves


def _status(folder: Path, recipe: Recipe, curves: Curves) -> Status:
    run = RunDirectory(folder)
    if run.finished or curves.last_step >= recipe.steps:
        return "finished"
    if run.in_use:
        return "running"
    return "interrupted" if curves.last_step else "not begun"
