"""How deep the way back of many rows goes; that gradients are right show the tests of ``subspace``."""

import pytest
import torch

from rlstm_model.network.products import RowMatrix
from rlstm_model.network.row_model import RowEmbedding, RowModel
from rlstm_model.network.stack import Stack

ROWS, TIME, LAYERS, VOCABULARY = 3, 4, 3, 7
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
    model = random_model(num_layers=LAYERS, vocab_size=VOCABULARY, stacking=request.param)
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


def _tape(rows):
    ids = torch.randint(VOCABULARY, (TIME, ROWS), generator=torch.Generator().manual_seed(6))
    return rows.tape(ids, rows.model.initial_state(ROWS))


def _back(tape):
    generator = torch.Generator().manual_seed(7)
    return tape.back(torch.randn(TIME, ROWS, VOCABULARY, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("adapting", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_gradients_of_some_layers_are_those_of_all(whole, adapting):
    """What is asked for is the same to the bit, everything else None: no tape is kept of layers below."""
    tape = _tape(_partly(whole, NOTHING, adapting))
    _, expected = _back(_tape(whole))
    gradients = _back(tape)
    assert len(tape.passes) == LAYERS - min(adapting)
    assert gradients.embedding == (None, None, None)
    for index, (found, wanted) in enumerate(zip(gradients.layers, expected, strict=True)):
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) if index not in adapting or other is None else torch.equal(one, other)


def test_a_softmax_that_adapts_alone_needs_no_way_through_the_layers(whole):
    """Its cores and bias get their gradients without any tape."""
    tape = _tape(_partly(whole, whole.embedding._replace(input=None), set()))
    expected, _ = _back(_tape(whole))
    found, layers = _back(tape)
    assert not tape.passes
    assert found.input is None
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.bias, expected.bias)
    assert all(gradient is None for layer in layers for gradient in layer)


@pytest.mark.parametrize("steps_at_once", [1, 3, 100])
def test_an_input_that_adapts_needs_the_whole_way(whole, monkeypatch, steps_at_once):
    """Every layer is gone back through, though none takes a gradient, and steps share what room they need."""
    values = steps_at_once * ROWS * whole.model.config.hidden_size
    monkeypatch.setattr("rlstm_model.way_back._CACHED_VALUES", values)
    tape = _tape(_partly(whole, whole.embedding._replace(output=None, bias=None), set()))
    expected, _ = _back(_tape(whole))
    found, layers = _back(tape)
    assert len(tape.passes) == LAYERS
    torch.testing.assert_close(found.input, expected.input, atol=1e-12, rtol=0)
    assert all(gradient is None for layer in layers for gradient in layer)


def test_a_tape_reads_what_reading_reads(whole):
    """Features and state equal to the bit, whatever part of the layers is taped."""
    for adapting in (set(), {2}, {0}):
        rows = _partly(whole, NOTHING, adapting)
        tape = _tape(rows)
        features, state = rows.read(tape.ids, rows.model.initial_state(ROWS))
        assert torch.equal(tape.features, features)
        assert torch.equal(tape.state.h, state.h)
        assert torch.equal(tape.state.c, state.c)


@pytest.mark.parametrize("adapting", [{0}, {1}, {0, 2}, {0, 1, 2}])
def test_layers_unlike_each_other_do_not_step_together(whole, monkeypatch, adapting):
    """Where a device reads in a wave, as it is asked to here: features and gradients are the same."""
    rows = [_partly(whole, NOTHING, adapting) for _ in range(2)]
    plain = _tape(rows[0])
    monkeypatch.setattr(Stack, "layers_at_once", lambda stack, *_: len(stack.layers))
    together = _tape(rows[1])
    assert len(together.passes) == (1 if len(adapting) == LAYERS else LAYERS - min(adapting))
    torch.testing.assert_close(together.features, plain.features, atol=1e-11, rtol=0)
    for found, expected in zip(_back(together).layers, _back(plain).layers, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)
