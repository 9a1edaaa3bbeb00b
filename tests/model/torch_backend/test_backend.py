"""The backend of a GPU, here on a CPU, against the native core: the same numbers to rounding."""

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model.adaptation.backend import NativeBackend
from rlstm_model.native import Row
from rlstm_model.native.packed import Space
from rlstm_model.torch_backend.backend import TorchBackend

LSTMS = {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 0, "stacking": "plain"}
SHAPES = [
    {},
    {"tie_embeddings": True, "mogrifier_rank": 0},
    LSTMS,
    {"stacking": "skip", "num_layers": 3},
    {"stacking": "plain", "mogrifier_rounds": 2},
    {**LSTMS, "widths": (6, 10, 4)},
    {**LSTMS, "tie_embeddings": True, "widths": (7, 10, 7)},
]


def rows_of(backend, seed=0):
    """Rows that learn, that have fast weights, and that have none, of several lengths."""
    generator = np.random.default_rng(seed)

    def row(length, learn, own):
        ids = generator.integers(19, size=length + 1).tolist()
        states = drawn.draw(generator, (2, backend.units), 0.5)
        delta = drawn.draw(generator, backend.fast_weights, 0.05).astype(backend.dtype) if own else None
        if not learn:
            return Row(ids[:-1], states, delta)
        return Row(ids[:-1], states, delta, ids[1:], generator.random(length).tolist(), 0.01)

    return [row(5, True, True), row(5, True, True), row(5, True, False)] + [
        row(length, False, own) for length in (1, 5, 8) for own in (True, False)
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["subspace", "chosen", "full"])
def test_both_backends_give_the_same_numbers(shape, kind):
    parameters = drawn.parameters_of(**shape)
    space = drawn.draw_space(parameters.arrays, np.random.default_rng(5))
    if kind == "chosen":  # some elements of the cores, in half precision
        places = np.arange(1, drawn.elements_of(space, parameters.arrays), 3)
        space = space._replace(chosen_P=places, dtype=np.float16)
    if kind == "full":
        space = Space({}, (), whole=True)
    calibration = drawn.calibration_of(parameters, space=space, decay=0.1, max_norm_ratio=0.05)
    native = NativeBackend(parameters, calibration, temperature=0.9, threads=1)
    other = TorchBackend.of(parameters, calibration, temperature=0.9, device="cpu")
    rows = rows_of(native)
    for row, one, two in zip(rows, native.read(rows), other.read(rows), strict=True):
        np.testing.assert_allclose(one.log_probs_TV, two.log_probs_TV, atol=2e-5)
        np.testing.assert_allclose(one.states_2U, two.states_2U, atol=1e-5)
        assert (one.step is None) == (two.step is None) == (not row.targets)
        if one.step is None or two.step is None:
            continue
        assert one.step.taken
        assert two.step.taken
        for name in ("norm", "gradient_norm", "scale"):
            assert getattr(one.step, name) == pytest.approx(getattr(two.step, name), rel=1e-4)
        tolerance = 1e-3 if kind == "chosen" else 1e-6
        np.testing.assert_allclose(one.step.delta_P, two.step.delta_P, atol=tolerance)


def test_without_a_calibration_it_reads():
    parameters = drawn.parameters_of(softmax_components=2)
    rows = [Row((1, 2, 3), np.zeros((2, parameters.units), np.float32))]
    (one,), (two,) = (
        NativeBackend(parameters, threads=1).read(rows),
        TorchBackend.of(parameters, device="cpu").read(rows),
    )
    np.testing.assert_allclose(one.log_probs_TV, two.log_probs_TV, atol=2e-5)
