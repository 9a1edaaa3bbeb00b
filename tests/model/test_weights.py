"""Weights of layers, flat and stacked."""

import pytest
import torch

from rlstm_model.weights import GroupWeights, LayerWeights

SHAPES = [{}, {"cell": "lstm"}, {"mogrifier_rank": 2, "mogrifier_bias": False}, {"mogrifier_rounds": 0}]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flat_weights_become_layers_again(random_model, shape):
    """Every tensor comes back in its place, with None where a layer has none."""
    layers = [layer.weights for layer in random_model(num_layers=3, **shape).stack.layers]
    again = LayerWeights.from_flat([tensor for layer in layers for tensor in layer.flat()])
    assert len(again) == 3
    for layer, copy in zip(layers, again, strict=True):
        assert all(ours is theirs for ours, theirs in zip(layer.flat(), copy.flat(), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_group_of_layers_has_their_weights_on_top_of_each_other(random_model, shape):
    """Row l of every stacked tensor is layer l's; transposed they are views for products from the left."""
    layers = [layer.weights for layer in random_model(num_layers=2, **shape).stack.layers]
    group = GroupWeights.of(layers, torch.float64)
    assert len(group.rounds) == len(layers[0].mogrifier.up)
    for index, layer in enumerate(layers):
        assert torch.equal(group.cell.h[index], layer.cell.h)
        assert torch.equal(group.cell.bias[index, 0], layer.cell.bias)
        assert torch.equal(group.transposed().cell.x[index], layer.cell.x.T)
        for k, weights in enumerate(group.rounds):
            assert torch.equal(weights.up[index], layer.mogrifier.up[k])
            assert torch.equal(weights.transposed().up[index], layer.mogrifier.up[k].T)
            assert (weights.bias is None) == (layer.mogrifier.bias is None)


def test_one_layer_in_its_own_precision_is_not_copied(random_model):
    """Its stacked weights are the parameters themselves."""
    layer = random_model().stack.layers[0].weights
    group = GroupWeights.of([layer], torch.float64)
    assert group.cell.x.data_ptr() == layer.cell.x.data_ptr()
    assert group.rounds[0].up.data_ptr() == layer.mogrifier.up.data_ptr()


def test_a_lower_precision_is_for_matrices_only(random_model):
    """Biases are added, not multiplied: they stay as they are."""
    group = GroupWeights.of([random_model(dtype=torch.float32).stack.layers[0].weights], torch.bfloat16)
    assert group.cell.x.dtype == group.rounds[0].up.dtype == torch.bfloat16
    assert group.cell.bias.dtype == group.rounds[0].bias.dtype == torch.float32
