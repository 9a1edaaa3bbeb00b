"""The stack over time: both forms, its stackings and its invariants."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rlstm_model.config import Stacking
from rlstm_model.network.dropout import DropoutMasks
from rlstm_model.network.state import State

LAYERS = [
    {"cell": cell, "cap_input_gate": capped, "mogrifier_rounds": rounds, "mogrifier_rank": rank}
    for cell, capped in (("rlstm", True), ("lstm", True), ("lstm", False))
    for rounds, rank in ((0, 0), (1, 0), (2, 2), (5, 2))
]


def _torch_lstm(layer, n):
    """A torch.nn.LSTM with our layer's weights: its order is i, f, g, o, ours is i, j, f, o."""
    theirs = nn.LSTM(n, n).double()
    order = [0, 2, 1, 3]
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.x.reshape(4, n, n)[order].reshape(4 * n, n))
        theirs.weight_hh_l0.copy_(layer.h.reshape(4, n, n)[order].reshape(4 * n, n))
        theirs.bias_ih_l0.copy_(layer.bias.reshape(4, n)[order].reshape(4 * n))
        theirs.bias_hh_l0.zero_()
    return theirs


def _reordered(gradient, n):
    return gradient.reshape(4, n, -1)[[0, 2, 1, 3]].reshape(gradient.shape)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_without_cap_and_rounds_the_lstm_is_torchs(random_model, draw_inputs, num_layers):
    """Outputs, last state and all gradients equal torch.nn.LSTM's; two layers add up."""
    model = random_model(num_layers=num_layers, cell="lstm", cap_input_gate=False, mogrifier_rounds=0)
    x, state = draw_inputs(model)
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    features, last = model.stack.sequence(x_ours, state)
    layers = [_torch_lstm(layer, 5) for layer in model.stack.layers]
    total, signal, finals = 0, x_theirs, []
    for index, layer in enumerate(layers):
        signal, final = layer(signal, (state.h[index][None], state.c[index][None]))
        total = total + signal
        finals.append(final)
    torch.testing.assert_close(features, total, atol=1e-12, rtol=0)
    torch.testing.assert_close(last.h, torch.cat([h for h, _ in finals]), atol=1e-12, rtol=0)
    torch.testing.assert_close(last.c, torch.cat([c for _, c in finals]), atol=1e-12, rtol=0)
    features.sin().sum().backward()
    total.sin().sum().backward()
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, atol=1e-12, rtol=1e-10)
    for ours, theirs in zip(model.stack.layers, layers, strict=True):
        torch.testing.assert_close(_reordered(ours.x.grad, 5), theirs.weight_ih_l0.grad)
        torch.testing.assert_close(_reordered(ours.h.grad, 5), theirs.weight_hh_l0.grad)
        torch.testing.assert_close(_reordered(ours.bias.grad, 5), theirs.bias_ih_l0.grad)


@pytest.mark.parametrize("shape", LAYERS, ids=lambda shape: "-".join(map(str, shape.values())))
@pytest.mark.parametrize("learning", [True, False])
def test_reading_at_once_equals_reading_step_by_step(random_model, draw_inputs, shape, learning):
    """The two forms give the same features and the same state, with and without gradients."""
    model = random_model(num_layers=3, **shape)
    x, state = draw_inputs(model)
    with torch.set_grad_enabled(learning):
        whole, last = model.stack.sequence(x, state)
    for t in range(len(x)):
        features, state = model.stack.step(x[t], state)
        torch.testing.assert_close(features, whole[t], atol=1e-12, rtol=0)
    torch.testing.assert_close(state.h, last.h, atol=1e-12, rtol=0)
    torch.testing.assert_close(state.c, last.c, atol=1e-12, rtol=0)


@given(cuts=st.sets(st.integers(1, 11)), seed=st.integers(0, 100))
def test_oracle_c_chunked_equals_whole(random_model, draw_inputs, cuts, seed):
    """Windows cut anywhere, with the state carried on, give what one window gives."""
    model = random_model(seed=seed)
    x, state = draw_inputs(model, time=12)
    whole, last = model.stack.sequence(x, state)
    parts = []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 12], strict=True):
        part, state = model.stack.sequence(x[start:stop], state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(state.c, last.c, atol=1e-12, rtol=0)


def test_rows_do_not_touch_each_other(random_model, draw_inputs):
    """Changing one row's input and state changes no other row."""
    model = random_model()
    x, state = draw_inputs(model)
    before, _ = model.stack.sequence(x, state)
    x, h = x.clone(), state.h.clone()
    x[:, 1] += 1.0
    h[:, 1] -= 1.0
    after, _ = model.stack.sequence(x, State(h, state.c))
    torch.testing.assert_close(after[:, [0, 2]], before[:, [0, 2]], atol=1e-12, rtol=0)
    assert (after[:, 1] - before[:, 1]).abs().max() > 1e-3


def test_pitfall_1_the_residual_sum_holds_every_layer_and_no_embedding(random_model, read_layer, draw_inputs):
    """Layer 3 reads xhat_1 + xhat_2; the features are xhat_1 + xhat_2 + xhat_3."""
    model = random_model(num_layers=3)
    x, state = draw_inputs(model)
    features, last = model.stack.sequence(x, state)
    outputs, source = [], x
    for index, layer in enumerate(model.stack.layers):
        output, c = read_layer(layer, source, state.h[index], state.c[index])
        torch.testing.assert_close(last.c[index], c)
        outputs.append(output)
        source = torch.stack(outputs).sum(0)
    torch.testing.assert_close(features, source)


@pytest.mark.parametrize("stacking", get_args(Stacking))
@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("learning", [True, False])
def test_both_forms_agree_in_every_stacking(random_model, draw_inputs, stacking, num_layers, learning):
    """Steps give the features and the state that the window gives."""
    model = random_model(stacking=stacking, num_layers=num_layers)
    x, state = draw_inputs(model)
    with torch.set_grad_enabled(learning):
        whole, last = model.stack.sequence(x, state)
    for t in range(len(x)):
        features, state = model.stack.step(x[t], state)
        torch.testing.assert_close(features, whole[t], atol=1e-12, rtol=0)
    torch.testing.assert_close(state.h, last.h, atol=1e-12, rtol=0)


def test_two_layers_under_a_residual_sum_are_two_layers_with_a_skip(random_model, draw_inputs, draw_masks):
    """Bit for bit, in features, state and gradients, cell dropout or not: only a third layer differs."""
    for masks in (draw_masks(random_model()), DropoutMasks()):
        results = []
        for stacking in ("residual", "skip"):
            model = random_model(stacking=stacking)
            x, state = draw_inputs(model)
            features, last = model.stack.sequence(x, state, masks)
            gradients = torch.autograd.grad(features.sin().sum(), list(model.stack.parameters()))
            results.append([features, last.h, last.c, *gradients])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_three_layers_differ_by_stacking(random_model, draw_inputs):
    """The same weights give three different features."""
    features = []
    for stacking in get_args(Stacking):
        model = random_model(stacking=stacking, num_layers=3)
        features.append(model.stack.sequence(*draw_inputs(model))[0])
    residual, skip, plain = features
    assert (residual - skip).abs().max() > 1e-3
    assert (skip - plain).abs().max() > 1e-3


def test_plain_features_are_the_last_layers_output_alone(random_model, draw_inputs, draw_masks):
    """They equal the last h when nothing is dropped, and lose exactly what its cell mask drops."""
    model = random_model(stacking="plain", num_layers=3)
    x, state = draw_inputs(model)
    features, last = model.stack.sequence(x, state)
    assert torch.equal(features[-1], last.h[-1])
    cell = torch.ones(3, *x.shape, dtype=torch.float64)
    cell[-1] = draw_masks(model).cell[-1]
    dropped, _ = model.stack.sequence(x, state, DropoutMasks(cell=cell))
    assert torch.equal(dropped, features * cell[-1])


def test_pitfall_5_each_layer_uses_its_own_state_mask(random_model, draw_inputs):
    """Changing layer 2's state mask changes layer 2 and leaves layer 1 as it was."""
    model = random_model()
    x, state = draw_inputs(model)
    ones = torch.ones_like(state.h)
    other = ones.clone()
    other[1] = 0.0
    _, same = model.stack.sequence(x, state, DropoutMasks(state=ones))
    _, changed = model.stack.sequence(x, state, DropoutMasks(state=other))
    assert torch.equal(same.h[0], changed.h[0])
    assert (same.h[1] - changed.h[1]).abs().max() > 1e-3


def test_pitfall_8_cell_dropout_acts_on_the_next_input_and_on_the_output_sum(
    random_model, read_layer, draw_inputs, draw_masks
):
    """The same dropped value of layer 1 reaches layer 2 and the features; the carried h is whole."""
    model = random_model()
    x, state = draw_inputs(model)
    cell = draw_masks(model).cell
    features, last = model.stack.sequence(x, state, DropoutMasks(cell=cell))
    first, second = model.stack.layers
    below, _ = read_layer(first, x, state.h[0], state.c[0])
    above, _ = read_layer(second, below * cell[0], state.h[1], state.c[1])
    torch.testing.assert_close(features, below * cell[0] + above * cell[1])
    torch.testing.assert_close(last.h[0], below[-1])


def test_pitfall_9_input_reaches_the_cell_through_the_previous_h(random_model, read_layer, draw_inputs):
    """With rounds the input projection depends on h: the same x, read after another h, is another x."""
    model = random_model(num_layers=1, cell="lstm", mogrifier_rounds=1)
    layer = model.stack.layers[0]
    with torch.no_grad():
        layer.h.zero_()
    x, state = draw_inputs(model)
    h_1, _ = read_layer(layer, x[:1], state.h[0], state.c[0])
    h_2, _ = read_layer(layer, x[:1], state.h[0] + 0.1, state.c[0])
    assert (h_1 - h_2).abs().max() > 1e-3


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
@pytest.mark.parametrize("wave", [True, False])
def test_bfloat16_products_stay_close_to_float32(random_model, draw_inputs, draw_masks, cell, wave):
    """Features, state and every gradient differ by at most 2 % in norm; everything stays float32."""
    model = random_model(
        cell=cell, dtype=torch.float32, hidden_size=64, scale=0.1, mogrifier_rank=8, num_layers=2
    )
    x, state = (draw_inputs(model)[0].float(), State(*(value.float() for value in draw_inputs(model)[1])))
    results = []
    for precision in (None, torch.bfloat16):
        features, last = model.stack.sequence(x, state, draw_masks(model), precision=precision, wave=wave)
        gradients = torch.autograd.grad(features.square().sum(), list(model.stack.parameters()))
        results.append([features, *last, *gradients])
    for exact, close in zip(*results, strict=True):
        assert close.dtype == torch.float32
        assert not torch.equal(exact, close)
        assert (close - exact).norm() <= 0.02 * exact.norm()


def test_by_default_products_have_the_weights_precision(random_model, draw_inputs):
    """Not saying anything is saying float32, bit for bit."""
    model = random_model(dtype=torch.float32)
    x, state = (draw_inputs(model)[0].float(), State(*(value.float() for value in draw_inputs(model)[1])))
    default, _ = model.stack.sequence(x, state)
    said, _ = model.stack.sequence(x, state, precision=torch.float32)
    assert torch.equal(default, said)


def test_training_with_bfloat16_products_follows_float32(random_model):
    """Twenty steps of Adam: every loss within 0.02 nats of float32's, which falls by two nats."""
    losses = []
    for precision in (torch.float32, torch.bfloat16):
        model = random_model(dtype=torch.float32, hidden_size=32, scale=0.1, mogrifier_rank=8)
        ids = torch.randint(11, (9, 4), generator=torch.Generator().manual_seed(1))
        descent, nats = torch.optim.Adam(model.parameters(), 0.02), []
        for _ in range(20):
            descent.zero_grad()
            features, _ = model(ids[:-1], model.initial_state(4), precision=precision)
            loss = torch.nn.functional.cross_entropy(model.logits(features).flatten(0, 1), ids[1:].flatten())
            loss.backward()
            descent.step()
            nats.append(loss.item())
        losses.append(nats)
    assert losses[0][-1] < 0.5 * losses[0][0]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("stacking", get_args(Stacking))
@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_a_gpu_reads_in_a_wave_what_a_cpu_reads_layer_by_layer(
    random_model, draw_inputs, draw_masks, stacking, cell
):
    """Features, state and every gradient to 1e-10 in float64, with dropout."""
    model = random_model(num_layers=3, stacking=stacking, cell=cell, mogrifier_rank=2)
    x, state = draw_inputs(model)
    masks, results = draw_masks(model), []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        moved = DropoutMasks(*(None if mask is None else mask.to(device) for mask in masks))
        features, last = model.stack.sequence(
            x.to(device), State(*(part.to(device) for part in state)), moved
        )
        gradients = torch.autograd.grad(features.sin().sum(), list(model.stack.parameters()))
        results.append([value.cpu() for value in (features, *last, *gradients)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
