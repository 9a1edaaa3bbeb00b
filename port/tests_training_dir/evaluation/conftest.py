"""Shared by the tests of evaluation: a rule for any model."""

import numpy as np
import pytest

from rlstm_training.evaluation.measurements import Measurements, Setting, Statistics


@pytest.fixture(scope="session")
def measure_rule(words):
    """Makes a rule of full fast weights from so many words of text."""

    def measure(model, count, *, segment, rate=0.0, decay=0.0):
        text = np.frombuffer(words(count, 4), dtype=np.uint8)
        statistics = Statistics(heads=2, segments=5)
        measurements = Measurements(model, [(text, 1)], bos_id=10, statistics=statistics)
        return measurements.under(Setting(rate=rate, decay=decay, segment=segment))

    return measure
