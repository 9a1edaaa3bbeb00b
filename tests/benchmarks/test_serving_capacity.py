"""What a session is said to take in memory, beside the arrays of real states."""

import itertools

import pytest

from benchmarks.serving.capacity import session_bytes
from rlstm_model.adaptation.batch import run_batch
from rlstm_server.engine.state import SessionState
from rlstm_server.schemas.text import AdaptationRequest


def read(served, asked, tokens, neighbours=3):
    """A session after some tokens that it learned from, beside others in the same rounds."""
    choice = served.choose(asked)
    evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
    states = [SessionState.before_text(served, choice).adapted for _ in range(1 + neighbours)]
    segment = evaluator.segment
    for start in range(0, tokens, segment):
        ids = tuple(itertools.islice(itertools.cycle(b"a text"), min(segment, tokens - start)))
        states = [done.state for done in run_batch([evaluator.chunk(state, ids) for state in states])]
    return states[0]


def memory(state):
    """Bytes that the state's arrays keep alive, mixture included, each array once."""
    arrays = [state.now.states_R2U, state.start.states_R2U]
    arrays += [] if state.delta_KP is None else [state.delta_KP]
    whole = {id(array): array for array in (one if one.base is None else one.base for one in arrays)}
    mixture = 0 if state.mixture is None else 8 * (len(state.mixture.weights) + 1)
    return sum(array.nbytes for array in whole.values()) + mixture


@pytest.mark.parametrize("kind", ["full", "output_bias"])
@pytest.mark.parametrize(("experts", "static"), [(1, False), (1, True), (2, True), (4, True)])
def test_a_session_in_the_middle_of_a_segment_takes_what_is_said(served, kind, experts, static):
    """To the byte, whatever it shared its batches with: nothing of its neighbours stays alive.

    A new one, and one at the end of a segment, take less.
    """
    asked = AdaptationRequest(kind=kind, experts=experts, static=static, adapt="weights")
    segment, most = served.evaluator(kind).segment, session_bytes(served, asked)
    assert memory(read(served, asked, segment + segment // 2)) == most
    assert memory(read(served, asked, 0)) < most
    assert memory(read(served, asked, 2 * segment)) < most
