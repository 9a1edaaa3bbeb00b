"""Fast weights: one flat vector, laid over slow weights that never change."""

import weakref

import pytest
import torch

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.torch_backend.full import FullFastWeights

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"cell": "lstm", "mogrifier_rounds": 0},
    {"mogrifier_rank": 0, "mogrifier_bias": False, "num_layers": 1},
]


def outputs(model, ids):
    features, state = model(torch.tensor(ids)[:, None], model.initial_state(1))
    return torch.cat((model.logits(features).flatten(), state.h.flatten(), state.c.flatten()))


def noise(fast_weights, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(fast_weights.size, generator=generator, dtype=fast_weights.zero(1).dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_weight_counts_once(tiny_model, shape):
    """P is the number of weights; tied embeddings are one weight (pitfall 33)."""
    model = tiny_model(**shape)
    assert FullFastWeights(model).size == model.config.num_parameters


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_laid_delta_equals_a_model_that_was_changed(tiny_model, text, shape):
    """Both views with a delta compute what a model with the summed weights computes, bit for bit."""
    model, ids = tiny_model(**shape), text(9)
    fast_weights = FullFastWeights(model)
    delta = noise(fast_weights)
    changed = LanguageModel(model.config)
    with torch.no_grad():
        for weight, slow, part in zip(
            changed.parameters(), model.parameters(), fast_weights.split(delta).values(), strict=True
        ):
            weight.copy_(slow + part)
        expected = outputs(changed, ids)
        assert torch.equal(outputs(fast_weights.reading_model(delta), ids), expected)
        assert torch.equal(outputs(fast_weights.learning_model(delta), ids), expected)
        assert not torch.equal(outputs(model, ids), expected)


def test_deltas_take_turns_in_the_workspace(tiny_model, text):
    """Laying one delta and then another leaves nothing of the first."""
    fast_weights, ids = FullFastWeights(tiny_model()), text(9)
    deltas = [noise(fast_weights, seed) for seed in range(3)]
    with torch.no_grad():
        first = [outputs(fast_weights.reading_model(delta), ids) for delta in deltas]
        for turn in (2, 0, 0, 1, 2, 1):
            assert torch.equal(outputs(fast_weights.reading_model(deltas[turn]), ids), first[turn])


def test_the_next_pass_overwrites_the_whole_gradient(tiny_model, text):
    """Rows that the last segment read, and this one does not, keep nothing of it."""
    fast_weights = FullFastWeights(tiny_model())
    state, weights = fast_weights.model.initial_state(1), torch.full((4, 1), 0.25)
    columns = [torch.tensor(text(4, seed=seed))[:, None] for seed in (8, 9)]
    first = fast_weights.learn(None, *columns, weights, state).gradient_NP.clone()
    fast_weights.learn(None, *((column + 1) % 11 for column in columns), weights, state)
    state.h.requires_grad_(True)
    again = fast_weights.learn(None, *columns, weights, state)
    assert torch.equal(again.gradient_NP, first)
    # Nothing flows back across the start, and what comes out has no history.
    assert state.h.grad is None
    assert not any(part.requires_grad for part in (*again.state, again.logits_TNV, again.gradient_NP))


def test_the_workspace_shares_no_memory_with_the_slow_weights(tiny_model):
    """Laying a delta writes to weights of the workspace's own."""
    model = tiny_model()
    fast_weights = FullFastWeights(model)
    workspace = fast_weights.learning_model(noise(fast_weights))
    slow = {weight.data_ptr() for weight in model.parameters()}
    assert not slow & {weight.data_ptr() for weight in workspace.parameters()}
    assert not any(weight.requires_grad for weight in model.parameters())


def test_workspaces_end_with_their_fast_weights(tiny_model):
    """They are a model and a gradient for each thread: nothing keeps them alive, not even a cycle."""
    fast_weights = FullFastWeights(tiny_model())
    fast_weights.learning_model(None)
    gone = weakref.ref(fast_weights)
    del fast_weights
    assert gone() is None
