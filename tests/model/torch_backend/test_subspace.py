"""What is no subspace of a model. What its rows compute show ``test_backend`` and ``test_fast_weights``."""

import dataclasses

import pytest
import torch

from rlstm_model.torch_backend.subspace import SubspaceFastWeights


def test_bases_of_another_model_are_refused(tiny_model, subspace):
    """A basis must fit a matrix of the model, and a bias be one."""
    model = tiny_model()
    basis = subspace(model, 2).bases["stack.layers.0.c"]
    with pytest.raises(ValueError, match=r"stack\.layers\.0\.x"):
        SubspaceFastWeights(model, {"stack.layers.0.x": basis}, [])
    with pytest.raises(ValueError, match="no matrix nonsense"):
        SubspaceFastWeights(model, {"nonsense": basis}, [])
    with pytest.raises(ValueError, match=r"no bias embedding\.input"):
        SubspaceFastWeights(model, {}, ["embedding.input"])


def test_a_mixture_of_softmaxes_is_refused(tiny_model):
    """Rows can add nothing to one, and say so."""
    model = tiny_model(dtype=torch.float64, softmax_components=2)
    subspace = SubspaceFastWeights(model, {}, ["embedding.bias"])
    with pytest.raises(ValueError, match="mixture of softmaxes"):
        subspace.rows(torch.zeros(1, subspace.size, dtype=torch.float64))


@pytest.mark.parametrize(
    "places",
    [
        torch.tensor([0, 1, 1]),
        torch.tensor([3, 2]),
        torch.tensor([-1, 2]),
        torch.tensor([0, 10**6]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([[0, 1]]),
        torch.tensor(3),
        torch.tensor([0.0, 1.0]),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([True, False]),
    ],
    ids=["twice", "falling", "negative", "beyond", "none", "matrix", "number", "floats", "int32", "mask"],
)
def test_wrong_places_are_refused(tiny_model, subspace, places):
    """Places must be ascending, each once, and among the elements that there are."""
    with pytest.raises(ValueError, match="chosen_P must be"):
        dataclasses.replace(subspace(tiny_model(), 2), chosen_P=places)
