"""Groups of layers over a window: both directions, layer by layer and in a wave."""

import gc
import math
import weakref
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.config import Stacking
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks

LAYERS = [
    {"cell": cell, "cap_input_gate": capped, "mogrifier_rounds": rounds, "mogrifier_rank": rank}
    for cell, capped in (("rlstm", True), ("lstm", True), ("lstm", False))
    for rounds, rank in ((0, 0), (1, 0), (2, 2), (5, 2))
]


def _gradients(results, inputs, stack):
    loss = sum(0.5 * value.sin().sum() for value in results)
    wanted = [*inputs, *stack.parameters()]
    return torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("masked", [True, False])
def test_oracle_a_gradcheck(random_model, read_layer, draw_inputs, draw_masks, shape, masked):
    """Finite differences agree with the hand-written backward pass, for inputs, state and all weights."""
    model = random_model(num_layers=1, hidden_size=3, **shape)
    layer = model.stack.layers[0]
    x, state = draw_inputs(model, time=3, batch=2)
    mask = draw_masks(model, time=3, batch=2).state[0] if masked else None
    inputs = (x, state.h[0], state.c[0])
    weights = [weight for weight in layer.parameters() if weight.numel()]

    def window(x, h, c, *_):
        return read_layer(layer, x, h, c, mask)

    assert torch.autograd.gradcheck(window, (*(tensor.requires_grad_() for tensor in inputs), *weights))


@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_backward_pass_equals_autograd_through_the_plain_layer(
    random_model, read_layer, plain, draw_inputs, draw_masks, shape, masked, bias
):
    """The same outputs to 1e-12 and gradients to 1e-10, also of what a layer's last c contributes."""
    model = random_model(num_layers=1, mogrifier_bias=bias, **shape)
    layer = model.stack.layers[0]
    x, state = draw_inputs(model)
    mask = draw_masks(model).state[0] if masked else None
    inputs = [tensor.requires_grad_() for tensor in (x, state.h[0].clone(), state.c[0].clone())]
    results = [form(layer, *inputs, mask) for form in (plain.layer_window, read_layer)]
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
    for expected, ours in zip(*(_gradients(result, inputs, layer) for result in results), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("stacking", get_args(Stacking))
@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("masked", [True, False])
def test_oracle_h_the_wave_equals_layer_by_layer(
    random_model, plain, draw_inputs, draw_masks, stacking, shape, masked
):
    """Features, state and every gradient to 1e-10, and both equal the plain stack, dropout or not."""
    model = random_model(num_layers=4, stacking=stacking, **shape)
    x, state = draw_inputs(model)
    masks = draw_masks(model) if masked else NO_DROPOUT
    inputs = [tensor.requires_grad_() for tensor in (x, *state)]
    forms = [model.stack.sequence(x, state, masks, wave=wave) for wave in (True, False)]
    results = [(features, *last) for features, last in forms] + [
        plain.stack_window(model.stack, x, state, masks)
    ]
    gradients = [_gradients(result, inputs, model.stack) for result in results]
    for wave, by_layer, expected in zip(*results, strict=True):
        torch.testing.assert_close(wave, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(by_layer, expected, atol=1e-12, rtol=0)
    for wave, by_layer, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(wave, expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(by_layer, expected, atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        features, last = model.stack.sequence(x, state, masks, wave=True)
    torch.testing.assert_close((features, *last), results[2], atol=1e-12, rtol=0)


@settings(max_examples=30)
@given(time=st.integers(1, 7), layers=st.integers(1, 6), stacking=st.sampled_from(get_args(Stacking)))
def test_a_wave_may_be_shorter_than_the_stack_is_deep(
    random_model, draw_inputs, draw_masks, time, layers, stacking
):
    """With fewer tokens than layers no step has all layers active; the numbers are the same."""
    model = random_model(num_layers=layers, stacking=stacking)
    x, state = draw_inputs(model, time=time)
    masks = draw_masks(model, time=time)
    results = []
    for wave in (True, False):
        features, last = model.stack.sequence(x, state, masks, wave=wave)
        gradients = torch.autograd.grad((features * features).sum(), list(model.stack.parameters()))
        results.append([features, *last, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("cached", [1, 40, 10**6])
def test_how_many_slopes_are_worked_out_at_once_changes_no_bit(
    random_model, monkeypatch, draw_inputs, cached
):
    """A step at a time, some at a time, all at once."""
    model = random_model(mogrifier_rank=2)
    x, state = draw_inputs(model)
    gradients = []
    for values in (30, cached):
        monkeypatch.setattr("rlstm_model.way_back._CACHED_VALUES", values)
        features, _ = model.stack.sequence(x, state)
        gradients.append(torch.autograd.grad(features.sin().sum(), list(model.stack.parameters())))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class _Held:
    """What a saved tensor is packed into, so that its end can be seen."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
@pytest.mark.parametrize("wave", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_a_windows_tape_is_freed_with_its_outputs(random_model, draw_inputs, cell, wave, backward):
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
            outputs, last = model.stack.sequence(x, state, wave=wave)
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
    x, state = draw_inputs(model)
    outputs, _ = model.stack.sequence(x, state)

    def change_and_go_back():
        with torch.no_grad():
            (outputs if changed == "outputs" else model.stack.layers[0].h).mul_(2)
        outputs.sum().backward()

    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|modified inplace"):
        change_and_go_back()


def test_going_back_twice_gives_the_same_gradients(random_model, draw_inputs, draw_masks):
    """The tape is only read."""
    model = random_model(mogrifier_rank=2)
    x, state = draw_inputs(model)
    features, _ = model.stack.sequence(x, state, draw_masks(model))
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


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_pitfall_4_what_is_carried_and_what_goes_up_is_raw(random_model, plain, draw_inputs, cell):
    """A dropped unit of h is dropped from the reading of h, not from the output nor the carried state."""
    model = random_model(num_layers=1, cell=cell)
    x, state = draw_inputs(model, time=1)
    mask = torch.zeros_like(state.h)
    outputs, last = model.stack.sequence(x, state, DropoutMasks(state=mask))
    wanted, c = plain.layer_window(model.stack.layers[0], x, state.h[0], state.c[0], mask[0])
    assert bool((outputs != 0).all())
    torch.testing.assert_close(outputs, wanted)
    torch.testing.assert_close(last.h[0], wanted[0])
    torch.testing.assert_close(last.c[0], c)
