import math

import pytest

from rlstm_training.report.panels import COLOURED, comparison_panels, detail_panels
from rlstm_training.report.runs import read_runs

RESET = {"step": 25, "reset": {"to_step": 20, "rate_scale": 0.9, "why": "loss nan"}}
BITS = math.log(2)


def _by_title(panels):
    return {panel.title: panel for panel in panels}


def test_every_curve_of_a_run_is_there(make_run):
    """Validation over steps and tokens, loss, rate, speed, lengths: the records' own numbers."""
    (run,), _ = read_runs([make_run(losses=(3.0, 2.0), records=[RESET])])
    panels = _by_title(comparison_panels([run]))
    points = {title: panel.lines[0].points for title, panel in panels.items()}
    steps = [(10, pytest.approx(3.0 / BITS)), (20, pytest.approx(2.0 / BITS))]
    assert points == {
        "validation over steps, bits per byte": steps,
        "validation over tokens, bits per byte": [(step * 32, bits) for step, bits in steps],
        "training loss": [(10, 3.5), (20, 2.5)],
        "learning rate": [(10, 0.01), (20, 0.01)],
        "speed": [(10, 74.0), (20, 84.0)],
        "length of the reported average": [(10, 10), (20, 20)],
    }
    assert panels["validation over tokens, bits per byte"].lines[0].dots == [(640, pytest.approx(2.0 / BITS))]


def test_measures_have_panels_of_their_own(make_run, tmp_path):
    """Perplexity on a logarithmic scale."""
    make_run("a")
    make_run("b", vocab="words")
    panels = _by_title(comparison_panels(read_runs([tmp_path])[0]))
    words, letters = (panels[f"validation over steps, {name}"] for name in ("perplexity", "bits per byte"))
    assert [line.label for line in words.lines] == ["b"]
    assert [line.label for line in letters.lines] == ["a"]
    assert (words.log, letters.log) == (True, False)
    assert words.lines[0].points[0][1] == pytest.approx(math.exp(3.0))


def test_the_best_are_coloured(make_run, tmp_path):
    """In order of their losses; all others are faint."""
    for number in range(COLOURED + 2):
        make_run(f"run-{number:02d}", losses=(10.0 - number,), seed=number)
    panel = comparison_panels(read_runs([tmp_path])[0])[0]
    assert [line.color for line in panel.lines] == [*range(COLOURED), None, None]
    assert [line.label for line in panel.lines][:2] == ["run-11", "run-10"]


def test_a_run_alone_shows_every_average(make_run):
    """Raw, long and reported losses and the resets; an average that was always empty has no line."""
    (run,), _ = read_runs([make_run(losses=(3.0, 2.0), records=[RESET])])
    losses, lengths = detail_panels(run)
    assert [line.label for line in losses.lines] == ["reported", "raw", "long average"]
    assert losses.lines[1].points == [(10, pytest.approx(3.1 / BITS)), (20, pytest.approx(2.1 / BITS))]
    assert losses.marks == [(25, "diverged, back to step 20")]
    assert [line.label for line in lengths.lines] == ["reported", "short average", "long average"]


def test_old_records_have_fewer_curves(make_run):
    """Without averages there is one line, and no lengths; without any evaluation nothing."""
    (run,), _ = read_runs([make_run(losses=(), records=[{"step": 10, "valid": {"a": 2.0}}])])
    (panel,) = detail_panels(run)
    assert [line.label for line in panel.lines] == ["reported"]
    assert [panel.title for panel in comparison_panels([run])] == [
        "validation over steps, bits per byte",
        "validation over tokens, bits per byte",
    ]
