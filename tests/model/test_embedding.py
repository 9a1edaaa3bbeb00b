"""Input and output embeddings, tied and not."""

import pytest
import torch


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
