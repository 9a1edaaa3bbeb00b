"""Layers: gradients by finite differences, dropout, precision, and what is kept how long.

That the numbers are those of the equations shows ``test_language_model.py``, against the NumPy reference.
"""

import gc
import math
import weakref
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rlstm_model.config import Stacking
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.state import State

CELLS = [("rlstm", True), ("lstm", True), ("lstm", False)]
LAYERS = [
    {"cell": cell, "cap_input_gate": capped, "mogrifier_rounds": rounds, "mogrifier_rank": rank}
    for cell, capped in CELLS
    for rounds, rank in ((0, 0), (1, 0), (2, 2), (5, 2))
]


def _id(shape):
    return "-".join(map(str, shape.values()))


def _gradcheck(model, read, x, state):
    """Finite differences of what ``read`` gives of x and the state, in all weights too."""
    weights = [weight for weight in model.stack.parameters() if weight.numel()]
    inputs = (x, *state)

    def window(x, h, c, *_):
        features, last = read(x, State(h, c))
        return features, *last

    return torch.autograd.gradcheck(window, (*(tensor.requires_grad_() for tensor in inputs), *weights))


@pytest.mark.parametrize("shape", LAYERS, ids=_id)
@pytest.mark.parametrize("masked", [True, False])
def test_oracle_a_gradcheck(random_model, draw_inputs, draw_masks, shape, masked):
    """Finite differences agree with the hand-written backward pass, for inputs, state and all weights."""
    model = random_model(num_layers=1, hidden_size=3, **shape)
    x, state = draw_inputs(model, time=3, batch=2)
    masks = draw_masks(model, time=3, batch=2) if masked else NO_DROPOUT
    assert _gradcheck(model, lambda x, state: model.stack.sequence(x, state, masks), x, state)


@pytest.mark.parametrize("stacking", get_args(Stacking))
@pytest.mark.parametrize("bias", [True, False])
def test_oracle_a_gradcheck_of_a_stack(random_model, draw_inputs, draw_masks, stacking, bias):
    """The same through three layers, however they are stacked."""
    model = random_model(num_layers=3, hidden_size=2, stacking=stacking, mogrifier_bias=bias)
    x, state = draw_inputs(model, time=2, batch=2)
    masks = draw_masks(model, time=2, batch=2)
    assert _gradcheck(model, lambda x, state: model.stack.sequence(x, state, masks), x, state)


def test_layers_may_have_widths_of_their_own(random_model, draw_inputs, draw_masks):
    """Gradients with dropout through LSTMs of 2 and 3 units."""
    lstms = {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 0, "stacking": "plain"}
    model = random_model(hidden_size=3, widths=(3, 2, 3), **lstms)
    x, state = draw_inputs(model, time=3, batch=2)
    masks = draw_masks(model, time=3, batch=2)
    assert _gradcheck(model, lambda x, state: model.stack.sequence(x, state, masks), x, state)


@pytest.mark.parametrize("learning", [True, False])
def test_a_text_may_be_cut_anywhere(random_model, draw_inputs, learning):
    """Token by token: the same features and the same state, with and without gradients."""
    model = random_model(num_layers=3, mogrifier_rank=2)
    x, state = draw_inputs(model)
    with torch.set_grad_enabled(learning):
        whole, last = model.stack.sequence(x, state)
        parts = []
        for x_1BH in x.split(1):
            features, state = model.stack.sequence(x_1BH, state)
            parts.append(features)
    torch.testing.assert_close((torch.cat(parts), state), (whole, last), atol=1e-12, rtol=0)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_without_cap_and_rounds_the_lstm_is_torchs(random_model, draw_inputs, num_layers):
    """Outputs, last state and all gradients equal torch.nn.LSTM's."""
    shape = {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 0, "stacking": "plain"}
    model, n, order = random_model(num_layers=num_layers, **shape), 5, [0, 2, 1, 3]
    theirs = nn.LSTM(n, n, num_layers).double()

    def reordered(weight):  # its order is i, f, g, o, ours is i, j, f, o
        return weight.reshape(4, n, -1)[order].reshape(weight.shape)

    with torch.no_grad():
        for index, layer in enumerate(model.stack.layers):
            getattr(theirs, f"weight_ih_l{index}").copy_(reordered(layer.x))
            getattr(theirs, f"weight_hh_l{index}").copy_(reordered(layer.h))
            getattr(theirs, f"bias_ih_l{index}").copy_(reordered(layer.bias))
            getattr(theirs, f"bias_hh_l{index}").zero_()
    x, state = draw_inputs(model)
    features, last = model.stack.sequence(x, state)
    expected, (h, c) = theirs(x, tuple(state))
    torch.testing.assert_close((features, *last), (expected, h, c), atol=1e-12, rtol=0)
    features.sin().sum().backward()
    expected.sin().sum().backward()
    for index, layer in enumerate(model.stack.layers):
        for ours, name in ((layer.x, "weight_ih_l"), (layer.h, "weight_hh_l"), (layer.bias, "bias_ih_l")):
            torch.testing.assert_close(reordered(ours.grad), getattr(theirs, f"{name}{index}").grad)


@pytest.mark.parametrize("cached", [1, 40, 10**6])
def test_how_many_derivatives_are_worked_out_at_once_changes_no_bit(
    random_model, monkeypatch, draw_inputs, cached
):
    """Of a step at a time, of some, of all."""
    model = random_model(mogrifier_rank=2)
    x, state = draw_inputs(model)
    gradients = []
    for values in (30, cached):
        monkeypatch.setattr("rlstm_model.network.window._CACHED_VALUES", values)
        features, _ = model.stack.sequence(x, state)
        gradients.append(torch.autograd.grad(features.sin().sum(), list(model.stack.parameters())))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class _Held:
    """What a saved tensor is packed into, so that its end can be seen."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
@pytest.mark.parametrize("backward", [True, False])
def test_saved_activations_are_freed_with_a_windows_outputs(random_model, draw_inputs, cell, backward):
    """No cycle keeps what the backward pass needed, and the backward pass itself lets go of it."""
    model = random_model(cell=cell)
    x, state = draw_inputs(model)
    held = []

    def pack(tensor):
        packed = _Held(tensor)
        held.append(weakref.ref(packed))
        return packed

    gc.collect()
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor):
            outputs, last = model.stack.sequence(x, state)
        assert len(held) > 10
        assert all(packed() is not None for packed in held)
        if backward:
            (outputs.sum() + last.c.sum()).backward()
        else:
            del outputs, last
        assert all(packed() is None for packed in held)
    finally:
        gc.enable()


@pytest.mark.parametrize("changed", ["weight", "outputs"])
def test_a_change_between_the_two_directions_is_an_error(random_model, draw_inputs, changed):
    """Weights or outputs overwritten before the backward pass would give wrong gradients in silence."""
    model = random_model(num_layers=1)
    outputs, _ = model.stack.sequence(*draw_inputs(model))

    def change_and_go_back():
        with torch.no_grad():
            (outputs if changed == "outputs" else model.stack.layers[0].h).mul_(2)
        outputs.sum().backward()

    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|modified inplace"):
        change_and_go_back()


def test_going_back_twice_gives_the_same_gradients(random_model, draw_inputs, draw_masks):
    """Saved activations are only read."""
    model = random_model(mogrifier_rank=2)
    features, _ = model.stack.sequence(*draw_inputs(model), draw_masks(model))
    weights = list(model.stack.parameters())
    once = torch.autograd.grad(features.sin().sum(), weights, retain_graph=True)
    twice = torch.autograd.grad(features.sin().sum(), weights)
    assert all(torch.equal(*pair) for pair in zip(once, twice, strict=True))


@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    cell=st.sampled_from(["rlstm", "lstm"]),
)
def test_the_cap_bounds_c_by_1_and_h_by_tanh_1(random_model, draw_inputs, seed, scale, cell):
    """From a bounded start no weights and no input can leave the bounds."""
    model = random_model(seed=seed, scale=scale, cell=cell, num_layers=1)
    x, state = draw_inputs(model, time=20, seed=seed)
    outputs, last = model.stack.sequence(10 * x, state)
    assert last.c.abs().max() <= 1 + 1e-12
    assert outputs.abs().max() <= math.tanh(1) + 1e-12


def test_at_a_tie_the_input_gate_takes_the_gradient(random_model):
    """With i = 1 - f = 1/2 the whole gradient of what is written reaches i, and f sees only the old c."""
    model = random_model(num_layers=1, hidden_size=1, mogrifier_rounds=0)
    layer = model.stack.layers[0]
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.bias[1] = 1.0
    zero, one = torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double()
    _, last = model.stack.sequence(zero, State(zero, zero))
    d_i, _, d_f, _ = torch.autograd.grad(last.c, layer.bias, one)[0].tolist()
    assert d_i == pytest.approx(math.tanh(1.0) / 4)
    assert d_f == 0.0


def _single(state):
    return State(*(value.float() for value in state))


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_bfloat16_products_stay_close_to_float32(random_model, draw_inputs, draw_masks, cell):
    """Features, state and every gradient differ by at most 2 % in norm; everything stays float32."""
    model = random_model(cell=cell, dtype=torch.float32, hidden_size=64, scale=0.1, mogrifier_rank=8)
    x, state = draw_inputs(model)
    results = []
    for precision in (None, torch.float32, torch.bfloat16):
        masks = draw_masks(model)
        features, last = model.stack.sequence(x.float(), _single(state), masks, precision=precision)
        gradients = torch.autograd.grad(features.square().sum(), list(model.stack.parameters()))
        results.append([features, *last, *gradients])
    for default, exact, close in zip(*results, strict=True):
        assert torch.equal(default, exact)
        assert close.dtype == torch.float32
        assert not torch.equal(exact, close)
        assert (close - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("stacking", get_args(Stacking))
@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_a_gpu_reads_what_a_cpu_reads(random_model, draw_inputs, draw_masks, stacking, cell):
    """Features, state and every gradient to 1e-10 in float64, with dropout."""
    model = random_model(num_layers=3, stacking=stacking, cell=cell, mogrifier_rank=2)
    x, state = draw_inputs(model)
    masks, results = draw_masks(model), []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        moved = DropoutMasks(*(None if mask is None else mask.to(device) for mask in masks))
        before = State(*(part.to(device) for part in state))
        features, last = model.stack.sequence(x.to(device), before, moved)
        gradients = torch.autograd.grad(features.sin().sum(), list(model.stack.parameters()))
        results.append([value.cpu() for value in (features, *last, *gradients)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
