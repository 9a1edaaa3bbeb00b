"""``rlstm report``: what runs have reached, side by side, on a page with the curves that TensorBoard has."""

import io
import itertools
import json
import math
import os
import re
import shlex
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click
import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from rlstm_client.cli import inputs
from rlstm_model.files import replace_file
from rlstm_training.commands import console
from rlstm_training.config import Recipe
from rlstm_training.corpora.published import transformers
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import Measure, measure_of, scalars
from rlstm_training.run import METRICS, RECIPE, RunDirectory, RunError

DEFAULT = Path("report.html")
COLOURED, DETAILED, MOST_POINTS = 10, 20, 600
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run's metrics: scalars by TensorBoard's names, steps that went back, seconds in all."""

    scalars: Mapping[str, Points]
    resets: Sequence[tuple[int, int]] = ()
    seconds: float | None = None
    damaged: Sequence[int] = ()

    def of(self, name: str) -> Points:
        """A curve, empty where there is none."""
        return self.scalars.get(name, ())

    @property
    def last_step(self) -> int:
        """The newest step with a record; 0 without any."""
        return int(max((points[-1][0] for points in self.scalars.values()), default=0))

    @property
    def best(self) -> tuple[int, float] | None:
        """The step and the nats a token of the best evaluation, the first of equals."""
        nats, step = min(((nats, step) for step, nats in self.of("nats/reported")), default=(0.0, -1))
        return None if step < 0 else (int(step), nats)


def read_curves(path: Path) -> Curves:
    """The curves in a metrics file, of a running process too. Raises OSError when it cannot be read.

    A line that says nothing is counted and passed over: a report of a damaged run is better than none.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    resets, damaged, seconds = [], [], None
    text = path.read_bytes()
    # A kill, or a process that writes this very moment, leaves half a last line.
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            record = json.loads(line)
            step, new = int(record["step"]), {name: float(value) for name, value in scalars(record)}
            if "reset" in record:
                resets.append((step, int(record["reset"]["to_step"])))
            if "seconds" in record:
                seconds = float(record["seconds"])
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged.append(number)
            continue
        for name, value in new.items():
            if math.isfinite(value):
                curves.setdefault(name, []).append((step, value))
    return Curves(scalars=curves, resets=resets, seconds=seconds, damaged=damaged)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run that could be read. ``label`` tells it from the report's others."""

    label: str
    folder: Path
    recipe: Recipe
    curves: Curves

    @property
    def measure(self) -> Measure:
        """Of its losses."""
        return measure_of(self.recipe.vocab)

    @property
    def status(self) -> str:
        """How far it has come."""
        run = RunDirectory(self.folder)
        if run.finished or self.curves.last_step >= self.recipe.steps:
            return "finished"
        if run.in_use:
            return "running"
        return "interrupted" if self.curves.last_step else "not begun"

    def row(self) -> dict[str, Any]:
        """What the table says of it; a rank of None is full rank, speeds are medians."""
        recipe, model, curves, best = self.recipe, self.recipe.model, self.curves, self.curves.best
        speeds = [speed for _, speed in curves.of("train/tokens_per_second")]
        length = None if best is None else dict(curves.of("lengths/reported")).get(best[0], 1.0)
        return {
            "run": self.label,
            "recipe": recipe.name,
            "status": self.status,
            "cell": model.cell,
            "layers": model.num_layers,
            "hidden": model.hidden_size,
            "rounds": model.mogrifier_rounds,
            "rank": model.mogrifier_rank or None,
            "weights": model.num_parameters,
            "vocabulary": recipe.vocab,
            "corpus": ", ".join(Path(corpus).name for corpus in recipe.corpora),
            "seed": recipe.seed,
            "tokens": curves.last_step * recipe.tokens_per_step,
            "step": curves.last_step,
            "steps": recipe.steps,
            "measure": self.measure.name,
            "best": None if best is None else self.measure.of(best[1]),
            "best_step": None if best is None else best[0],
            "best_weights": None if length is None else f"average of {length:.0f}" if length > 1 else "raw",
            "resets": len(curves.resets),
            "seconds": curves.seconds,
            "tokens_per_second": statistics.median(speeds) if speeds else None,
            "reproduce": command_for(self),
        }


class Problem(NamedTuple):
    """Something that a report could not show, and why."""

    folder: Path
    what: str


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """Every run in ``paths``, each a run directory or a folder with runs at any depth; and what is wrong."""
    runs: list[Run] = []
    problems: list[Problem] = []
    folders = list(dict.fromkeys(folder for path in paths for folder in _find(path, problems)))
    absolute = [folder.resolve() for folder in folders]
    shared = Path(os.path.commonpath(absolute)) if len(absolute) > 1 else None
    for folder, place in zip(folders, absolute, strict=True):
        try:
            recipe = Recipe.from_json(json.loads((folder / RECIPE).read_bytes()))
        except (OSError, ValueError, AttributeError) as error:
            problems.append(Problem(folder, f"{RECIPE}: {error}"))
            continue
        label = folder.name if shared is None else str(place.relative_to(shared))
        runs.append(Run(label=label, folder=folder, recipe=recipe, curves=_curves(folder, problems)))
    return runs, problems


def _find(path: Path, problems: list[Problem]) -> Iterator[Path]:
    """Run directories at and below ``path``; what lies within a run is not looked at."""

    def unreadable(error: OSError) -> None:
        problems.append(Problem(Path(error.filename), str(error.strerror)))

    found = False
    for folder, inner, files in os.walk(path, onerror=unreadable):
        if RECIPE in files or METRICS in files:
            found = True
            inner.clear()
            yield Path(folder)
        inner.sort()
    if not found and path.exists():
        problems.append(Problem(path, "holds no run" if path.is_dir() else "is not a folder"))


def _curves(folder: Path, problems: list[Problem]) -> Curves:
    try:
        curves = read_curves(folder / METRICS)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            problems.append(Problem(folder, f"{METRICS}: {error.strerror}"))
        return Curves(scalars={})
    if curves.damaged:
        lines = ", ".join(map(str, curves.damaged[:5])) + (", …" if curves.damaged[5:] else "")
        problems.append(Problem(folder, f"{METRICS}: cannot read line {lines}; shown without"))
    return curves


def best_first(runs: Sequence[Run]) -> list[Run]:
    """The runs by their best validation loss, those without any last; those of one measure stay together."""
    seen = list(dict.fromkeys(run.measure.name for run in runs))
    return sorted(runs, key=lambda run: (seen.index(run.measure.name), (run.curves.best or (0, math.inf))[1]))


def command_for(run: Run) -> str:
    """The command that trains the same run again elsewhere."""
    recipe, words = run.recipe, ["--recipe", str(run.folder / "recipe.json")]
    base = RECIPES[recipe.name]() if recipe.name in RECIPES else None
    if base is not None and replace(base, steps=recipe.steps, seed=recipe.seed) == recipe:
        changed = [name for name in ("steps", "seed") if getattr(base, name) != getattr(recipe, name)]
        words = [recipe.name]
        for name in changed:
            words += [f"--{name}", str(getattr(recipe, name))]
    return shlex.join(["rlstm", "train", *words, "--run", f"{run.folder}-again"])


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one recipe under different seeds, and the best results of those that are finished."""

    runs: Sequence[Run]
    results: Sequence[float]

    @property
    def label(self) -> str:
        """The first run's, and how many more there are."""
        first, *more = self.runs
        return f"{first.label} and {len(more)} more" if more else first.label

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it; the spread is the sample standard deviation of two or more."""
        results = list(self.results)
        return {
            "runs": [run.label for run in self.runs],
            "measure": self.runs[0].measure.name,
            "results": results,
            "mean": statistics.fmean(results) if results else None,
            "spread": statistics.stdev(results) if len(results) > 1 else None,
        }


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """The runs by recipe, whatever its name and seed, in the order of the runs."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(json.dumps(_content(run.recipe), sort_keys=True), []).append(run)
    groups = []
    for members in together.values():
        bests = [run.curves.best for run in members if run.status == "finished"]
        results = [members[0].measure.of(best[1]) for best in bests if best is not None]
        groups.append(Group(runs=members, results=results))
    return groups


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The fields in which the groups' recipes differ: for each its value in every group, in order."""
    flat = [dict(_flat(_content(group.runs[0].recipe))) for group in groups]
    names = dict.fromkeys(name for fields in flat for name in fields)
    table = {name: [fields.get(name, "") for fields in flat] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def _content(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.to_json().items() if name not in ("name", "seed")}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested fields by dotted names, their values as text; lists as a whole."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif name == "sources":
            yield prefix + name, "; ".join(f"{s['rows']} rows of {s['corpus']} ({s['form']})" for s in value)
        else:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)


def comparison_plots(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Title and SVG of each: validation by measure over steps and over tokens, loss, rate, speed, lengths.

    The best runs are coloured and in order, the others faint behind them.
    """

    def plot(runs: Sequence[Run], name: str, title: str, y: str, x: str = "steps", **more: Any) -> None:
        lines = []
        for place, run in enumerate(runs):
            scale = run.recipe.tokens_per_step if x == "tokens" else 1
            of = run.measure.of if name.startswith("nats/") else float
            points = [(step * scale, of(value)) for step, value in run.curves.of(name)]
            best = place < COLOURED
            style = {"color": f"C{place}" if best else "0.8", "zorder": 2 if best else 1}
            lines.append((run.label if best else "", points, style))
        if any(points for _, points, _ in lines):
            plots.append((title, svg(title, x, y, lines, **more)))

    plots: list[tuple[str, str]] = []
    for measure in {run.measure.name: run.measure for run in runs}.values():
        alike = [run for run in runs if run.measure.name == measure.name]
        for unit in ("steps", "tokens"):
            title = f"validation over {unit}, {measure.name}"
            plot(alike, "nats/reported", title, measure.name, unit, log=measure.digits == 2, cut=True)
    plot(runs, "train/loss", "training loss", "nats per token", cut=True)
    plot(runs, "train/rate", "learning rate", "rate")
    plot(runs, "train/tokens_per_second", "speed", "tokens per second")
    plot(runs, "lengths/reported", "length of the reported average", "iterates")
    return plots


def detail_plots(run: Run) -> list[tuple[str, str]]:
    """One run: validation of raw, averaged and reported weights; the averages' lengths; its resets."""
    plots = []
    for kind, title, y in (("nats", "validation", run.measure.name), ("lengths", "lengths", "iterates")):
        lines = []
        for name, style in (("reported", "C0-"), ("raw", "C1--"), ("short", "C2:"), ("long", "C4-.")):
            of = run.measure.of if kind == "nats" else float
            points = [(step, of(value)) for step, value in run.curves.of(f"{kind}/{name}")]
            label = f"{name} average" if name in ("short", "long") else name
            lines.append((label, points, {"color": style[:2], "linestyle": style[2:]}))
        if any(points for _, points, _ in lines):
            title, log = f"{run.label}: {title}", kind == "nats" and run.measure.digits == 2
            marks = run.curves.resets
            plots.append((title, svg(title, "steps", y, lines, marks=marks, log=log, cut=kind == "nats")))
    return plots


def svg(
    title: str,
    x: str,
    y: str,
    lines: Sequence[tuple[str, Points, Mapping[str, Any]]],
    *,
    marks: Sequence[tuple[int, int]] = (),
    log: bool = False,
    cut: bool = False,
) -> str:
    """Curves with labels and styles as an ``<svg>`` element, the same for the same curves.

    ``cut`` leaves off the top that only the first eighth of the curves reaches: the differences that matter
    are small beside it. Labels are the user's own text, never read as mathematics or as markup.
    """
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        # Elements that refer to each other by id: another plot on the page must not have the same.
        "svg.hashsalt": title,
        "text.parse_math": False,
        "text.usetex": False,
        "axes.titlesize": "medium",
        "lines.linewidth": 1.4,
    }
    file, nameless = io.StringIO(), {"Date": None, "Creator": None, "Format": None, "Type": None}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # The reader's font draws the text, not the one that lacks a letter here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(7.0, 3.6))
        axes = figure.add_subplot(xlabel=x, ylabel=y, title=title)
        for label, points, style in lines:
            thinned = [*points[: -1 : 1 + len(points) // MOST_POINTS], *points[-1:]]
            # Matplotlib keeps labels with an underscore in front out of legends.
            name = f"\u200b{label}" if label.startswith("_") else label or "_"
            marker = "." if len(points) == 1 else ""
            axes.plot([p[0] for p in thinned], [p[1] for p in thinned], label=name, marker=marker, **style)
        for step, to_step in marks:
            axes.axvline(step, color="C3", linestyle=":", label=f"diverged, back to step {to_step}")
        axes.grid(visible=True, alpha=0.3)
        if log:
            axes.set_yscale("log")
            # Decades as numbers: the usual labels of a logarithmic scale are mathematics, which is not read.
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        late = {value for _, points, _ in lines for _, value in points[len(points) // 8 :]}
        if cut and len(late) > 1:
            axes.set_ylim(0.98 * min(late), 1.02 * max(late))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
        figure.savefig(file, format="svg", bbox_inches="tight", metadata=nameless)
    text = file.getvalue()
    return text[text.index("<svg") :]


def tables_of(runs: Sequence[Run], groups: Sequence[Group]) -> Iterator[tuple[str, str, list[Any]]]:
    """Title, what is said above it, and rows by column: runs, what differs, the spread over seeds."""
    rows = [{name: value for name, value in run.row().items() if name != "reproduce"} for run in runs]
    yield "Runs", "The best first; validation text in stripes. Tokens a second: median. No rank: full.", rows
    if differing := differences(groups):
        columns = {"run": [group.label for group in groups], **differing}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        yield "What differs between recipes", "", rows
    if cited := transformers({source.corpus for run in runs for source in run.recipe.sources}):
        yield "Transformers", "Perplexity of words, bits per character or byte, on test, as published.", cited
    rows = []
    for group in (group for group in groups if len(group.runs) > 1):
        lowest, highest = (end(group.results, default=None) for end in (min, max))
        told = group.to_json()
        told["runs"], told["results"] = ", ".join(told["runs"]), f"{len(group.results)} of {len(group.runs)}"
        rows.append({**told, "lowest": lowest, "highest": highest})
    if rows:
        yield "Seeds", "The best of the finished runs of one recipe; spread: sample standard deviation.", rows


def write(runs: Sequence[Run], groups: Sequence[Group], problems: Sequence[Problem], path: Path) -> None:
    """Write ``path``: HTML that needs nothing beside it, or, when it ends in .md, Markdown and figures.

    Nothing that a user named can become markup. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    markdown = path.suffix == ".md"
    figures, numbers = path.with_name(f"{path.stem}-figures"), itertools.count(1)
    if markdown:
        figures.mkdir(exist_ok=True)
        for old in figures.glob("*.svg"):
            old.unlink()

    def figure(drawn: str) -> Markup:
        if not markdown:
            return Markup(drawn)  # noqa: S704
        name = f"{next(numbers):02d}.svg"
        (figures / name).write_text(drawn, encoding="utf-8")
        return Markup(f"{quote(figures.name)}/{name}")  # noqa: S704

    environment = Environment(
        loader=PackageLoader("rlstm_training"),
        autoescape=not markdown,  # noqa: S701
        finalize=partial(_shown, markdown=markdown),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template(f"report{path.suffix}.j2").render(
        problems=problems,
        tables=tables_of(runs, groups),
        comparison=comparison_plots(runs),
        details=[(run.label, command_for(run), detail_plots(run)) for run in runs[:DETAILED]],
        figure=figure,
        fenced=_fenced,
    )
    replace_file(path, page)


def _shown(value: Any, *, markdown: bool) -> Any:
    """Figures for people; for Markdown, text as it is, on one line. What is marked as markup stays."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not markdown or isinstance(value, Markup):
        return value
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", " ".join(str(value).split()))


def _fenced(text: str) -> Markup:
    """For Markdown a block of code, whatever is in it."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}sh\n{text}\n{fence}")  # noqa: S704


@console.command()
@click.argument(
    "runs",
    type=click.Path(exists=True, path_type=Path),
    nargs=-1,
    required=True,
    help="Run directories, or folders that hold some.",
)
@click.option(
    "--out",
    type=inputs.FILE,
    help=f"NAME.html, one file; or NAME.md, figures beside it (default: {DEFAULT}).",
)
@inputs.as_json
def report(runs: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Compare training runs: results, settings that differ, spread over seeds, curves.

    Runs may be finished, running, interrupted or damaged: what cannot be read is named, the rest is shown.
    With --json the tables are printed, and a page is written only to --out.
    """
    if out is not None and out.suffix not in (".html", ".md"):
        raise click.BadParameter(f"{out}: must end in .html or .md", param_hint="--out")
    found, problems = read_runs(runs)
    for problem in problems:
        click.echo(f"rlstm: {problem.folder}: {problem.what}", err=True)
    if not found:
        raise RunError("no run could be read")
    ordered = best_first(found)
    groups, path = groups_of(ordered), out or (None if as_json else DEFAULT)
    if path is not None:
        try:
            write(ordered, groups, problems, path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    if as_json:
        told = {"differences": differences(groups), "groups": [group.to_json() for group in groups]}
        named = [{"folder": str(problem.folder), "what": problem.what} for problem in problems]
        console.show_json({"runs": [run.row() for run in ordered], **told, "problems": named})
    else:
        click.echo(f"report: {path}")
