"""``rlstm report``: what runs have reached, side by side, on one page."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rlstm_training.commands.console import AsJson, command, show_json
from rlstm_training.report.pages import Report, report_on, write
from rlstm_training.report.runs import read_runs
from rlstm_training.run import RunError

DEFAULT = Path("report.html")


@command
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some.")],
    out: Annotated[
        Path | None,
        typer.Option(help=f"NAME.html, one file; or NAME.md, figures beside it (default: {DEFAULT})."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare training runs: results, settings that differ, spread over seeds, curves.

    Runs may be finished, running, interrupted or damaged: what cannot be read is named, the rest is shown.
    With --json the tables are printed, and a page is written only to --out.
    """
    _check(runs, out)
    found, problems = read_runs(runs)
    for problem in problems:
        typer.echo(f"rlstm: {problem.folder}: {problem.what}", err=True)
    if not found:
        raise RunError("no run could be read")
    told = report_on(found, problems)
    path = out or (None if as_json else DEFAULT)
    if path is not None:
        try:
            write(told, path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    if as_json:
        show_json(_tables(told))
    else:
        typer.echo(f"report: {path}")


def _check(runs: list[Path], out: Path | None) -> None:
    for run in runs:
        if not run.exists():
            raise typer.BadParameter(f"{run}: there is no such folder", param_hint="RUNS")
    if out is not None and out.suffix not in (".html", ".md"):
        raise typer.BadParameter(f"{out}: must end in .html or .md", param_hint="--out")


def _tables(told: Report) -> dict[str, Any]:
    return {
        "runs": [_finite(asdict(row)) for row in told.rows],
        "differences": told.differences,
        "groups": [
            {
                "runs": [run.label for run in group.runs],
                "measure": group.measure.name,
                "results": list(group.results),
                "mean": group.mean,
                "spread": group.spread,
            }
            for group in told.groups
        ],
        "problems": [{"folder": str(problem.folder), "what": problem.what} for problem in told.problems],
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for what is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
