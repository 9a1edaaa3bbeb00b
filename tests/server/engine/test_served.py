"""What a served model lets its clients choose, and what that takes."""

from dataclasses import replace

import numpy as np
import pytest

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.state import ExpertConfig
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.state import SessionState
from rlstm_server.errors import InvalidField
from rlstm_server.schemas.text import DEFAULT_EXPERTS, AdaptationChoice, AdaptationRequest


@pytest.fixture
def served(tools):
    """A model that learns with its output's biases unless all weights are asked for."""
    given = tools.serve(ByteVocab())
    full = given.calibrated.default
    bias = replace(full, kind="output_bias", num_fast_weights=256, rate=0.02)
    calibrated = CalibrationSet(
        statistics=given.calibrated.statistics,
        choices=(bias, full),
        fingerprint="two",
    )
    return ServedModel(
        name="two", fingerprint="f", parameters=given.parameters, vocab=given.vocab, calibrated=calibrated
    )


def test_what_is_left_open_is_the_checkpoints_first_rule(served):
    """With the default number of experts, and their rates."""
    choice = served.choose(AdaptationRequest())

    assert (choice.kind, choice.num_fast_weights, choice.experts) == ("output_bias", 256, DEFAULT_EXPERTS)
    assert (choice.static, choice.rate_scale, choice.rates) == (True, 1.0, (0.0, 0.02))


def test_without_the_static_row_there_is_one_expert(served):
    """The default number is one that can be."""
    choice = served.choose(AdaptationRequest(static=False, rate_scale=2.0))

    assert (choice.experts, choice.rates) == (1, (0.04,))


def test_the_rates_of_four_experts(served):
    """The static one first, then a third, one and three times the calibrated rate."""
    assert served.choose(AdaptationRequest(experts=4)).rates == pytest.approx((0.0, 0.02 / 3, 0.02, 0.06))


@pytest.mark.parametrize(
    ("asked", "field", "named"),
    [
        ({"kind": "subspace"}, "adaptation.kind", "output_bias of 256"),
        ({"num_fast_weights": 7}, "adaptation.num_fast_weights", "output_bias of 256"),
        (
            {"kind": "output_bias", "num_fast_weights": 999},
            "adaptation.num_fast_weights",
            "output_bias of 256",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(served, asked, field, named):
    """The field, and what there is."""
    with pytest.raises(InvalidField, match=named) as refused:
        served.choose(AdaptationRequest(**asked))
    assert refused.value.field == field


def test_a_model_that_cannot_learn_says_so(tools):
    """There is nothing to choose."""
    with pytest.raises(InvalidField, match="cannot learn"):
        tools.serve(ByteVocab(), calibrated=False).choose(AdaptationRequest())


@pytest.mark.parametrize("kind", ["output_bias", "full"])
@pytest.mark.parametrize(("experts", "static"), [(1, False), (1, True), (2, True), (4, True)])
def test_the_bytes_of_a_state_are_known_before_it_is(served, kind, experts, static):
    """They are those of a state in the middle of a segment that has learned."""
    choice = served.choose(AdaptationRequest(kind=kind, experts=experts, static=static))
    evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
    state = evaluator.start(experts=experts, static=static)
    for part in evaluator.observe(state, list(b"just enough text")):
        state = part.state

    assert state.pending
    assert served.state_bytes(choice) == state.nbytes


def test_the_norm_is_that_of_the_greatest_expert(served):
    """In units of the slow weights' norm; none before anything was learned."""
    choice = AdaptationChoice.of(served.rules[0], ExpertConfig(experts=4), 1.0)
    fresh = SessionState.before_text(served, choice)
    delta_KP = np.zeros((3, 256), np.float32)
    delta_KP[1, 0], delta_KP[2, :2] = 1.0, 2.0

    assert fresh.measured().norm_ratio == 0.0
    learned = replace(fresh, adapted=replace(fresh.adapted, delta_KP=delta_KP)).measured()
    assert learned.norm_ratio == pytest.approx(8**0.5 / served.parameters.norm, rel=1e-5)
