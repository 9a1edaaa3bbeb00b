"""A step of many rows in torch: as each alone, by the formula, and in parts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.model import drawn

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.native.packed import Space
from rlstm_model.torch_backend import rules
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
    for row in range(ROWS):
        assert steps.taken[row] == (not spoilt[row])
        if spoilt[row]:
            assert steps.delta_NP[row].tolist() == deltas[row].tolist()
            continue
        delta, gradient = deltas[row].astype(np.float64), gradients[row].astype(np.float64)
        precision = 1.0 if rule.precision_P is None else rule.precision_P
        moved = delta - delta * rule.shrink_P - rates[row] * gradient * precision
        norm = np.linalg.norm(moved)
        assert steps.norms[row] == pytest.approx(norm, rel=1e-5, abs=1e-5)
        assert steps.scales[row] == pytest.approx(min(1.0, greatest / norm) if norm else 1.0, rel=1e-5)
        np.testing.assert_allclose(steps.delta_NP[row], moved * steps.scales[row], rtol=1e-4, atol=1e-5)
        assert steps.gradient_norms[row] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


def test_no_step_beyond_the_range_of_a_float():
    """A step that overflows is none; the rate itself may be the greatest that there is."""
    _, steps_of = rule_of(np.ones(2, np.float32), 1e30)
    steps = steps_of.step(torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]), [3e38])
    assert steps.taken == [False]
    assert not steps.delta_NP.any()


@pytest.mark.parametrize("count", [2, 9, 40])
@pytest.mark.parametrize("storage", [torch.float32, torch.float16])
def test_rows_are_done_in_parts(monkeypatch, count, storage):
    """Many rows are stepped part by part: to the last bit what they get all at once, guards included."""
    draw = torch.Generator().manual_seed(count)
    delta_NP, gradient_NP = (torch.randn(count, 96, generator=draw) for _ in range(2))
    gradient_NP[-1, 3], gradient_NP[0] = float("inf"), gradient_NP[0] * 1e4
    delta_NP, scales = delta_NP.to(storage), torch.rand(count, generator=draw).tolist()
    _, rule = rule_of(torch.rand(96, generator=draw).numpy(), 20.0, decay=0.5)
    whole = rule.step(delta_NP, gradient_NP, scales)
    monkeypatch.setattr(rules, "_ELEMENTS_AT_ONCE", 1)
    parts = rule.step(delta_NP, gradient_NP, scales)
    assert parts.delta_NP.dtype == storage
    assert torch.equal(parts.delta_NP, whole.delta_NP)
    assert parts[1:4] == whole[1:4]
    assert parts.gradient_norms == whole.gradient_norms
    assert whole.taken == [*[True] * (count - 1), False]
