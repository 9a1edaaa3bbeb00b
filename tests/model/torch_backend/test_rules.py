"""A step of many rows in torch: as each alone, by the formula."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.model import drawn

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.native.packed import Space
from rlstm_model.torch_backend.rules import LearningRule

SIZE, ROWS = 6, 5
values = hnp.arrays(np.float32, (ROWS, SIZE), elements=st.floats(-2, 2, width=32))


def rule_of(rms, greatest, **changes):
    """The rule in arrays, and in torch."""
    config = drawn.rule_of(len(rms), rate=0.7, **{"decay": 0.1, **changes})
    rule = Calibration(config=config, rms_P=rms, space=Space({}, ())).rule(greatest / config.max_norm_ratio)
    return rule, LearningRule(rule, torch.device("cpu"))


@given(
    st.sampled_from(["rms", "sgd"]),
    hnp.arrays(np.float32, SIZE, elements=st.floats(0.0625, 2, width=32)),
    values,
    values,
    st.lists(st.floats(0, 3), min_size=ROWS, max_size=ROWS),
    st.floats(0.01, 5),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
)
def test_rows_step_by_the_formula_each_as_alone(kind, rms, deltas, gradients, rates, greatest, spoilt):
    """Many rows with their own rates, some cut back, some not finite: no row changes another's step."""
    rule, steps_of = rule_of(rms, greatest, rule=kind)
    gradients[spoilt, 2] = np.nan
    steps = steps_of.step(torch.from_numpy(deltas), torch.from_numpy(gradients), rates)
    for row, step in enumerate(steps):
        assert step.taken == (not spoilt[row])
        if spoilt[row]:
            assert step.delta_P.tolist() == deltas[row].tolist()
            continue
        delta, gradient = deltas[row].astype(np.float64), gradients[row].astype(np.float64)
        precision = 1.0 if rule.precision_P is None else rule.precision_P
        moved = delta - delta * rule.shrink_P - rates[row] * gradient * precision
        norm = np.linalg.norm(moved)
        assert step.norm == pytest.approx(norm, rel=1e-5, abs=1e-5)
        assert step.scale == pytest.approx(min(1.0, greatest / norm) if norm else 1.0, rel=1e-5)
        np.testing.assert_allclose(step.delta_P, moved * step.scale, rtol=1e-4, atol=1e-5)
        assert step.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


def test_no_step_beyond_the_range_of_a_float():
    """A step that overflows is none; the rate itself may be the greatest that there is."""
    _, steps_of = rule_of(np.ones(2, np.float32), 1e30)
    (step,) = steps_of.step(torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]), [3e38])
    assert not step.taken
    assert not step.delta_P.any()
