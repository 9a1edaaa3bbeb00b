"""`rlstm models`: the shipped models and those in folders of yours, each loaded to see that it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from tabulate import tabulate

from rlstm_model.adaptation.calibration_file import CalibrationError, load_calibration
from rlstm_model.checkpoint import CONFIG, WEIGHTS, CheckpointError, load, shipped_names

RUNS = Path("runs")
DEPTH = 3
"""Folders below one that is searched: a run, its model, and one to sort them by."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A model that is here. ``fault`` says what is wrong with one that cannot be served."""

    name: str
    path: str
    shipped: bool
    bytes: int
    vocabulary: str | None = None
    parameters: int | None = None
    fingerprint: str | None = None
    rules: tuple[str, ...] = ()
    fault: str | None = None


@click.command()
@click.argument(
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    nargs=-1,
    help="Where to look for checkpoints [runs, and the folders of RLSTM_MODEL].",
)
@click.option("as_json", "--json", is_flag=True, help="Print JSON on standard output.")
def models(folders: Sequence[Path], as_json: bool) -> None:
    """List models that `rlstm serve` can serve: name, vocabulary, weights, fingerprint, rules, size, path.

    The rules by which sessions may learn are counted, and named by --json. A model that is damaged is listed
    with what is wrong with it.
    """
    shipped = [_look_at(name, name, shipped=True) for name in shipped_names()]
    local = [_look_at(path, path.name, shipped=False) for path in _checkpoints(folders or _usual_folders())]
    found = [*shipped, *local]
    if as_json:
        click.echo(json.dumps({"models": [asdict(one) for one in found]}))
    else:
        _show(found)


def _usual_folders() -> list[Path]:
    """Give those that are there: of runs, and of the models that a server would serve."""
    served = [one.strip() for one in os.environ.get("RLSTM_MODEL", "").split(",")]
    places = [one if Path(one).is_dir() else one.partition("=")[2] for one in served]  # PLACE or NAME=PLACE
    return [RUNS, *(Path(place) for place in places if place)]


def _checkpoints(folders: Sequence[Path]) -> list[Path]:
    """Find every folder that is, or should be, a checkpoint, each once."""
    found = {path.resolve(): path for folder in folders for path in _within(folder, DEPTH)}
    return sorted(found.values())


def _within(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # somebody else's
        return
    if {WEIGHTS, CONFIG} & {path.name for path in inside}:
        yield folder
    elif depth:
        for path in inside:
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _within(path, depth - 1)


def _look_at(name_or_path: str | Path, name: str, *, shipped: bool) -> Listed:
    """Load a model as a server would."""
    try:
        checkpoint = load(name_or_path)
    except CheckpointError as error:
        folder = Path(name_or_path)
        return Listed(name=name, path=str(folder), shipped=shipped, bytes=_size(folder), fault=str(error))
    fault, rules = None, tuple[str, ...]()
    if checkpoint.adaptation_file is not None:
        try:
            choices = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choices
            rules = tuple(f"{choice.kind}:{choice.num_fast_weights}" for choice in choices)
        except CalibrationError as error:
            fault = str(error)
    return Listed(
        name=name,
        path=str(checkpoint.folder),
        shipped=shipped,
        bytes=_size(checkpoint.folder),
        vocabulary=checkpoint.vocab.kind,
        parameters=checkpoint.parameters.config.num_parameters,
        fingerprint=checkpoint.fingerprint,
        rules=rules,
        fault=fault,
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0


def _show(found: Sequence[Listed]) -> None:
    rows = [
        (
            one.name,
            one.vocabulary or "",
            "" if one.parameters is None else f"{one.parameters:,}",
            (one.fingerprint or "")[:12],
            "" if one.parameters is None else str(len(one.rules) or "none"),
            f"{one.bytes / 1e6:.1f}",
            "shipped" if one.shipped else one.path,
        )
        for one in found
    ]
    headings = ("model", "vocabulary", "weights", "fingerprint", "rules", "MB", "path")
    sides = ["right" if name in ("weights", "rules", "MB") else "left" for name in headings]
    click.echo(tabulate(rows, headings, tablefmt="plain", colalign=sides, disable_numparse=True))
    for one in found:
        if one.fault is not None:
            click.echo(f"broken: {one.name}: {one.fault}")
