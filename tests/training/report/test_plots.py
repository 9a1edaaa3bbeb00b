import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.report.plots import MOST_POINTS, Line, Plot, png, svg, thinned

POINTS = [(step, 5.0 / step) for step in range(1, 30)]


def _plot(*labels, **changes):
    lines = [Line(label=label, points=POINTS, color=place) for place, label in enumerate(labels)]
    return Plot(**{"name": "n", "title": "t", "x": "steps", "y": "bits", "lines": lines, **changes})


def _texts(picture):
    return [
        element.text for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")
    ]


@pytest.mark.parametrize(
    "label", [r"$\frac$", "<script>", "--><b>", "_hidden", "100 %", "漢字", "a & b", "{x}"]
)
def test_text_is_drawn_as_it_is(label):
    """Neither mathematics nor markup is read into it, and no label disappears."""
    texts = _texts(svg(_plot(label, title=label)))
    assert label in texts
    assert label in [text.lstrip("\u200b") for text in texts if text != label] or texts.count(label) == 2


def test_the_same_plot_is_the_same_picture():
    """No dates, no random names."""
    assert svg(_plot("a")) == svg(_plot("a"))


def test_pictures_on_one_page_do_not_share_names():
    """What one refers to, the other does not define."""
    first, second = (svg(_plot("a", name=name, marks=[(3, "m")])) for name in ("first", "second"))
    referred = [set(re.findall(r'(?:url\(|href=")#([^")]+)', picture)) for picture in (first, second)]
    assert referred[0]
    assert not referred[0] & set(re.findall(r'id="([^"]+)"', second))
    assert referred[0] <= set(re.findall(r'id="([^"]+)"', first))


def test_what_is_not_finite_is_left_out():
    """Also when nothing else is left, on any scale."""
    for points in ([(1, math.nan)], [(1, math.inf), (2, 3.0)], []):
        line = Line(label="a", points=points, dots=points[1:])
        for log in (False, True):
            assert svg(_plot(lines=[line], log=log, cut_descent=True)).startswith("<svg")


def test_logarithmic_scales_have_numbers():
    """Not the mathematics that would be written out as it is."""
    line = Line(label="a", points=[(1e3, 1e-4), (2e6, 2.0)], marked=True)
    texts = _texts(svg(_plot(lines=[line], log=True, log_x=True)))
    assert {"1,000", "1,000,000", "0.001", "1"} <= set(texts)
    assert not [text for text in texts if "$" in text]


def test_each_point_can_be_marked():
    """Where there are few, and as many marks as points."""
    plain, marked = (svg(_plot(lines=[Line(label="", points=POINTS, marked=m)])) for m in (False, True))
    assert marked.count("<use") - plain.count("<use") == len(POINTS)


def test_a_plot_can_be_an_image():
    """The same lines as PNG."""
    assert png(_plot("a")).startswith(b"\x89PNG")


def test_faint_lines_have_no_legend():
    """There may be hundreds."""
    lines = [Line(label="first", points=POINTS), Line(label="rest", points=POINTS, color=None)]
    texts = _texts(svg(_plot(lines=lines)))
    assert "first" in texts
    assert "rest" not in texts


@given(st.integers(0, 5 * MOST_POINTS))
def test_thinning_keeps_the_ends(count):
    """At most so many points and the last one; few points stay all."""
    points = [(step, 0.0) for step in range(count)]
    thin = thinned(points)
    assert len(thin) <= MOST_POINTS + 1
    assert [*thin[:1], *thin[-1:]] == [*points[:1], *points[-1:]]
    assert thin == points or count > MOST_POINTS
