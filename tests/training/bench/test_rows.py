"""What is measured of many rows is really done, and figures are those of the medians."""

import numpy as np
import pytest
import torch
from rlstm_model.adaptation.learner import Learner

from rlstm_model.adaptation.calibration import Calibration
from rlstm_training.bench import rows
from rlstm_training.bench.rows import Case, Figure, learning, measure
from rlstm_training.evaluation.measurements import Measurements, Setting, Statistics

BOS, SEGMENT = 10, 6


@pytest.fixture(scope="module")
def learner(random_model, words):
    text = np.frombuffer(words(100, 1), dtype=np.uint8)
    measured = Measurements(
        random_model(), [(text, 1)], bos_id=BOS, statistics=Statistics(heads=2, segments=5)
    )
    config = measured.config(Setting(rate=1e-2, decay=0.01, segment=SEGMENT))
    rule: Calibration = measured.of(SEGMENT).calibration(measured.model, config)
    return Learner(measured.model, rule, bos_id=BOS)


def test_learning_learns(learner, monkeypatch):
    """Every run takes a step from the deltas and the state that the last one left."""
    given = []
    learn = learner.fast_weights.learn
    monkeypatch.setattr(learner.fast_weights, "learn", lambda *args: given.append(args) or learn(*args))
    work = learning(learner, 2)
    assert [work(), work(), work()] == [2 * SEGMENT] * 3
    deltas = [args[0].clone() for args in given]
    assert not deltas[0].any()
    assert deltas[1].abs().sum(1).min() > 0
    assert not torch.equal(deltas[1], deltas[2])
    assert not torch.equal(given[1][4].h, given[2][4].h)


def test_every_task_is_measured_for_every_number_of_rows(learner):
    """In the plain way, which every device has."""
    rule = Calibration(config=learner.config, rms_P=torch.ones(learner.fast_weights.size))
    found = measure(learner.model, rule, bos_id=BOS, rows=(1, 2), seconds=0.0)
    expected = [(task, count, "plain") for count in (1, 2) for task in ("static", "learning", "round")]
    assert [(figure.task, figure.rows, figure.way) for figure in found] == expected
    assert all(figure.tokens_per_second > 0 and figure.share > 0 for figure in found)


def test_shares_are_taken_within_a_round():
    """And their median counts, as that of the rates does."""
    case = Case(task="static", rows=1, way="plain", work=lambda: 1, flops=10.0)
    found = rows._figure(case, [(1.0, 100.0), (2.0, 40.0), (30.0, 1000.0)])
    assert found == Figure(task="static", rows=1, way="plain", tokens_per_second=2.0, share=0.3)
