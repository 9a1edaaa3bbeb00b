"""Shared by the tests of the model: random models, and the slow reference."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from rlstm_model.config import ModelConfig
from rlstm_model.language_model import LanguageModel
from rlstm_model.walk import Group, GroupMasks, GroupState
from rlstm_model.window import read_window

# A first call into torch can take longer than hypothesis' deadline; examples are not kept between runs.
settings.register_profile("model", deadline=None, database=None)
settings.load_profile("model")


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


def _beside(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference():
    """The model in NumPy."""
    return _beside("reference")


@pytest.fixture(scope="session")
def plain():
    """The layers in plain torch."""
    return _beside("plain")


@pytest.fixture(scope="session")
def read_layer():
    """One layer over a window: h after every token, and the last c."""

    def read(layer, x_TBH, h, c, mask=None):
        group = Group(layer.cell, "residual", x_TBH.dtype)
        masks = GroupMasks(None if mask is None else mask[None], None)
        outputs, last = read_window(group, [layer.weights], x_TBH, GroupState(h[None], c[None]), masks)
        return outputs, last.c[0]

    return read
