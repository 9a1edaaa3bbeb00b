"""GPT-2 of equal size: its shape by arithmetic, and the library's own count where it is installed."""

import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.bench import gpt2
from rlstm_training.bench.gpt2 import Shape, build, is_installed, shape_of_size


def test_the_smallest_published_gpt2_is_counted_right():
    """124,439,808 weights: 12 layers of 768 units over 50,257 tokens and 1,024 places."""
    shape = Shape(vocabulary=50_257, width=768, layers=12, heads=12, context=1024)
    assert shape.weights == 124_439_808
    assert shape.multiply_adds == 12 * 12 * 768 * 768 + 50_257 * 768
    assert shape_of_size(124_439_808, vocabulary=50_257, context=1024) == shape


@given(st.integers(100_000, 10**9), st.integers(2, 300), st.integers(1, 2000))
def test_a_shape_fills_its_size(weights, vocabulary, context):
    """Never more, hardly less, and heads that divide the units."""
    shape = shape_of_size(weights, vocabulary=vocabulary, context=context)
    wider = Shape(
        vocabulary=vocabulary,
        width=shape.width + 8,
        layers=shape.layers,
        heads=shape.heads,
        context=context,
    )
    assert shape.weights <= weights < wider.weights
    assert shape.width % shape.heads == 0


def test_embeddings_can_be_too_large():
    """No model, but a message that says what was asked for."""
    with pytest.raises(ValueError, match="no GPT-2 of 10,000 weights over 33,278 tokens"):
        shape_of_size(10_000, vocabulary=33_278, context=64)


def test_what_is_asked_of_the_library(monkeypatch):
    """All sizes of the shape, and a model that only reads."""
    library = ModuleType("transformers")
    library.__spec__ = ModuleSpec("transformers", None)
    library.GPT2Config = lambda **named: named
    made = torch.nn.Linear(2, 2)
    seen = []
    library.GPT2LMHeadModel = lambda config: seen.append(config) or made
    monkeypatch.setitem(sys.modules, "transformers", library)
    assert is_installed()
    assert build(Shape(vocabulary=11, width=16, layers=2, heads=4, context=7)) is made
    assert not made.training
    assert not made.weight.requires_grad
    sizes = {"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 7}
    assert seen[0].items() >= sizes.items()


def test_without_the_library_there_is_no_gpt2(monkeypatch):
    """It is asked for by its name, without being loaded."""
    monkeypatch.setattr(gpt2, "LIBRARY", "a_library_that_is_not_there")
    assert not is_installed()


@pytest.mark.skipif(not is_installed(), reason="transformers is not installed")
def test_the_library_counts_as_many_weights():
    """And each token sees those before it alone."""
    shape = shape_of_size(50_000, vocabulary=11, context=6)
    model = build(shape)
    assert sum(weight.numel() for weight in model.parameters()) == shape.weights
    ids = torch.arange(6)[None]
    before, after = (
        model(input_ids=each).logits for each in (ids, ids.clone().index_fill_(1, ids[0, 5:], 9))
    )
    assert torch.equal(before[0, :5], after[0, :5])
    assert math.isfinite(float(before.sum()))
