"""RunDirectory: a training run on disk, complete enough to go on after a kill at any moment.

    recipe.json         what is run
    metrics.jsonl       one JSON object a line: step, loss, rate, tokens a second; validation results
    checkpoints/N/      weights, optimiser, carried state, positions, generator after N steps
    tensorboard/        the same curves for TensorBoard
    lock                held by the process that trains

A checkpoint is written beside its place and renamed into it, so it is whole or absent. The two newest stay,
and the best that each of them knows of: a run that goes on from either finds the best it had then.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlstm_model.files import partial_of, replace_file, replace_folder, sync
from rlstm_training.config import Recipe

RECIPE, METRICS = "recipe.json", "metrics.jsonl"
KEPT_CHECKPOINTS = 2

LOOK_SECONDS: Final = 0.5
"""How long a lock may be held by one who only looks whether a run is in use."""


class RunError(Exception):
    """A run directory that cannot be used; the message names the file."""


class Diverged(RunError):
    """A run whose loss went wrong for good: its recipe is at fault, and no machine or file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """A checkpoint that was read back; ``damaged`` says what is wrong with each newer one."""

    step: int
    tensors: Mapping[str, Tensor]
    header: Mapping[str, Any]
    damaged: tuple[str, ...] = ()


class RunDirectory:
    """One run. :meth:`open` it to begin or to resume; one made plainly only looks, at any process's run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tensorboard = folder, folder / "tensorboard"
        self._recipe_path, self._metrics_path = folder / RECIPE, folder / METRICS
        self._checkpoints, self._lock_path = folder / "checkpoints", folder / "lock"
        self._lock = FileLock(self._lock_path, is_singleton=False, thread_local=False)

    @classmethod
    def open(cls, folder: Path, recipe: Recipe) -> Self:
        """The run of ``recipe`` in ``folder``, new or to be resumed, for this process alone until closed.

        Raises RunError when the folder holds the run of another recipe or version, or something else,
        or when another process has it open.
        """
        run = cls(folder)
        run._refuse_foreign()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run._acquire()
            if not run._recipe_path.exists():
                replace_file(run._recipe_path, json.dumps(recipe.to_json(), indent=1))
        except OSError as error:
            raise RunError(f"{folder}: cannot be used ({error.strerror})") from error
        try:
            run._refuse_other(recipe)
        except RunError:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Let other processes have the run."""
        self._lock.release(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def recipe(self) -> Recipe:
        """The recipe of this run. Raises RunError when it cannot be read."""
        try:
            return Recipe.from_json(json.loads(self._recipe_path.read_text()))
        except (OSError, ValueError) as error:
            raise RunError(f"{self._recipe_path}: {error}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the metrics. Raises RunError when the disk refuses."""
        try:
            with self._metrics_path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"{self._metrics_path}: cannot be written ({error.strerror})") from error

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of the metrics (a kill may leave half a last line). Raises RunError."""
        if not self._metrics_path.exists():
            return []
        try:
            text = self._metrics_path.read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        except (OSError, ValueError) as error:
            raise RunError(f"{self._metrics_path}: is damaged ({error})") from error

    def forget_after(self, step: int) -> None:
        """Drop the metrics and checkpoints of steps after ``step``: a resumed run writes them again.

        Raises RunError when the metrics are damaged or the disk refuses.
        """
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        try:
            replace_file(self._metrics_path, "".join(kept))
            for newer in self.saved_steps():
                if newer > step:
                    shutil.rmtree(self._checkpoints / str(newer))
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be written ({error.strerror})") from error

    def save(
        self, step: int, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, best_step: int = 0
    ) -> None:
        """Write the checkpoint of ``step``, then remove those that are no longer needed.

        ``best_step`` is the step of the best evaluation so far, 0 before the first.
        Raises RunError when the disk refuses: the checkpoints before stay as they are.
        """
        place = self._checkpoints / str(step)
        beside = partial_of(place)
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            weights = beside / "run.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
            known = {"step": step, "best_step": best_step, "sha256": _sha256(weights)}
            (beside / "run.json").write_text(json.dumps({**known, **header}))
            if self._metrics_path.exists():
                sync(self._metrics_path)
            replace_folder(place, beside)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise RunError(f"{place}: cannot be written, older checkpoints stay ({error})") from error
        for old in set(self.saved_steps()) - self._needed_steps():
            shutil.rmtree(self._checkpoints / str(old))

    def saved_steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        if not self._checkpoints.exists():
            return []
        return sorted(int(path.name) for path in self._checkpoints.iterdir() if path.name.isdigit())

    def _needed_steps(self) -> set[int]:
        needed = set(self.saved_steps()[-KEPT_CHECKPOINTS:])
        for step in tuple(needed):
            with suppress(OSError, ValueError):  # A damaged checkpoint needs no other.
                needed.add(self._header(step).get("best_step", 0))
        return needed

    def newest(self) -> Saved | None:
        """The newest checkpoint that is whole; None in a run that has none yet.

        Raises RunError when there are checkpoints but all are damaged.
        """
        damaged: list[str] = []
        for step in reversed(self.saved_steps()):
            try:
                return replace(self.load(step), damaged=tuple(damaged))
            except RunError as error:
                damaged.append(str(error))
        if damaged:
            raise RunError("; ".join(damaged))
        return None

    def best(self) -> Saved | None:
        """The checkpoint of the best evaluation, or, in a run without one, the newest; None without any.

        Raises RunError when it is damaged.
        """
        newest = self.newest()
        if newest is None or newest.header["best_step"] in (0, newest.step):
            return newest
        return self.load(newest.header["best_step"])

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        steps = self.saved_steps()
        try:
            return bool(steps) and bool(self._header(steps[-1]).get("finished"))
        except (OSError, ValueError):
            return False

    def load(self, step: int) -> Saved:
        """The checkpoint of ``step``. Raises RunError when it is damaged."""
        place = self._checkpoints / str(step)
        weights = place / "run.safetensors"
        try:
            header = self._header(step)
            if header["sha256"] != _sha256(weights):
                raise ValueError("run.safetensors is not what was written")
            return Saved(step=step, tensors=load_file(weights), header=header)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise RunError(f"{place}: is damaged ({error})") from error

    def _header(self, step: int) -> dict[str, Any]:
        header: dict[str, Any] = json.loads((self._checkpoints / str(step) / "run.json").read_text())
        return header

    @property
    def in_use(self) -> bool:
        """Whether a process has the run open."""
        if not self._lock_path.exists():
            return False
        try:
            with FileLock(self._lock_path, timeout=0, is_singleton=False):
                return False
        except Timeout:
            return True

    def _refuse_foreign(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is not a folder")
        if self._recipe_path.exists() or not self.folder.exists():
            return
        # A kill right after the beginning leaves these.
        ours = {self._lock_path.name, partial_of(self._recipe_path).name}
        if {path.name for path in self.folder.iterdir()} - ours:
            raise RunError(f"{self.folder} is not empty and is no run directory")

    def _refuse_other(self, recipe: Recipe) -> None:
        found = self.recipe()
        if found != recipe:
            names = sorted(name for name, value in vars(recipe).items() if getattr(found, name) != value)
            raise RunError(f"{self._recipe_path} is the recipe of another run: {', '.join(names)} differ")

    def _acquire(self) -> None:
        """The system lets go of the lock when its process ends, however it ends."""
        try:
            self._lock.acquire(timeout=LOOK_SECONDS)
        except Timeout:
            raise RunError(f"{self.folder} is being trained by another process") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
