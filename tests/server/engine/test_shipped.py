"""What a session of the shipped model costs, as it is served unless asked otherwise."""

import pytest

from rlstm_model.checkpoint import load
from rlstm_server.engine.models import ServedModel
from rlstm_server.schemas.text import DEFAULT_EXPERTS

INLINE = 256 * 1024
"""What a commit carries whole."""


@pytest.fixture(scope="module")
def served():
    return ServedModel.of(load("bytes-small"))


def test_a_session_is_stored_whole_in_every_commit(served):
    """In the middle of a segment, when most is kept, the state of all experts is within 256 kB."""
    evaluator = served.evaluator()
    state = evaluator.start(experts=DEFAULT_EXPERTS)
    for observed in evaluator.observe(state, list(b"It was the best of times, it was")):
        state = observed.state

    assert state.updates == 1
    assert state.pending
    assert 0 < state.nbytes <= INLINE


def test_the_default_is_a_subspace_and_full_weights_can_be_asked_for(served):
    """Sessions learn in kilobytes unless they are asked to learn with every weight."""
    assert served.evaluator().config.kind == "subspace"
    assert served.evaluator("full").config.num_fast_weights == served.model.config.num_parameters
