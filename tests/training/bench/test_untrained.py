"""Untrained models: of the shape asked for, with rules that learn."""

import pytest
import torch

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_training.bench.untrained import untrained

CPU = torch.device("cpu")


def test_its_shape_and_its_subspace():
    """Two layers, rank 32, bytes; cores of the embedding and the softmax within 128 axes, and all biases."""
    calibrated = untrained(136, CPU)
    config = calibrated.model.config
    assert (config.hidden_size, config.num_layers, config.mogrifier_rank) == (136, 2, 32)
    assert config.vocab_size == 256
    weights = dict(calibrated.model.named_parameters())
    biases = sum(weight.numel() for name, weight in weights.items() if name.endswith("bias"))
    space = calibrated.choose("subspace").space
    assert {name: basis.core for name, basis in space.bases.items()} == {
        "embedding.input": (128, 128),
        "embedding.output": (128, 128),
    }
    assert calibrated.default.num_fast_weights == space.size == 2 * 128 * 128 + biases


@pytest.mark.parametrize("kind", ["subspace", "full"])
def test_it_learns(kind):
    """Fast weights that are finite and not all zero after a segment."""
    calibrated = untrained(8, CPU)
    evaluator = DynamicEvaluator(calibrated.model, calibrated.choose(kind), bos_id=10)
    *_, last = evaluator.observe(evaluator.start(), list(b"the sea was calm and cold"))
    assert last.state.updates == 1
    delta_KP = last.state.delta_KP
    assert bool(delta_KP.isfinite().all())
    assert bool(delta_KP.any())


def test_it_is_the_same_every_time():
    """One run can be compared with another."""
    one, other = untrained(8, CPU), untrained(8, CPU)
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert one.choose().fingerprint == other.choose().fingerprint
