"""The whole model against the slow reference."""

import numpy as np
import pytest
import torch

from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.state import State

TIME, BATCH = 4, 2
MODELS = [
    {"cell": cell, "mogrifier_rounds": rounds, "mogrifier_rank": rank, "num_layers": layers}
    for cell in ("rlstm", "lstm")
    for rounds, rank in ((0, 0), (1, 2), (2, 0), (3, 2), (4, 0), (5, 2), (6, 0), (6, 3))
    for layers in (1, 3)
] + [
    {"cell": "lstm", "cap_input_gate": False},
    {"tie_embeddings": True},
    {"mogrifier_bias": False, "mogrifier_rank": 2},
    {"stacking": "skip", "num_layers": 4},
    {"stacking": "plain", "num_layers": 4},
    {"stacking": "plain", "num_layers": 1},
    {"softmax_components": 2},
    {"softmax_components": 5, "tie_embeddings": True},
]


def _inputs(model, seed=5):
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (TIME, BATCH), generator=generator)
    h, c = torch.rand(
        2, config.num_layers, BATCH, config.hidden_size, dtype=torch.float64, generator=generator
    )
    return ids, State(h, c)


def _all_masks(model, masks):
    ones = DropoutMasks(
        input=np.ones((TIME, BATCH, model.config.hidden_size)),
        cell=np.ones((model.config.num_layers, TIME, BATCH, model.config.hidden_size)),
        state=np.ones((model.config.num_layers, BATCH, model.config.hidden_size)),
        output=np.ones((TIME, BATCH, model.config.hidden_size)),
    )
    return {
        name: getattr(ones, name) if mask is None else mask.numpy() for name, mask in masks._asdict().items()
    }


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_oracle_b_the_model_equals_the_reference(random_model, reference, draw_masks, shape, rate):
    """Features, probabilities and state equal the NumPy model's to 1e-10, with all masks and without.

    With pitfalls 1 to 4 and 7 to 10: what is summed, gated, capped, masked, scaled and tied.
    """
    model = random_model(**shape)
    ids, state = _inputs(model)
    masks = draw_masks(model, rate, time=TIME, batch=BATCH)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected = reference.forward(
        model.config, weights, ids.numpy(), state.h.numpy(), state.c.numpy(), _all_masks(model, masks)
    )
    features, last = model(ids, state, masks)
    probabilities = model.log_probs(features).exp()
    for actual, wanted in zip((features, probabilities, last.h, last.c), expected, strict=True):
        np.testing.assert_allclose(actual.detach().numpy(), wanted, atol=1e-10)


@pytest.mark.parametrize("kind", ["input", "cell", "state", "output"])
def test_each_mask_alone_acts_as_in_the_reference(random_model, reference, draw_masks, kind):
    """No mask leans on another being there."""
    model = random_model()
    ids, state = _inputs(model)
    masks = NO_DROPOUT._replace(**{kind: getattr(draw_masks(model, 0.5, time=TIME, batch=BATCH), kind)})
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected, *_ = reference.forward(
        model.config, weights, ids.numpy(), state.h.numpy(), state.c.numpy(), _all_masks(model, masks)
    )
    features, _ = model(ids, state, masks)
    np.testing.assert_allclose(features.detach().numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("components", [1, 3])
def test_a_temperature_multiplies_the_logits_of_each_softmax(random_model, reference, components):
    """For features of any leading shape."""
    model = random_model(softmax_components=components)
    features = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    log_probs = model.log_probs(features, 0.7)
    for place in np.ndindex(3, 2):
        x = features[place].numpy()
        expected = reference.predict(model.config, weights, weights["embedding.output"], x, 0.7)
        np.testing.assert_allclose(log_probs[place].detach().exp(), expected, atol=1e-12)


def test_a_mixture_of_far_out_features_loses_no_probability(random_model):
    """Nothing overflows: equal components are one softmax."""
    model = random_model(softmax_components=3)
    mixture = model.embedding.mixture
    with torch.no_grad():
        mixture.projection.copy_(mixture.projection[:1].expand(3, -1, -1))
        mixture.projection_bias.copy_(mixture.projection_bias[:1].expand(3, -1))
    features = 1e3 * torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    latents = torch.tanh(features @ mixture.projection[0].T + mixture.projection_bias[0])
    logits = latents @ model.embedding.output.T + model.embedding.bias
    torch.testing.assert_close(model.log_probs(features), torch.log_softmax(logits, -1))


def test_tied_models_have_one_matrix_that_learns_from_both_ends(random_model):
    """Its gradient is the sum of the reading's and the predicting's."""
    model = random_model(tie_embeddings=True)
    assert model.embedding.output is None
    model.embedding.embed(torch.tensor([2])).sum().backward()
    model.embedding.logits(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    assert model.embedding.input.grad[2].tolist() == [2.0] * 5
    assert model.embedding.input.grad[0].tolist() == [1.0] * 5
