import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlstm_training.report.pages import report_on, write
from rlstm_training.report.runs import Problem, read_runs

EVIL = "<script>alert(1)</script>|`$x$` & [a](b) *c*"


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
def written(make_run, tmp_path):
    """Writes a report on two seeds, another recipe and a problem, all of them of evil names."""

    def write_to(name):
        for seed in (1, 2):
            make_run(f"in/{EVIL.replace('/', '')}-{seed}", seed=seed, name=EVIL, finished=True)
        make_run("in/other", name="other", window=9, losses=())
        runs, _ = read_runs([tmp_path / "in"])
        problems = [Problem(folder=Path(EVIL), what=EVIL)]
        report = report_on(runs, problems)
        write(report, tmp_path / "out" / name)
        return report, tmp_path / "out" / name

    return write_to


def test_html_holds_everything_and_needs_nothing(written):
    """Every table and figure is inside, and no address leads out but the names of XML."""
    report, path = written("report.html")
    page = _Page(path.read_text())
    plots = len(report.comparison) + sum(len(plots) for _, plots, _ in report.details)
    assert page.tags.count("svg") == plots > 8
    assert page.tags.count("table") == 3
    assert [path] == list(path.parent.iterdir())
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    for words in (
        "What could not be read",
        "What differs between recipes",
        "Seeds",
        "2 of 2",
        "bits per byte",
    ):
        assert words in page.text


def test_names_never_become_html(written):
    """Runs, recipes and problems are text, in tables and in figures."""
    _, path = written("report.html")
    page = _Page(path.read_text())
    assert "script" not in page.tags
    assert EVIL in page.text
    assert "alert(1)" not in "".join(value or "" for name, value in page.attributes if name.startswith("on"))


def test_markdown_has_its_figures_beside_it(written):
    """Every link leads to a picture; those of the report before are gone."""
    (stale := written("report.md")[1].parent / "report-figures" / "99.svg").touch()
    report, path = written("report.md")
    links = re.findall(r"^!\[.*\]\((.*)\)$", path.read_text(), re.MULTILINE)
    assert len(links) == len(report.comparison) + sum(len(plots) for _, plots, _ in report.details)
    assert all((path.parent / link).read_text().startswith("<svg") for link in links)
    assert not stale.exists()


def test_names_never_break_a_markdown_table(written):
    """Every row of a table has as many cells as its head, and markup in names is escaped."""
    _, path = written("report.md")
    text = path.read_text()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert not re.search(r"(?<!\\)<script", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_a_report_on_problems_alone_can_be_written(tmp_path):
    """Nothing to show is no error of the page."""
    for name in ("a.html", "a.md"):
        write(report_on([], [Problem(folder=Path("x"), what="is damaged")]), tmp_path / name)
        assert "is damaged" in (tmp_path / name).read_text()
