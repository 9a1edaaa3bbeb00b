"""The learning rule against its formula in float64, weight by weight."""

from typing import NamedTuple

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

SIZE = 6
NO_LIMIT = 1e30

vectors = hnp.arrays(np.float64, SIZE, elements=st.floats(-2, 2, width=32))
some_rms = st.just(0.0) | st.floats(0.0625, 2, width=32)
statistics = hnp.arrays(np.float64, SIZE, elements=some_rms).filter(lambda rms: rms.any())
factors = st.floats(0, 3)


def by_formula(config, rms, delta, gradient, rate_scale=1.0):
    """docs/adaptation.md §1, one weight at a time."""
    mean = sum(rms) / len(rms)
    after = []
    for d, g, r in zip(delta, gradient, rms, strict=True):
        if config.rule == "rms":
            step = config.rate * rate_scale * g / (r + config.epsilon * mean)
            pull = min(1.0, config.decay * r / mean)
        else:
            step, pull = config.rate * rate_scale * g, min(1.0, config.decay)
        after.append(d - step - pull * d)
    return np.array(after)


class Step(NamedTuple):
    """What became of one row."""

    delta_P: torch.Tensor
    norm_ratio: float
    projected: bool


def config(**changes):
    return drawn.rule_of(SIZE, **changes)


def rule_of(settings, rms, slow_norm):
    calibration = Calibration(config=settings, rms_P=np.array(rms, np.float32), space=Space({}, ()))
    return LearningRule(calibration.rule(slow_norm), torch.device("cpu"))


def take_step(settings, rms, delta, gradient, rate_scale=1.0, slow_norm=NO_LIMIT):
    """One row's step; None where none was taken."""
    rule = rule_of(settings, rms, slow_norm)
    delta_1P, gradient_1P = (
        torch.tensor(np.array([values]), dtype=torch.float32) for values in (delta, gradient)
    )
    steps = rule.step(delta_1P, gradient_1P, [settings.rate * rate_scale])
    if not steps.taken[0]:
        assert torch.equal(steps.delta_NP, delta_1P)
        return None
    return Step(steps.delta_NP[0], steps.norms[0] * steps.scales[0] / slow_norm, steps.scales[0] != 1)


@given(
    st.sampled_from(["rms", "sgd"]),
    statistics,
    hnp.arrays(np.float64, (5, SIZE), elements=st.floats(-2, 2, width=32)),
    hnp.arrays(np.float64, (5, SIZE), elements=st.floats(-2, 2, width=32)),
    st.lists(factors, min_size=5, max_size=5),
    st.floats(0.01, 5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_rows_step_as_each_would_alone(rule, rms, deltas, gradients, scales, slow_norm, spoilt):
    """Many rows with their own rates, some cut back, some not finite: no row changes another's step."""
    settings = config(rule=rule, rate=0.7, decay=0.1)
    gradients[spoilt, 2] = np.nan
    given = (torch.tensor(part, dtype=torch.float32) for part in (deltas, gradients))
    steps = rule_of(settings, rms, slow_norm).step(*given, [settings.rate * scale for scale in scales])
    for row in range(5):
        alone = take_step(settings, rms, deltas[row], gradients[row], scales[row], slow_norm)
        assert steps.taken[row] == (alone is not None) == (not spoilt[row])
        if alone is None:
            assert torch.equal(steps.delta_NP[row], torch.tensor(deltas[row], dtype=torch.float32))
        else:
            torch.testing.assert_close(steps.delta_NP[row], alone.delta_P, rtol=1e-6, atol=1e-6)
            ratio = steps.norms[row] * steps.scales[row] / slow_norm
            assert ratio == pytest.approx(alone.norm_ratio, rel=1e-5)


@given(
    st.sampled_from(["rms", "sgd"]),
    statistics,
    vectors,
    vectors,
    factors,
    factors,
    st.floats(0.01, 1),
    factors,
)
def test_step_is_the_formula(rule, rms, delta, gradient, rate, decay, epsilon, rate_scale):
    """Any step equals the formula: both terms from the old delta, the clip, epsilon times the mean RMS."""
    settings = config(rule=rule, rate=rate, decay=decay, epsilon=epsilon)
    step = take_step(settings, rms, delta, gradient, rate_scale)
    expected = by_formula(settings, rms, delta, gradient, rate_scale)
    np.testing.assert_allclose(step.delta_P.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert not step.projected


def test_pitfall_26_the_decay_acts_on_the_old_delta():
    """Both terms use the old delta: the new step itself is not shrunk."""
    step = take_step(config(rate=1.0, decay=0.5, epsilon=1.0), [1.0] * 2, [4.0, 0.0], [2.0, 2.0])
    assert step.delta_P.tolist() == [4.0 - 1.0 - 0.5 * 4.0, -1.0]


def test_pitfall_29_the_pull_is_clipped_at_one():
    """A pull beyond the loaded weights would overshoot: it ends exactly there."""
    step = take_step(config(rate=0.0, decay=50.0), [1.0, 2.0], [3.0, -3.0], [1.0, 1.0])
    assert step.delta_P.tolist() == [0.0, 0.0]


def test_pitfall_29_weights_without_statistics_take_bounded_steps():
    """Where the RMS is zero, g is divided by epsilon times the mean RMS, and nothing decays."""
    step = take_step(config(rate=1.0, decay=1.0, epsilon=0.5), [0.0, 2.0], [7.0, 0.0], [3.0, 0.0])
    assert step.delta_P.tolist() == [7.0 - 3.0 / 0.5, 0.0]


@given(vectors, vectors, st.floats(0.125, 8, width=32))
def test_oracle_f_decay_one_with_uniform_rms_forgets_all_but_the_step(delta, gradient, rms):
    """Decay 1 and equal statistics return theta_0 minus the step, to the last bit."""
    settings = config(rate=0.1, decay=1.0)
    step = take_step(settings, [rms] * SIZE, delta, gradient)
    alone = take_step(settings, [rms] * SIZE, np.zeros(SIZE), gradient)
    assert torch.equal(step.delta_P, alone.delta_P)


@given(vectors, vectors, st.floats(0.01, 5))
def test_the_norm_is_projected(delta, gradient, slow_norm):
    """The delta never exceeds rho times the slow weights' norm, and keeps its direction."""
    step = take_step(config(rate=1.0, max_norm_ratio=0.5), [1.0] * SIZE, delta, gradient, slow_norm=slow_norm)
    free = take_step(config(rate=1.0), [1.0] * SIZE, delta, gradient).delta_P
    assert step.delta_P.norm() <= 0.5 * slow_norm * (1 + 1e-5)
    assert step.norm_ratio == pytest.approx(float(step.delta_P.norm()) / slow_norm, rel=1e-5)
    assert step.projected == (float(free.norm()) > 0.5 * slow_norm) or step.norm_ratio == pytest.approx(0.5)
    torch.testing.assert_close(step.delta_P * free.norm(), free * step.delta_P.norm())


@pytest.mark.parametrize("rule", ["rms", "sgd"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_step_from_a_gradient_that_is_not_finite(rule, bad):
    """One bad number among the gradients is enough for no step."""
    assert take_step(config(rule=rule), [1.0] * 3, [0.0] * 3, [1.0, bad, 1.0]) is None


def test_no_step_beyond_the_range_of_a_float():
    """A step that overflows is none; a rate that no float32 holds does not raise."""
    step = take_step(config(rate=1.0), [1.0] * 2, [0.0] * 2, [2.0, 1.0], 3e38)
    assert step is None


def test_statistics_that_are_all_zero_are_refused():
    """Without any gradient statistics the RMS rule would divide by zero."""
    with pytest.raises(ValueError, match="zero"):
        rule_of(config(rule="rms"), [0.0] * 3, 1.0)
    assert take_step(config(rule="sgd", rate=1.0), [0.0], [0.0], [1.0]).delta_P.tolist() == [-1.0]


@pytest.mark.parametrize("count", [2, 8, 9, 40])
@pytest.mark.parametrize("storage", [torch.float32, torch.float16])
def test_rows_are_done_in_parts(monkeypatch, count, storage):
    """Many rows are stepped part by part: to the last bit what they get all at once, guards included."""
    draw = torch.Generator().manual_seed(count)
    delta_NP, gradient_NP = (torch.randn(count, 96, generator=draw) for _ in range(2))
    gradient_NP[-1, 3], gradient_NP[0] = float("inf"), gradient_NP[0] * 1e4
    delta_NP, scales = delta_NP.to(storage), torch.rand(count, generator=draw).tolist()
    rule = rule_of(config(rate=0.1, decay=0.5), torch.rand(96, generator=draw).numpy(), 40.0)
    whole = rule.step(delta_NP, gradient_NP, scales)
    monkeypatch.setattr(rules, "_ELEMENTS_AT_ONCE", 1)
    parts = rule.step(delta_NP, gradient_NP, scales)
    assert parts.delta_NP.dtype == storage
    assert torch.equal(parts.delta_NP, whole.delta_NP)
    assert parts[1:4] == whole[1:4]
    assert parts.gradient_norms == whole.gradient_norms
    assert whole.taken == [*[True] * (count - 1), False]
