"""Input and output embeddings, tied and not, and the mixture of softmaxes."""

import numpy as np
import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.language_model import LanguageModel


@pytest.mark.parametrize("tied", [True, False])
def test_pitfall_10_rows_in_products_and_bias_out_without_scaling(random_model, tied):
    """What goes in is a row of E_in as it stands; logits are E_out x + b, where tied E_out is E_in."""
    embedding = random_model(tie_embeddings=tied).embedding
    ids = torch.tensor([[3, 0], [10, 3]])
    assert torch.equal(embedding.embed(ids), embedding.input[ids])
    x = torch.randn(4, 5, dtype=torch.float64)
    output = embedding.input if tied else embedding.output
    torch.testing.assert_close(embedding.logits(x), x @ output.T + embedding.bias)


def test_tied_models_have_one_matrix_that_learns_from_both_ends(random_model):
    """Its gradient is the sum of the reading's and the predicting's."""
    model = random_model(tie_embeddings=True)
    assert model.embedding.output is None
    model.embedding.embed(torch.tensor([2])).sum().backward()
    assert model.embedding.input.grad[2].tolist() == [1.0] * 5
    model.embedding.logits(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    assert model.embedding.input.grad[2].tolist() == [2.0] * 5
    assert model.embedding.input.grad[0].tolist() == [1.0] * 5


def _mixed(embedding, x, temperature):
    """Probabilities of the mixture for one vector of features, component after component."""
    mixture = {name: weight.detach().numpy() for name, weight in embedding.mixture.named_parameters()}
    shares = np.exp(mixture["weights"] @ x)
    total = 0.0
    for share, matrix, bias in zip(shares, mixture["projection"], mixture["projection_bias"], strict=True):
        latent = np.tanh(matrix @ x + bias)
        logits = embedding.output_matrix.detach().numpy() @ latent + embedding.bias.detach().numpy()
        scores = np.exp(temperature * logits)
        total = total + share / shares.sum() * scores / scores.sum()
    return total


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("components", [2, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_mixture_averages_the_probabilities_of_its_softmaxes(random_model, tied, components, temperature):
    """Equal to the written-out mean for features of any leading shape; temperature acts in each softmax."""
    model = random_model(tie_embeddings=tied, softmax_components=components)
    features = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    log_probs = model.embedding.logits(features, temperature)
    torch.testing.assert_close(log_probs, model.log_probs(features, temperature))
    for place in np.ndindex(3, 2):
        expected = _mixed(model.embedding, features[place].numpy(), temperature)
        np.testing.assert_allclose(log_probs[place].detach().exp(), expected, atol=1e-12)


def test_equal_components_are_one_softmax(random_model):
    """A mixture of copies is a copy; far-out features lose no probability to overflow."""
    model = random_model(softmax_components=3)
    mixture = model.embedding.mixture
    with torch.no_grad():
        mixture.projection.copy_(mixture.projection[:1].expand(3, -1, -1))
        mixture.projection_bias.copy_(mixture.projection_bias[:1].expand(3, -1))
    features = 1e3 * torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    latents = torch.tanh(features @ mixture.projection[0].T + mixture.projection_bias[0])
    logits = latents @ model.embedding.output.T + model.embedding.bias
    torch.testing.assert_close(model.log_probs(features), torch.log_softmax(logits, -1))


@pytest.mark.parametrize("components", [1, 2])
def test_one_component_is_no_mixture(components):
    """The plain softmax has no projections; a mixture has as many weights as its configuration counts."""
    config = ModelConfig(vocab_size=9, hidden_size=4, softmax_components=components)
    model = LanguageModel(config)
    assert (model.embedding.mixture is None) == (components == 1)
    assert sum(weight.numel() for weight in model.parameters()) == config.num_parameters
