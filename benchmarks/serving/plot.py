"""What ``python -m benchmarks.serve`` found, as a plot: throughput and latency by the number of sessions."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.serving.measure import Figures

WAYS = {"engine": "C0", "http": "C1"}


def save_plot(title: str, found: Sequence[Figures], path: Path) -> None:
    """Write the plot in the format that the file's name ends with. Raises OSError."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    speed, latency = figure.subplots(1, 2)
    figure.suptitle(title, parse_math=False)
    for way, color in WAYS.items():
        own = [figures for figures in found if figures.way == way]
        if own:
            _draw(speed, own, way, color, "-", lambda figures: figures.tokens_per_second)
            _draw(latency, own, f"{way}, p99", color, "-", lambda figures: figures.append_p99)
            _draw(latency, own, f"{way}, p50", color, "--", lambda figures: figures.append_p50)
            _draw(latency, own, f"{way}, 20 bytes, p99", color, ":", lambda figures: figures.short_p99)
    speed.set(ylabel="tokens/s", ylim=(0, None))
    latency.set(ylabel="seconds of an append", yscale="log")
    for axes in (speed, latency):
        _finish(axes, sorted({figures.sessions for figures in found}))
    figure.savefig(path, bbox_inches="tight", dpi=150)


def _draw(
    axes: Axes,
    found: Sequence[Figures],
    label: str,
    color: str,
    style: str,
    value: Callable[[Figures], float],
) -> None:
    points = sorted((figures.sessions, value(figures)) for figures in found)
    x, y = zip(*points, strict=True)
    axes.plot(x, y, style, color=color, label=label, marker=".")


def _finish(axes: Axes, sessions: Sequence[int]) -> None:
    axes.set(xlabel="sessions", xscale="log")
    axes.set_xticks(sessions)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
