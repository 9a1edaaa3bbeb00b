"""Models beside ours: of equal size, and what they say they are."""

from dataclasses import replace

from benchmarks.models import TorchLSTM, gpt2, gpt2_shape, lstm_of_equal_size
from rlstm_model.config import ModelConfig

SHAPE = ModelConfig(vocab_size=30, hidden_size=12, num_layers=2, mogrifier_rounds=4, tie_embeddings=True)


def test_the_lstm_has_as_many_weights():
    """As wide as it can be without more weights than the other model, torch's second biases apart."""
    config = replace(SHAPE, vocab_size=5000, hidden_size=100)
    shape = lstm_of_equal_size(config)
    weights = [
        sum(weight.numel() for weight in TorchLSTM(replace(shape, hidden_size=size)).parameters())
        for size in (shape.hidden_size, shape.hidden_size + 1)
    ]
    assert weights[0] - 4 * shape.hidden_size * shape.num_layers <= config.num_parameters < weights[1]


def test_gpt2_is_of_equal_size(monkeypatch):
    """The published one is found by its count; without its library there is none."""
    assert gpt2_shape(124_439_808, vocabulary=50_257, context=1024) == (768, 12, 12)
    assert gpt2_shape(10_000, vocabulary=33_278, context=64) is None
    monkeypatch.setattr("benchmarks.models.GPT2", "a_library_that_is_not_there")
    assert gpt2(SHAPE, context=7) is None
