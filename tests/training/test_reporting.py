"""Reporters: a bar, lines, JSON and TensorBoard's curves; and the measures that runs are told in."""

import io
import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlstm_training.reporting import JsonLines, ProgressBar, TensorBoard, measure_of

LOSS = {"step": 50, "loss": 2.5, "rate": 0.1, "tokens_per_second": 1234.5, "seconds": 3.0}
VALID = {"step": 50, "valid": {"novels/as_is": 2.25}, "lengths": {"reported": 1}, "seconds": 4.0}
AVERAGED = {"step": 60, "valid": {"novels/as_is": 2.2}, "nats": {"raw": None}, "lengths": {"reported": 20}}
RESET = {"step": 61, "reset": {"to_step": 60, "rate_scale": 0.9, "why": "step 61: loss nan"}}
RECORDS = (LOSS, VALID, AVERAGED, RESET)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _told(file, monkeypatch):
    """What a progress bar shows of a whole run."""
    monkeypatch.setattr("sys.stderr", file)
    with ProgressBar("toy") as bar:
        bar.started(10, 60)
        bar.advanced(11, 3.0)
        for record in RECORDS:
            bar.recorded(record)
        bar.noticed("[odd] thing")
    return file.getvalue()


def test_people_see_a_bar_and_log_files_a_line_a_record(monkeypatch):
    """The bar shows how far the run is and its last figures; without a terminal there are plain lines."""
    assert _told(io.StringIO(), monkeypatch).splitlines() == [
        "toy: going on after step 10 of 60",
        "step 50: loss 2.5000 nats, 1,234 tokens/s",
        "step 50: bits a token on novels/as_is 2.2500",
        "step 60: bits a token on novels/as_is 2.2000 (average of 20)",
        "[odd] thing",
    ]
    shown = _told(_Terminal(), monkeypatch)
    assert all(part in shown for part in ("11/60", "loss 2.5000 nats", "bits a token on novels/as_is 2.2500"))


def test_json_lines_hold_every_record():
    """One a line, and nothing else."""
    file = io.StringIO()
    reporter = JsonLines(file)
    reporter.started(0, 5)
    reporter.recorded(LOSS)
    reporter.noticed("said")
    assert [json.loads(line) for line in file.getvalue().splitlines()] == [LOSS]


def _board(folder, after, records):
    with TensorBoard(folder) as board:
        board.started(after, 100)
        for record in records:
            board.recorded(record)
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_records_become_curves(tmp_path):
    """Every number has its curve, validation one a text; what is no number has none."""
    assert _board(tmp_path, 0, RECORDS) == {
        "train/loss": [(50, 2.5)],
        "train/rate": [(50, pytest.approx(0.1))],
        "train/tokens_per_second": [(50, 1234.5)],
        "valid/novels/as_is": [(50, 2.25), (60, pytest.approx(2.2))],
        "lengths/reported": [(50, 1.0), (60, 20.0)],
    }


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    """Points after the checkpoint are dropped, not doubled; a run that never begins leaves nothing."""
    _board(tmp_path / "a", 0, [{"step": step, "loss": 1.0} for step in (1, 2, 3)])
    curves = _board(tmp_path / "a", 2, [{"step": 3, "loss": 0.5}])
    assert curves == {"train/loss": [(1, 1.0), (2, 1.0), (3, 0.5)]}
    with TensorBoard(tmp_path / "b"):
        pass
    assert not (tmp_path / "b").exists()


def test_measures_are_those_published():
    """Bits where a token is a byte or a character, perplexity for words."""
    told = {
        vocab: measure_of(vocab).text(math.log(8)) for vocab in ("bytes", "characters", "words", "subwords")
    }
    assert told == {"bytes": "3.0000", "characters": "3.0000", "words": "8.00", "subwords": "8.00"}
    assert measure_of("characters").name == "bits per character"
    assert math.isfinite(measure_of("words").of(1e6))
    assert measure_of("words").text(None) == ""
