"""Pages: a report as one HTML file, or as Markdown with its figures beside it."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlstm_training.report.comparison import Group, Row, best_first, differences, groups_of, row_of
from rlstm_training.report.panels import DETAILED, comparison_panels, detail_panels
from rlstm_training.report.plots import Plot, svg
from rlstm_training.report.runs import Problem, Run

_DIGITS = {"perplexity": 2, "perplexity per subword": 2}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a page shows."""

    rows: Sequence[Row]
    groups: Sequence[Group]
    differences: dict[str, list[str]]
    problems: Sequence[Problem]
    comparison: Sequence[Plot]
    details: Sequence[tuple[Run, Sequence[Plot], Row]]

    @property
    def repeated(self) -> list[Group]:
        """The recipes that were run more than once."""
        return [group for group in self.groups if len(group.runs) > 1]


def report_on(runs: Sequence[Run], problems: Sequence[Problem]) -> Report:
    """The report on ``runs``, the best first; single runs are drawn of the best only."""
    ordered = best_first(runs)
    groups = groups_of(ordered)
    rows = [row_of(run) for run in ordered]
    return Report(
        rows=rows,
        groups=groups,
        differences=differences(groups),
        problems=problems,
        comparison=comparison_panels(ordered) if ordered else [],
        details=[
            (run, detail_panels(run), row)
            for run, row in zip(ordered[:DETAILED], rows[:DETAILED], strict=True)
        ],
    )


def write(report: Report, path: Path) -> None:
    """Write ``path``: HTML that needs nothing beside it, or, when it ends in .md, Markdown and figures.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        _write_markdown(report, path)
    else:
        path.write_text(_html().get_template("report.html.j2").render(report=report))


def _write_markdown(report: Report, path: Path) -> None:
    folder = path.with_name(f"{path.stem}-figures")
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    numbers = itertools.count(1)

    def figure(plot: Plot) -> Markup:
        name = f"{next(numbers):02d}.svg"
        (folder / name).write_text(svg(plot))
        return Markup(f"{quote(folder.name)}/{name}")  # noqa: S704

    template = _markdown().get_template("report.md.j2")
    path.write_text(template.render(report=report, figure=figure))


def _html() -> Environment:
    environment = _environment(autoescape=True)
    environment.globals["figure"] = lambda plot: Markup(svg(plot))  # noqa: S704
    return environment


def _markdown() -> Environment:
    return _environment(autoescape=False, finalize=_markdown_text)


def _environment(*, autoescape: bool, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Templates in which nothing that a user named can become markup: by one means or the other."""
    environment = Environment(
        loader=PackageLoader("rlstm_training.report"),
        autoescape=autoescape,  # noqa: S701
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=_number, result=_result, duration=_duration, fenced=_fenced)
    return environment


def _markdown_text(value: Any) -> Any:
    """Text that Markdown shows as it is, on one line; what is marked as markup stays."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    flat = " ".join(value.split())
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", flat)


def _fenced(text: str) -> Markup:
    """A block of code, whatever is in it."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}sh\n{text}\n{fence}")  # noqa: S704


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _result(value: float | None, measure: str) -> str:
    return "" if value is None else f"{value:.{_DIGITS.get(measure, 4)}f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
