import json
import math

import pytest

from rlstm_training.report.curves import (
    Curves,
    Reset,
    Training,
    Validation,
    measure_of,
    read_curves,
    seconds_of,
    validation,
)

LOSS = {"step": 50, "loss": 2.5, "rate": 0.1, "tokens_per_second": 64.0}
OLD = {"step": 50, "valid": {"a": 2.0, "b": 4.0}}
NEW = {
    "step": 100,
    "valid": {"a": 1.0},
    "nats": {"raw": 0.8, "short": None, "long": 0.7, "reported": 0.7},
    "lengths": {"short": 0, "long": 40, "reported": 40},
    "seconds": 12.5,
}
RESET = {"step": 120, "reset": {"to_step": 100, "rate_scale": 0.9, "why": "loss nan"}}


@pytest.fixture
def read(tmp_path):
    """Writes lines into a metrics file and reads them back as curves."""

    def read(*lines, end="\n"):
        path = tmp_path / "metrics.jsonl"
        path.write_text(
            "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end
        )
        return read_curves(path)

    return read


def test_every_kind_of_record_is_read(read):
    """Losses, evaluations of both versions, divergence resets; what is unknown is let pass."""
    curves = read(LOSS, OLD, NEW, RESET, {"step": 130, "sung": True})
    assert curves.training == (Training(**LOSS),)
    old, new = curves.validations
    assert old == Validation(step=50, nats=pytest.approx(3 * math.log(2)))
    assert (new.nats, new.raw, new.short, new.long) == (0.7, 0.8, None, 0.7)
    assert (new.short_length, new.long_length, new.length, new.seconds) == (0, 40, 40, 12.5)
    assert curves.resets == (Reset(step=120, to_step=100, rate_scale=0.9, why="loss nan"),)
    assert curves.damaged_lines == ()
    assert curves.last_step == 100


def test_damaged_lines_are_numbered_and_passed_over(read):
    """Whatever a line holds, those around it are read."""
    broken = [
        "nonsense",
        "[1]",
        "7",
        '{"step": 3, "valid": {}}',
        '{"loss": 1}',
        '{"step": 1, "loss": "x"}',
        "{}",
    ]
    curves = read(LOSS, *broken, {"step": 2, "valid": {"a": 1.0}, "nats": {"raw": "x"}}, NEW)
    assert curves.damaged_lines == tuple(range(2, 10))
    assert [point.step for point in curves.validations] == [100]


def test_half_a_last_line_is_no_damage(read):
    """A kill, or a process that is writing."""
    assert read(LOSS, '{"step": 100, "lo', end="").damaged_lines == ()


def test_the_best_evaluation_is_the_first_of_the_lowest(read):
    """A loss that is no number is never the best; without any evaluation there is none."""
    curves = read(
        *({"step": step, "valid": {"a": bits}} for step, bits in enumerate([3.0, 2.0, math.nan, 2.0]))
    )
    assert curves.best.step == 1
    assert Curves().best is None


def test_a_reported_average_is_told_from_raw_weights():
    """By its length."""
    assert validation(NEW).averaged
    assert not validation({**NEW, "lengths": {"short": 0, "long": 0, "reported": 1}}).averaged
    assert not validation(OLD).averaged
    assert validation(LOSS) is None


def test_measures_are_those_published():
    """Bits where a token is a byte or a character, perplexity for words."""
    nats = math.log(8)
    assert measure_of("bytes").of(nats) == pytest.approx(3.0)
    assert measure_of("characters").name == "bits per character"
    assert measure_of("words").of(nats) == pytest.approx(8.0)
    assert math.isfinite(measure_of("words").of(1e6))


def test_seconds_are_those_written_else_of_the_speed(read, toy_recipe):
    """32 tokens a step: 50 steps at 64 tokens/s take 25 s; up to its step a written clock counts."""
    recipe = toy_recipe(window=8)
    later = {**LOSS, "step": 150}
    assert seconds_of(read(LOSS), recipe) == pytest.approx(25.0)
    assert seconds_of(read(LOSS, NEW, later), recipe) == pytest.approx(12.5 + 25.0)
    assert seconds_of(Curves(), recipe) is None
