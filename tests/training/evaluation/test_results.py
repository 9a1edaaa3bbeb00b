"""Results beside a checkpoint: kept by text and settings, for one set of weights, in one step."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import EVALUATION, CheckpointError
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.evaluation.evaluation import Evaluation
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.results import EvaluationSettings, load_results, record, save_results

CONFIG = AdaptationConfig(
    kind="full",
    num_fast_weights=7,
    rule="rms",
    rate=1e-3,
    segment=5,
    reduction="mean",
    statistics_batch=1,
    statistics_segments=9,
)


@pytest.fixture
def checkpoint(tmp_path):
    return SimpleNamespace(folder=tmp_path, fingerprint="aaaa")


def _record(text="t", nats=8.0, **settings):
    evaluation = Evaluation(text=text, tokens=4, bytes=16, unknown=1, static_nats=nats, adapted_nats=6.0)
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return record(evaluation, EvaluationSettings(**settings), "words", now=now)


def test_a_record_says_what_made_it():
    """Counts, measures of both kinds, settings whole, the published measure and when it was."""
    sampling = MonteCarlo(samples=3, rates=DropoutRates(cell=0.1))
    kept = json.loads(json.dumps(_record(temperature=0.96, adaptation=CONFIG, monte_carlo=sampling)))
    assert (kept["tokens"], kept["bytes"], kept["unknown"]) == (4, 16, 1)
    assert kept["static"]["nats"] == 8.0
    assert kept["adapted"]["nats"] == 6.0
    assert kept["published"] == "perplexity"
    assert kept["date"] == "2026-01-02T03:04:05+00:00"
    assert AdaptationConfig.from_json(kept["settings"]["adaptation"]) == CONFIG
    assert kept["settings"]["temperature"] == 0.96
    assert kept["settings"]["monte_carlo"]["rates"]["cell"] == 0.1


def test_a_result_replaces_its_predecessor_alone(checkpoint):
    """The same text under the same settings has one result; other texts and settings stay."""
    save_results(checkpoint, [_record("b"), _record("a", adaptation=CONFIG)])
    kept = save_results(checkpoint, [_record("b", nats=7.0), _record("b", temperature=0.9)])
    assert [(r["text"], r["static"]["nats"], r["settings"]["temperature"]) for r in kept] == [
        ("a", 8.0, 1.0),
        ("b", 7.0, 1.0),
        ("b", 8.0, 0.9),
    ]
    assert load_results(checkpoint) == kept
    assert [path.name for path in checkpoint.folder.iterdir()] == [EVALUATION]


def test_results_of_other_weights_are_dropped(checkpoint):
    """A number belongs to the weights that gave it."""
    save_results(checkpoint, [_record("a")])
    other = SimpleNamespace(folder=checkpoint.folder, fingerprint="bbbb")
    assert load_results(other) == []
    assert [result["text"] for result in save_results(other, [_record("b")])] == ["b"]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"format_version": 2}', '{"format_version": 1, "results": 3}']
)
def test_a_damaged_file_is_named_and_left(checkpoint, content):
    """What cannot be read is not written over."""
    path = checkpoint.folder / EVALUATION
    path.write_text(content)
    with pytest.raises(CheckpointError, match=EVALUATION):
        save_results(checkpoint, [_record()])
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_keeps_the_old_one(checkpoint, monkeypatch):
    """A full disk while writing: a clear error, the old results unharmed, nothing left beside them."""
    save_results(checkpoint, [_record("a")])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_results(checkpoint, [_record("b")])
    assert [result["text"] for result in load_results(checkpoint)] == ["a"]
    assert [path.name for path in checkpoint.folder.iterdir()] == [EVALUATION]
