"""Panels: which curves of which runs are drawn together."""

from collections.abc import Callable, Sequence

from rlstm_training.report.comparison import best_first
from rlstm_training.report.curves import Measure, Validation, measure_of
from rlstm_training.report.plots import Line, Plot, Points
from rlstm_training.report.runs import Run

COLOURED, DETAILED = 10, 20

Curve = Callable[[Run], Points]


def comparison_panels(runs: Sequence[Run]) -> list[Plot]:
    """All runs in each: validation by measure over steps and over tokens, loss, rate, speed, lengths."""
    panels = []
    for name in dict.fromkeys(measure_of(run.recipe.vocab).name for run in runs):
        alike = [run for run in runs if measure_of(run.recipe.vocab).name == name]
        panels += [_validation_over(alike, tokens=tokens) for tokens in (False, True)]
    panels += [
        _panel(runs, "training loss", "nats per token", _training("loss"), cut_descent=True),
        _panel(runs, "learning rate", "rate", _training("rate")),
        _panel(runs, "speed", "tokens per second", _training("tokens_per_second")),
        _panel(runs, "length of the reported average", "iterates", _lengths("length")),
    ]
    return [panel for panel in panels if any(line.points for line in panel.lines)]


def detail_panels(run: Run) -> list[Plot]:
    """One run: validation of raw, averaged and reported weights; the averages' lengths; its resets."""
    measure = measure_of(run.recipe.vocab)
    marks = [(reset.step, f"diverged, back to step {reset.to_step}") for reset in run.curves.resets]
    losses = [
        Line(label="reported", points=_validation(run, measure, "nats"), color=0),
        Line(label="raw", points=_validation(run, measure, "raw"), color=1, style="--"),
        Line(label="short average", points=_validation(run, measure, "short"), color=2, style=":"),
        Line(label="long average", points=_validation(run, measure, "long"), color=4, style="-."),
    ]
    lengths = [
        Line(label="reported", points=_lengths("length")(run), color=0),
        Line(label="short average", points=_lengths("short_length")(run), color=2, style=":"),
        Line(label="long average", points=_lengths("long_length")(run), color=4, style="-."),
    ]
    panels = [
        Plot(
            name=f"{run.label} validation",
            title=f"{run.label}: validation",
            x="steps",
            y=measure.name,
            lines=_present(losses),
            marks=marks,
            log=_logarithmic(measure),
            cut_descent=True,
        ),
        Plot(
            name=f"{run.label} lengths",
            title=f"{run.label}: averages' lengths",
            x="steps",
            y="iterates",
            lines=_present(lengths),
            marks=marks,
        ),
    ]
    return [panel for panel in panels if panel.lines]


def _validation_over(runs: Sequence[Run], *, tokens: bool) -> Plot:
    measure = measure_of(runs[0].recipe.vocab)

    def curve(run: Run) -> Points:
        scale = run.recipe.tokens_per_step if tokens else 1
        return [(step * scale, value) for step, value in _validation(run, measure, "nats")]

    def resets(run: Run) -> Points:
        """On the curve, where it was last seen before each reset."""
        scale = run.recipe.tokens_per_step if tokens else 1
        points = curve(run)
        before = [
            [point for point in points if point[0] <= reset.step * scale] for reset in run.curves.resets
        ]
        return [seen[-1] for seen in before if seen]

    unit = "tokens" if tokens else "steps"
    title = f"validation over {unit}, {measure.name}"
    return _panel(
        runs, title, measure.name, curve, x=unit, dots=resets, log=_logarithmic(measure), cut_descent=True
    )


def _panel(
    runs: Sequence[Run],
    title: str,
    y: str,
    curve: Curve,
    *,
    x: str = "steps",
    dots: Curve = lambda run: (),
    log: bool = False,
    cut_descent: bool = False,
) -> Plot:
    """A line a run, the best coloured and in order, the others faint behind them."""
    lines = [
        Line(
            label=run.label,
            points=curve(run),
            color=place if place < COLOURED else None,
            dots=dots(run),
        )
        for place, run in enumerate(best_first(runs))
    ]
    return Plot(name=title, title=title, x=x, y=y, lines=lines, log=log, cut_descent=cut_descent)


def _training(name: str) -> Curve:
    return lambda run: [(point.step, getattr(point, name)) for point in run.curves.training]


def _lengths(name: str) -> Curve:
    return lambda run: _known(run.curves.validations, name)


def _validation(run: Run, measure: Measure, name: str) -> Points:
    return [(step, measure.of(nats)) for step, nats in _known(run.curves.validations, name)]


def _known(points: Sequence[Validation], name: str) -> Points:
    values = [(point.step, getattr(point, name)) for point in points]
    return [(step, float(value)) for step, value in values if value is not None]


def _present(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.points]


def _logarithmic(measure: Measure) -> bool:
    return measure.name.startswith("perplexity")
