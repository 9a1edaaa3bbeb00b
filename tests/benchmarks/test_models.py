"""Models beside ours: of equal size, and what they say they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.models import Subject, TorchLSTM, gpt2, gpt2_shape, lstm_of_equal_size
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.config import ModelConfig

SHAPE = ModelConfig(vocab_size=30, hidden_size=12, num_layers=2, mogrifier_rounds=4, tie_embeddings=True)


@pytest.fixture
def model():
    model = TorchLSTM(lstm_of_equal_size(SHAPE), dropout=0.5)
    model.initialise(chrono_max=20.0, generator=torch.Generator().manual_seed(1))
    return model


def _ids(*shape):
    return torch.randint(30, shape, generator=torch.Generator().manual_seed(2))


def test_the_lstm_has_as_many_weights():
    """As wide as it can be without more weights than the other model, torch's second biases apart."""
    config = replace(SHAPE, vocab_size=5000, hidden_size=100)
    shape = lstm_of_equal_size(config)
    weights = [
        sum(weight.numel() for weight in TorchLSTM(replace(shape, hidden_size=size)).parameters())
        for size in (shape.hidden_size, shape.hidden_size + 1)
    ]
    assert weights[0] - 4 * shape.hidden_size * shape.num_layers <= config.num_parameters < weights[1]


def test_the_lstm_is_that_of_the_textbook(model):
    """One step of the first layer, written out; a window is its tokens one by one."""
    x, state = model.embedding.embed(_ids(1, 2)), model.initial_state(2)
    state = type(state)(state.h + 0.1, state.c + 0.2)
    _, after = model.read(x, state)
    lstm = model.stack.lstm
    gates = x[0] @ lstm.weight_ih_l0.t() + state.h[0] @ lstm.weight_hh_l0.t()
    i, f, g, o = (gates + lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4, 1)
    c = f.sigmoid() * state.c[0] + i.sigmoid() * g.tanh()
    torch.testing.assert_close(after.c[0], c)
    torch.testing.assert_close(after.h[0], o.sigmoid() * c.tanh())
    ids_TB = _ids(7, 3)
    whole, end = model(ids_TB, model.initial_state(3))
    state, parts = model.initial_state(3), []
    for ids_1B in ids_TB.split(1):
        features, state = model(ids_1B, state)
        parts.append(features)
    torch.testing.assert_close(torch.cat(parts), whole)
    torch.testing.assert_close(state, end)


def test_gpt2_is_of_equal_size(monkeypatch):
    """The published one is found by its count; without its library there is none."""
    assert gpt2_shape(124_439_808, vocabulary=50_257, context=1024) == (768, 12, 12)
    assert gpt2_shape(10_000, vocabulary=33_278, context=64) is None
    monkeypatch.setattr("benchmarks.models.GPT2", "a_library_that_is_not_there")
    assert gpt2(SHAPE, context=7) is None


@pytest.mark.parametrize("kind", ["subspace", "full"])
def test_an_untrained_model_learns(kind):
    """Fast weights that are finite and not all zero after a segment; the same model every time."""
    subject, again = (Subject.untrained(8) for _ in range(2))
    calibrated = subject.calibrated
    evaluator = DynamicEvaluator.of(subject.parameters, calibrated.choose(kind), bos_id=10)
    *_, last = evaluator.observe(evaluator.start(), list(b"the sea was calm and cold"))
    assert np.isfinite(last.state.delta_KP).all()
    assert last.state.delta_KP.any()
    assert calibrated.choose().fingerprint == again.calibrated.choose().fingerprint
    assert calibrated.default.num_fast_weights == 2 * 128 * 8 + sum(
        weight.size for name, weight in subject.parameters.arrays.items() if name.endswith("bias")
    )
