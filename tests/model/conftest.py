"""Shared by the tests of the model: random models, and the slow reference."""

import importlib.util
from pathlib import Path

import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates, sample_masks
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State


def _random_model(*, seed=0, scale=0.7, dtype=torch.float64, **shape):
    """A model whose every weight, biases too, is drawn from a normal distribution of std ``scale``."""
    config = ModelConfig(**{"vocab_size": 11, "hidden_size": 5, "num_layers": 2, **shape})
    model = LanguageModel(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, scale, generator=generator)
    return model


@pytest.fixture(scope="session")
def random_model():
    return _random_model


@pytest.fixture(scope="session")
def draw_inputs():
    """Draws what the layers of a model read, and a state before it."""

    def draw(model, *, time=6, batch=3, seed=3):
        config = model.config
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(time, batch, config.hidden_size, dtype=torch.float64, generator=generator)
        h, c = torch.rand(
            2, config.num_layers, batch, config.hidden_size, dtype=torch.float64, generator=generator
        )
        return x, State(h - 0.5, 2 * c - 1)

    return draw


@pytest.fixture(scope="session")
def draw_masks():
    """Draws a model's masks of all kinds, at one rate."""

    def draw(model, rate=0.3, *, time=6, batch=3):
        config = model.config
        return sample_masks(
            DropoutRates(input=rate, cell=rate, state=rate, output=rate),
            time=time,
            batch=batch,
            layers=config.num_layers,
            hidden=config.hidden_size,
            like=model.embedding.input,
            generator=torch.Generator().manual_seed(4),
        )

    return draw


@pytest.fixture(scope="session")
def reference():
    """The model in NumPy."""
    spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
