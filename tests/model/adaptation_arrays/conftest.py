"""Small models that learn, and what they make of texts."""

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model.adaptation.evaluator import DynamicEvaluator

BOS = 1


def _evaluator(parameters=None, *, temperature=1.0, logprobs_only=False, space=None, **rule):
    parameters = drawn.parameters_of() if parameters is None else parameters
    calibration = drawn.calibration_of(parameters, space=space, **rule)
    return DynamicEvaluator.of(
        parameters, calibration, bos_id=BOS, temperature=temperature, logprobs_only=logprobs_only, threads=1
    )


@pytest.fixture(scope="session")
def make_evaluator():
    """Makes an evaluator of a small model, under a rule of its own."""
    return _evaluator


@pytest.fixture(scope="session")
def evaluator():
    return _evaluator()


@pytest.fixture(scope="session")
def text():
    """Draws a text."""
    return lambda length, seed=1: np.random.default_rng(seed).integers(19, size=length).tolist()


class Seen:
    """All chunks of a text together."""

    def __init__(self, chunks, state):
        self.chunks, self.state = chunks, state

    def column(self, name):
        """One column of the scores."""
        return np.concatenate([getattr(chunk.scores, name) for chunk in self.chunks])

    @property
    def logprobs(self):
        """Of the mixture."""
        return self.column("logprobs")

    @property
    def static(self):
        """Of the frozen baseline."""
        return np.concatenate([chunk.static_logprobs for chunk in self.chunks])


@pytest.fixture(scope="session")
def observe():
    """Observes texts one after the other: ids, or ids and whether they may be learned from."""

    def observe(evaluator, *runs, state=None, **start):
        state, chunks = state or evaluator.start(**start), []
        for run in runs:
            ids, learn = run if isinstance(run, tuple) else (run, True)
            for chunk in evaluator.observe(state, ids, learn=learn):
                chunks.append(chunk)
                state = chunk.state
        return Seen(chunks, state)

    return observe


@pytest.fixture(scope="session")
def bits_of():
    """Everything that a state is, as bytes and values that can be compared."""
    return lambda state: (
        {name: (array.dtype, array.shape, array.tobytes()) for name, array in state.arrays().items()},
        state.header(),
    )
