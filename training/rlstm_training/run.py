"""RunDirectory: a training run on disk, complete enough to go on after a kill at any moment.

    recipe.json         what is run
    metrics.jsonl       one JSON object a line: step, loss, rate, seconds; validation results
    checkpoints/N/      weights, optimiser, carried state, positions, generators after N steps
    tensorboard/        the same curves for TensorBoard

A checkpoint is written beside its place and renamed into it, so it is whole or absent; the two newest stay.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlstm_training.config import Recipe

KEPT_CHECKPOINTS = 2


class RunError(Exception):
    """A run directory that cannot be used; the message names the file."""


class RunDirectory:
    """One run. Use :meth:`open` to begin or to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path, recipe: Recipe) -> "RunDirectory":
        """The run of ``recipe`` in ``folder``: new, or to be resumed.

        Raises RunError when the folder holds the run of another recipe, or something else.
        """
        run = cls(folder)
        if run._recipe_path.exists():
            found = run.recipe()
            if found != recipe:
                raise RunError(f"{run._recipe_path} is the recipe of another run ({found.name})")
        elif folder.exists() and any(folder.iterdir()):
            raise RunError(f"{folder} is not empty and is no run directory")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _write_whole(run._recipe_path, json.dumps(recipe.to_json(), indent=1))
        return run

    def recipe(self) -> Recipe:
        """The recipe of this run. Raises RunError when it cannot be read."""
        try:
            return Recipe.from_json(json.loads(self._recipe_path.read_text()))
        except (OSError, ValueError) as error:
            raise RunError(f"{self._recipe_path}: {error}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        with self._metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of the metrics (a kill may leave half a last line)."""
        if not self._metrics_path.exists():
            return []
        text = self._metrics_path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after ``step``: a resumed run writes them again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        _write_whole(self._metrics_path, "".join(kept))

    def save(self, step: int, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Write the checkpoint of ``step``, then remove all but the newest two."""
        place = self._checkpoints / str(step)
        beside = self._checkpoints / f"{step}.partial"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside / "run.safetensors")
        (beside / "run.json").write_text(json.dumps({"step": step, **header}))
        for path in beside.iterdir():
            _sync(path)
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)
        _sync(self._checkpoints)
        for old in self.saved_steps()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(self._checkpoints / str(old))

    def saved_steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        if not self._checkpoints.exists():
            return []
        return sorted(int(path.name) for path in self._checkpoints.iterdir() if path.name.isdigit())

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and header of a checkpoint. Raises RunError when it is damaged."""
        place = self._checkpoints / str(step)
        try:
            return load_file(place / "run.safetensors"), json.loads((place / "run.json").read_text())
        except (OSError, ValueError, SafetensorError) as error:
            raise RunError(f"{place}: {error}") from error

    @property
    def tensorboard(self) -> Path:
        """Where TensorBoard's event files go."""
        return self.folder / "tensorboard"

    @property
    def _recipe_path(self) -> Path:
        return self.folder / "recipe.json"

    @property
    def _metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text)
    _sync(beside)
    beside.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
