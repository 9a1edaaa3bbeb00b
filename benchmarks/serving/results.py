"""What ``python -m benchmarks.serve`` found: as tables, as JSON, and as a plot."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.serving.capacity import Resident
from benchmarks.serving.measure import Conditions, Figures
from rlstm_server.engine.models import ServedModel
from rlstm_server.schemas.text import AdaptationChoice

HEADERS: Final = (
    "sessions",
    "through",
    "tokens/s",
    "of engine",
    "append p50",
    "p99",
    "round",
    "p99",
    "apart",
    "rows",
    "20 bytes p99",
    "in rounds",
)


@dataclass(frozen=True, kw_only=True)
class Results:
    """All figures of one run, and under which conditions they were taken."""

    model: str
    choice: AdaptationChoice
    under: Conditions
    text_bytes: int
    found: Sequence[Figures]
    resident: Resident | None

    @classmethod
    def of(cls, served: ServedModel, under: Conditions, **figures: Any) -> "Results":
        """Those of a model."""
        return cls(model=served.name, choice=served.choose(under.asked), under=under, **figures)

    @property
    def title(self) -> str:
        """The conditions, for people."""
        choice = self.choice
        experts = f"{choice.experts} expert{'s' if choice.experts > 1 else ''}"
        static = "" if choice.experts > 1 else ", static row" if choice.static else ", no static row"
        return (
            f"{self.model}, {choice.kind} of {choice.num_fast_weights:,}, {experts}{static}; "
            f"appends of {self.text_bytes:,} bytes, rounds of {self.under.rows} rows, "
            f"{self.under.threads} threads"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "model": self.model,
            "conditions": {
                "adaptation": asdict(self.choice),
                "bytes": self.text_bytes,
                "scores": self.under.scores,
                "rows": self.under.rows,
                "threads": self.under.threads,
            },
            "rows": [asdict(figures) for figures in self.found],
            "resident": None if self.resident is None else self.resident.to_json(),
        }

    def show(self, *, as_json: bool) -> None:
        """Print one JSON object, or tables."""
        if as_json:
            typer.echo(json.dumps(self.to_json()))
            return
        # What reads a pipe is not helped by lines folded to some width.
        console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
        console.print(self.title)
        if self.found:
            console.print(_table(self.found))
        if self.resident is not None:
            console.print(_sentence(self.resident))

    def save_plot(self, path: Path) -> None:
        """Write the plot. Raises typer.BadParameter when it cannot be written."""
        # Its library is no part of a server.
        from benchmarks.serving.plot import save_plot

        try:
            save_plot(self.title, self.found, path)
        except OSError as error:
            raise typer.BadParameter(
                f"{path}: cannot be written ({error.strerror})", param_hint="--plot"
            ) from error


def _table(found: Sequence[Figures]) -> Table:
    """A line for each number of sessions and way."""
    table = Table(box=None, pad_edge=False)
    for header in HEADERS:
        table.add_column(header, justify="left" if header == "through" else "right", no_wrap=True)
    for figures in found:
        table.add_row(*_cells(figures))
    return table


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.sessions:,}",
        figures.way,
        f"{figures.tokens_per_second:,.0f}",
        "" if figures.of_engine is None else f"{100 * figures.of_engine:.1f} %",
        _ms(figures.append_p50),
        _ms(figures.append_p99),
        _ms(figures.round_mean),
        _ms(figures.round_p99),
        _ms(figures.round_apart),
        f"{figures.rows_a_round:.1f}",
        _ms(figures.short_p99),
        f"{figures.short_rounds:.2f}",
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"


def _sentence(resident: Resident) -> str:
    """What a session takes in memory, and what it was said to take."""
    said = resident.predicted
    parts = (
        f"{said.deltas:,} deltas, {said.states:,} states, {said.mixture:,} mixture, {said.objects:,} objects"
    )
    return (
        f"{resident.sessions:,} sessions in memory: {resident.measured:,.0f} bytes each, "
        f"{resident.ratio:.2f} of the predicted {said.total:,} ({parts})"
    )
