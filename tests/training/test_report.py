"""`rlstm report`: what runs on disk say, whatever state they are in, and pages that no name can break."""

import json
import math
import re
import shlex
import statistics
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from rlstm_training.config import Source
from rlstm_training.recipes import RECIPES
from rlstm_training.report import (
    best_first,
    command_for,
    comparison_plots,
    detail_plots,
    differences,
    groups_of,
    read_runs,
    svg,
)
from rlstm_training.run import RunDirectory

EVIL = "<script>alert(1)</script>|`$x$` & [a](b) *c*"
RESET = {"step": 25, "reset": {"to_step": 20, "rate_scale": 0.9, "why": "loss nan"}}


@pytest.fixture
def make_run(tmp_path, toy_recipe):
    """Writes a run directory: an evaluation of ``losses`` (nats a token) every ten steps of forty."""

    def make(place="run", losses=(3.0, 2.0), *, finished=False, records=(), **changes):
        recipe = toy_recipe(**{"steps": 40, "window": 8, "evaluate_every": 10, **changes})
        with RunDirectory.open(tmp_path / "in" / place, recipe) as run:
            for step, nats in zip(range(10, 50, 10), losses, strict=False):
                run.log({"step": step, "loss": nats + 0.5, "rate": 0.01, "tokens_per_second": 64.0 + step})
                losses_of = {"raw": nats + 0.1, "short": None, "long": nats, "reported": nats}
                lengths = {"short": 0, "long": step, "reported": step}
                valid = {"step": step, "valid": {"text": 9.0}, "nats": losses_of, "lengths": lengths}
                run.log({**valid, "seconds": step * 2.0})
            for record in records:
                run.log(record)
            if losses:
                run.save(10 * len(losses), {"w": torch.zeros(1)}, {"finished": finished})
        return run.folder

    return make


@pytest.fixture
def runs(make_run, tmp_path):
    """Makes runs, one for each set of arguments, and reads them all."""

    def read(*several):
        for number, changes in enumerate(several):
            make_run(f"run-{number}", **changes)
        return read_runs([tmp_path / "in"])[0]

    return read


@pytest.fixture
def rlstm_report(rlstm, tmp_path, monkeypatch):
    """Types `rlstm report` and what follows, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    return partial(rlstm, "report")


def test_a_row_holds_a_runs_figures(runs):
    """The best evaluation in the published measure and what it was of; tokens, clock, median speed."""
    first, empty = runs({"losses": (3.0, 2.0, 2.5), "records": [RESET]}, {"losses": (), "seed": 2})
    row = first.row()
    expected = {
        "measure": "bits per byte",
        "best_step": 20,
        "best_weights": "average of 20",
        "rank": 3,
        "step": 30,
        "steps": 40,
        "tokens": 30 * 4 * 8,
        "seconds": 60.0,
        "tokens_per_second": 84.0,
        "resets": 1,
        "weights": first.recipe.model.num_parameters,
        "corpus": "three, one",
    }
    assert row.items() >= expected.items()
    assert row["best"] == pytest.approx(2.0 / math.log(2))
    never = [empty.row()[name] for name in ("best", "best_step", "best_weights", "seconds")]
    assert never == [None] * 4


def test_every_status_is_told(make_run, tmp_path):
    """Finished, also before its steps are all done; running; interrupted; not begun."""
    make_run("stopped early", finished=True)
    make_run("whole", losses=(4, 3, 2, 1))
    make_run("interrupted")
    make_run("new", losses=())
    going = make_run("running")
    with RunDirectory.open(going, RunDirectory(going).recipe()):
        found, problems = read_runs([tmp_path / "in"])
        statuses = {run.label: run.status for run in found}
    finished = {"stopped early": "finished", "whole": "finished", "running": "running"}
    assert statuses == {**finished, "interrupted": "interrupted", "new": "not begun"}
    assert problems == []


def test_runs_are_found_at_any_depth(make_run, tmp_path):
    """Their labels are their paths from where they part; none is told twice, none is sought within a run."""
    inner, outer = make_run("a/deep/run"), make_run("b")
    (outer / "copy").mkdir()
    (outer / "copy" / "recipe.json").write_text("{}")
    found, problems = read_runs([tmp_path / "in", inner, outer])
    assert ([run.label for run in found], problems) == (["a/deep/run", "b"], [])
    assert [run.label for run in read_runs([inner])[0]] == ["run"]


def test_what_is_damaged_is_named_and_the_rest_is_read(make_run, tmp_path):
    """A report goes on past anything; half a last line, which a process is writing, is no damage."""
    make_run("good")
    broken = {"cut": '{"format', "list": "[]", "newer": '{"format_version": 99}', "gone": None}
    for name, recipe in broken.items():
        path = make_run(name) / "recipe.json"
        path.unlink() if recipe is None else path.write_text(recipe)
    bad = ["nonsense", "[1]", "7", '{"loss": 1}', '{"step": 1, "loss": "x"}', "{}", '{"step": 2, "nats": 7}']
    later = json.dumps({"step": 30, "nats": {"reported": 2.5}})
    with (make_run("lines") / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n".join([*bad, later, '{"step": 40, "lo']))
    found, problems = read_runs([tmp_path / "in"])
    told = {problem.folder.name: problem.what for problem in problems}
    assert {run.label for run in found} == {"good", "lines"}
    assert set(told) == {*broken, "lines"}
    assert "format_version must be" in told["newer"]
    assert told["lines"] == "metrics.jsonl: cannot read line 5, 6, 7, 8, 9, …; shown without"
    (lines,) = [run for run in found if run.label == "lines"]
    assert [step for step, _ in lines.curves.of("nats/reported")] == [10, 20, 30]


def test_a_loss_that_is_no_number_is_never_the_best(runs):
    """The first of the lowest is."""
    records = [
        {"step": step, "nats": {"reported": nats}} for step, nats in enumerate([3.0, 2.0, math.nan, 2.0])
    ]
    (run,) = runs({"losses": (), "records": records})
    assert run.curves.best == (1, 2.0)


def test_only_what_differs_is_told(runs):
    """One value a group, in order; seeds and names tell nothing apart."""
    found = runs({"seed": 1}, {"seed": 2, "name": "other"}, {"learning_rate": 0.5, "l2": 0.25})
    assert differences(groups_of(found)) == {"learning_rate": ["0.01", "0.5"], "l2": ["0.0001", "0.25"]}


def test_seeds_are_one_group_with_its_spread(runs):
    """Over finished runs: what was cut off would only blur it."""
    results = (2.0, 2.5, 1.5)
    several = [{"seed": seed, "losses": (3.0, nats), "finished": True} for seed, nats in enumerate(results)]
    (group,) = groups_of(runs(*several, {"seed": 9, "losses": (0.5,)}))
    told, bits = group.to_json(), [nats / math.log(2) for nats in results]
    assert (len(group.runs), group.label) == (4, "run-0 and 3 more")
    assert told["mean"] == pytest.approx(statistics.fmean(bits))
    assert told["spread"] == pytest.approx(statistics.stdev(bits))
    assert replace(group, results=bits[:1]).to_json()["spread"] is None


def test_the_best_comes_first_within_its_measure(runs):
    """Perplexities and bits are not mixed; runs without a result are last."""
    several = [{"losses": (3.0,)}, {"losses": (1.0,), "vocab": "words"}, {"losses": ()}, {"losses": (2.0,)}]
    assert [run.label for run in best_first(runs(*several))] == ["run-3", "run-0", "run-2", "run-1"]


def test_the_command_trains_the_same_recipe(tmp_path):
    """By name where the collection has it, else by the file; whatever the folder is called."""
    named = replace(RECIPES["tiny"](), steps=7, seed=3)
    for name, recipe in (("named", named), ("odd; 'folder", replace(named, window=31))):
        with RunDirectory.open(tmp_path / "in" / name, recipe):
            pass
    odd, plain = sorted(read_runs([tmp_path / "in"])[0], key=lambda run: run.recipe.window)
    again = ["tiny", "--steps", "7", "--seed", "3", "--run", f"{plain.folder}-again"]
    assert shlex.split(command_for(plain)) == ["rlstm", "train", *again]
    by_file = ["--recipe", str(odd.folder / "recipe.json"), "--run", f"{odd.folder}-again"]
    assert shlex.split(command_for(odd)) == ["rlstm", "train", *by_file]


def _texts(picture):
    elements = ElementTree.fromstring(picture).iter()
    return [element.text.lstrip("\u200b") for element in elements if element.tag.endswith("text")]


def test_every_curve_is_drawn(runs):
    """Of all runs by measure, over steps and tokens; of one run every average, and its resets."""
    found = runs({"records": [RESET]}, {"vocab": "words", "seed": 2})
    titles = [title for title, _ in comparison_plots(found)]
    assert titles == [
        *(f"validation over {unit}, bits per byte" for unit in ("steps", "tokens")),
        *(f"validation over {unit}, perplexity" for unit in ("steps", "tokens")),
        *("training loss", "learning rate", "speed", "length of the reported average"),
    ]
    (_, losses), (_, lengths) = detail_plots(found[0])
    assert {"reported", "raw", "long average", "diverged, back to step 20"} <= set(_texts(losses))
    assert {"short average", "iterates"} <= set(_texts(lengths))
    assert comparison_plots([]) == []


@pytest.mark.parametrize("label", [r"$\frac$", "<script>", "--><b>", "_hidden", "漢字", "a & b", "{x}"])
def test_text_is_drawn_as_it_is(label):
    """Neither mathematics nor markup is read into it; the same curves are the same picture."""
    lines = [(label, [(1, 2.0), (2, 1e4)], {})]
    pictures = [svg(label, "steps", "bits", lines, log=True, cut=True) for _ in range(2)]
    assert _texts(pictures[0]).count(label) == 2
    assert "1,000" in _texts(pictures[0])
    assert pictures[0] == pictures[1]


def test_pictures_on_one_page_do_not_share_names():
    """What one refers to, the other does not define."""
    lines = [("a", [(step, 5.0 / step) for step in range(1, 3000)], {})]
    first, second = (svg(title, "x", "y", lines, marks=[(3, 1)]) for title in ("first", "second"))
    referred = set(re.findall(r'(?:url\(|href=")#([^")]+)', first))
    assert referred
    assert not referred & set(re.findall(r'id="([^"]+)"', second))


class _Page(HTMLParser):
    """Collects a page's tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def evil_runs(make_run):
    """Two seeds, another recipe, and a run that cannot be read, all of evil names."""
    name = EVIL.replace("/", "")
    for seed in (1, 2):
        make_run(f"{name}-{seed}", seed=seed, name=EVIL, finished=True)
    make_run("other", name="other", window=9, losses=())
    (make_run(f"{name}-broken") / "recipe.json").write_text("{")


@pytest.mark.usefixtures("evil_runs")
def test_html_needs_nothing_and_no_name_becomes_markup(rlstm_report):
    """Every table and figure is inside, and no address leads out."""
    done = rlstm_report("in", "--out", "out/page.html")
    assert (done.exit_code, done.stdout) == (0, "report: out/page.html\n")
    assert [path.name for path in Path("out").iterdir()] == ["page.html"]
    page = _Page(Path("out/page.html").read_text())
    assert page.tags.count("table") == 3
    assert page.tags.count("svg") > 8
    assert "script" not in page.tags
    assert EVIL in page.text
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    headings = ("What could not be read", "What differs between recipes", "Seeds", "2 of 2", "bits per byte")
    assert all(heading in page.text for heading in headings)


@pytest.mark.usefixtures("evil_runs")
def test_markdown_has_its_figures_beside_it(rlstm_report):
    """Links lead to pictures, stale ones are gone; tables are whole, and markup in names is escaped."""
    rlstm_report("in", "--out", "out/page.md")
    stale = Path("out/page-figures/99.svg")
    stale.touch()
    rlstm_report("in", "--out", "out/page.md")
    text = Path("out/page.md").read_text()
    links = re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE)
    assert len(links) > 8
    assert all((Path("out") / link).read_text().startswith("<svg") for link in links)
    assert not stale.exists()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert not re.search(r"(?<!\\)<script", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_json_holds_the_tables(rlstm_report, make_run):
    """Strict JSON on standard output, problems on standard error too, and no page unless asked for one."""
    make_run("one", records=[{"step": 40, "loss": math.nan}])
    broken = make_run("broken")
    (broken / "recipe.json").write_text("{")
    done = rlstm_report("in", "--json")
    told = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    (row,) = told["runs"]
    assert (row["run"], row["best_step"]) == ("one", 20)
    assert (told["groups"][0]["runs"], told["differences"]) == (["one"], {})
    assert told["problems"][0]["folder"] == str(Path("in") / "broken")
    assert done.stderr.startswith("rlstm: in/broken: recipe.json: ")
    assert not Path("report.html").exists()
    assert rlstm_report("in").stdout == "report: report.html\n"


def test_what_cannot_be_reported_on_is_an_error(rlstm_report, make_run):
    """Wrong usage and nowhere to write are 2, work that failed 1; each in words."""
    run = make_run()
    Path("empty").mkdir()
    Path("file").touch()
    for words, code, message in [
        (["absent"], 2, "does not exist"),
        ([run, "--out", "a.pdf"], 2, "must end in .html or .md"),
        (["empty"], 1, "holds no run"),
        (["file"], 1, "is not a folder"),
        ([run, "--out", "file/a.html"], 2, "cannot be written"),
    ]:
        done = rlstm_report(*words)
        assert done.exit_code == code, words
        assert message in done.stderr


def test_transformers_stand_beside_runs_on_their_corpora(rlstm_report, make_run):
    """As they were published; a report on other corpora has none."""
    make_run("ours")
    rlstm_report("in", "--out", "out/page.md")
    assert "Transformer" not in Path("out/page.md").read_text()
    make_run("theirs", sources=(Source(corpus="enwik8", rows=2),))
    rlstm_report("in", "--out", "out/page.md")
    assert "Transformer-XL, 277 M weights | 0.99" in Path("out/page.md").read_text()
