"""Small models that learn, and what they make of texts."""

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.calibration_file import save_calibration
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


@pytest.fixture(scope="session")
def config():
    """Makes a rule of full fast weights, with changes."""
    return lambda **changes: drawn.rule_of(1, **{"kind": "full", **changes})


@pytest.fixture(scope="session")
def statistics():
    """Makes statistics of the gradients of random weights, with axes of a rank; rank 0 has none."""

    def make(parameters, rank=2, seed=5):
        generator = np.random.default_rng(seed)
        arrays = parameters.arrays
        axes = dict(drawn.draw_space(arrays, generator, (rank, rank)).axes) if rank else {}
        cores = {
            name: (*each.left.shape[:-2], each.left.shape[-1], each.right.shape[-2])
            for name, each in axes.items()
        }
        rms, between = (
            {name: generator.uniform(0.1, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}
            for shapes in ({name: array.shape for name, array in arrays.items()}, cores)
        )
        return GradientStatistics(rms=rms, axes=axes, cores=between)

    return make


@pytest.fixture(scope="session")
def make_calibrated(statistics):
    """Makes rules of all kinds, with nothing at its usual value, and their statistics."""

    def make(*, rank=2, **shape):
        parameters = drawn.parameters_of(**shape)
        sizes = {"subspace": 40, "output_bias": 19, "full": parameters.config.num_parameters}
        unusual = {"decay": 0.1, "epsilon": 0.3, "max_norm_ratio": 0.4, "reduction": "sum"}
        choices = [drawn.rule_of(size, kind=kind, **unusual) for kind, size in sizes.items()]
        return CalibrationSet(statistics=statistics(parameters, rank), choices=tuple(choices[not rank :]))

    return make


@pytest.fixture
def good_file(make_calibrated, tmp_path):
    """A calibration file with everything in it."""
    path = tmp_path / "adaptation.safetensors"
    save_calibration(path, make_calibrated())
    return path
