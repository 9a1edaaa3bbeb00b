"""Plots: lines as SVG or PNG, drawn without any state of the process.

The text of labels is the user's own: it is drawn as it is, never read as mathematics or as markup.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

MOST_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points (x, y), in one of matplotlib's styles; ``color`` counts through its cycle, None is faint grey.

    ``dots`` are single marks on the line, such as divergence resets; ``marked`` shows where its points are.
    """

    label: str
    points: Points
    color: int | None = 0
    style: str = "-"
    dots: Points = ()
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Lines over a shared axis. ``marks`` are vertical: x, and what happened there.

    ``log`` and ``log_x`` are of the scales.
    ``cut_descent`` leaves off the top that only the first eighth of the curves reaches: the differences
    that matter are small beside it.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    marks: Sequence[tuple[float, str]] = field(default=())
    log: bool = False
    log_x: bool = False
    cut_descent: bool = False


def svg(plot: Plot) -> str:
    """The plot as an ``<svg>`` element, the same for the same plot."""
    file = io.StringIO()
    with _settings(plot.name):
        nameless = {"Date": None, "Creator": None, "Format": None, "Type": None}
        _figure(plot).savefig(file, format="svg", bbox_inches="tight", metadata=nameless)
    text = file.getvalue()
    return text[text.index("<svg") :]


def png(plot: Plot) -> bytes:
    """The plot as a PNG image."""
    file = io.BytesIO()
    with _settings(plot.name):
        _figure(plot).savefig(file, format="png", bbox_inches="tight", dpi=150)
    return file.getvalue()


def _figure(plot: Plot) -> Figure:
    figure = Figure(figsize=(7.0, 3.6))
    axes = figure.add_subplot()
    for line in plot.lines:
        _draw(axes, line)
    for x, label in plot.marks:
        axes.axvline(x, color="C3", linestyle=":", linewidth=1.0, label=label)
    axes.set(xlabel=plot.x, ylabel=plot.y, title=plot.title)
    axes.grid(visible=True, alpha=0.3)
    if plot.log:
        axes.set_yscale("log")
    if plot.log_x:
        axes.set_xscale("log")
    if plot.cut_descent:
        _cut_descent(axes, plot.lines)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    return figure


def _draw(axes: Axes, line: Line) -> None:
    points = [point for point in thinned(line.points) if all(map(math.isfinite, point))]
    if not points:
        return
    faint = line.color is None
    color = "0.8" if line.color is None else f"C{line.color % 10}"
    x, y = zip(*points, strict=True)
    label = "_" if faint else _legend_label(line.label)
    marker = "." if line.marked or len(points) == 1 else ""
    width, above = (0.8, 1) if faint else (1.4, 2)
    style = line.style
    axes.plot(x, y, style, color=color, label=label, linewidth=width, zorder=above, marker=marker)
    if line.dots:
        x, y = zip(*line.dots, strict=True)
        axes.plot(x, y, "v", color=color, markersize=6, markeredgecolor="black", zorder=3)


def _legend_label(label: str) -> str:
    # Matplotlib keeps labels with an underscore in front out of legends.
    return f"\u200b{label}" if label.startswith("_") else label


def _cut_descent(axes: Axes, lines: Sequence[Line]) -> None:
    reached = [line.points[len(line.points) // 8][1] for line in lines if len(line.points) > 8]
    finite = [y for line in lines for _, y in line.points if math.isfinite(y)]
    top = max((y for y in reached if math.isfinite(y)), default=None)
    if top is not None and top > min(finite):
        margin = 0.05 * (top - min(finite))
        axes.set_ylim(min(finite) - margin, top + margin)


def thinned(points: Points) -> Points:
    """At most so many points, evenly chosen, the last one among them."""
    stride = -(-len(points) // MOST_POINTS)
    return points if stride < 2 else [*points[:-1:stride], points[-1]]


@contextmanager
def _settings(name: str) -> Iterator[None]:
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        # Elements that refer to each other by id: another plot on the page must not have the same.
        "svg.hashsalt": name,
        "text.parse_math": False,
        "text.usetex": False,
        "axes.titlesize": "medium",
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # The reader's font draws the text, not the one that lacks a letter here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
