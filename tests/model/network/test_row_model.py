"""How deep the backward pass of many rows goes; that gradients are right shows ``test_backend``."""

import pytest
import torch

from rlstm_model.network.products import RowMatrix
from rlstm_model.network.row_model import RowEmbedding, RowModel

ROWS, TIME, LAYERS, VOCABULARY = 8, 4, 3, 16
NOTHING = RowEmbedding(None, None, None)


def _cores_of_zero(shared, generator):
    """Nothing is added yet, but there is a gradient."""
    rows, columns = shared.shape
    left = torch.randn(rows, 2, generator=generator, dtype=shared.dtype)
    right = torch.randn(2, columns, generator=generator, dtype=shared.dtype)
    return RowMatrix(shared.detach(), left, left.new_zeros(ROWS, 2, 2), right)


def _adapting(layer, generator):
    """A layer with rows' own cores of ``h`` and biases of the cell."""
    bias = layer.cell.bias.detach().repeat(ROWS, 1)
    return layer._replace(cell=layer.cell._replace(h=_cores_of_zero(layer.cell.h, generator), bias=bias))


@pytest.fixture(params=["residual", "skip", "plain"])
def whole(random_model, request):
    """A model to all parts of which rows add, though zero: so that parts can be taken away."""
    model = random_model(
        num_layers=LAYERS, vocab_size=VOCABULARY, hidden_size=16, scale=0.2, stacking=request.param
    )
    generator, embedding = torch.Generator().manual_seed(5), model.embedding
    own = RowEmbedding(
        _cores_of_zero(embedding.input, generator),
        _cores_of_zero(embedding.output, generator),
        embedding.bias.detach().repeat(ROWS, 1),
    )
    layers = [_adapting(model.stack.layer(index), generator) for index in range(LAYERS)]
    return RowModel(model, own, layers)


def _partly(whole, embedding, adapting):
    """Only those layers adapt."""
    shared = [whole.model.stack.layer(index) for index in range(LAYERS)]
    layers = [whole.layers[index] if index in adapting else shared[index] for index in range(LAYERS)]
    return RowModel(whole.model, embedding, layers)


def _unrolled(rows):
    ids = torch.randint(VOCABULARY, (TIME, ROWS), generator=torch.Generator().manual_seed(6))
    return rows.unroll(ids, rows.model.initial_state(ROWS))


def _back(window):
    generator = torch.Generator().manual_seed(7)
    return window.backward(torch.randn(TIME, ROWS, VOCABULARY, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("adapting", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_gradients_of_some_layers_are_those_of_all(whole, adapting):
    """What is asked for is the same to the bit, else None: nothing is saved of layers below."""
    window = _unrolled(_partly(whole, NOTHING, adapting))
    _, expected = _back(_unrolled(whole))
    gradients = _back(window)
    assert len(window.layers) == LAYERS - min(adapting)
    assert gradients.embedding == (None, None, None)
    for index, (found, wanted) in enumerate(zip(gradients.layers, expected, strict=True)):
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) if index not in adapting or other is None else torch.equal(one, other)


def test_a_softmax_that_adapts_alone_needs_no_layers(whole):
    """Its cores and bias get their gradients without any saved activations."""
    window = _unrolled(_partly(whole, whole.embedding._replace(input=None), set()))
    expected, _ = _back(_unrolled(whole))
    found, layers = _back(window)
    assert not window.layers
    assert found.input is None
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.bias, expected.bias)
    assert all(gradient is None for layer in layers for gradient in layer)


@pytest.mark.parametrize("steps_at_once", [1, 3, 100])
def test_an_input_that_adapts_needs_all_layers(whole, monkeypatch, steps_at_once):
    """Every layer is gone back through, though none takes a gradient, and steps share what room they need."""
    values = steps_at_once * ROWS * whole.model.config.hidden_size
    monkeypatch.setattr("rlstm_model.network.window._CACHED_VALUES", values)
    window = _unrolled(_partly(whole, whole.embedding._replace(output=None, bias=None), set()))
    expected, _ = _back(_unrolled(whole))
    found, layers = _back(window)
    assert len(window.layers) == LAYERS
    torch.testing.assert_close(found.input, expected.input, atol=1e-12, rtol=0)
    assert all(gradient is None for layer in layers for gradient in layer)


def test_unrolling_reads_what_reading_reads(whole):
    """Features and state equal to the bit, whatever part of the layers is saved."""
    for adapting in (set(), {2}, {0}):
        rows = _partly(whole, NOTHING, adapting)
        window = _unrolled(rows)
        features, state = rows.read(window.ids, rows.model.initial_state(ROWS))
        assert torch.equal(window.features, features)
        assert torch.equal(window.state.h, state.h)
        assert torch.equal(window.state.c, state.c)
