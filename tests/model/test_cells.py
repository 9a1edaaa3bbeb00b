"""Both cells, one step at a time, against the equations."""

import numpy as np
import pytest
import torch

from rlstm_model.cells import CellWeights, LSTMCell, RLSTMCell

KINDS = [
    {"cell": "rlstm"},
    {"cell": "lstm"},
    {"cell": "lstm", "cap_input_gate": False},
]


def _cell_and_inputs(random_model, **shape):
    model = random_model(num_layers=1, **shape)
    layer = model.stack.layers[0]
    x, h, c, mask = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return model.config, layer, x, h, torch.tanh(c), (mask > 0) * 2.0


def _as_numpy(layer):
    return {name: weight.detach().numpy() for name, weight in layer.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_is_what_the_equations_say(random_model, reference, kind):
    """New h and c equal the NumPy cell to 1e-12, with a state mask that drops and scales units."""
    config, layer, x, h, c, mask = _cell_and_inputs(random_model, **kind)
    h_new, c_new, _ = layer.cell.step(layer.cell_weights, x, h, c, mask)
    for b in range(3):
        expected = reference.cell_step(
            config, _as_numpy(layer), x[b].numpy(), h[b].numpy(), c[b].numpy(), mask[b].numpy()
        )
        np.testing.assert_allclose(h_new[b].detach(), expected[0], atol=1e-12)
        np.testing.assert_allclose(c_new[b].detach(), expected[1], atol=1e-12)


def _affine_step(cell, n, biases, **blocks):
    """One step of ``n`` units from zero input: only the given biases and blocks are not zero."""
    zeros = torch.zeros(n, n, dtype=torch.float64)
    weights = {"u": zeros, "c": zeros, **blocks}
    rlstm = isinstance(cell, RLSTMCell)
    return CellWeights(
        x=zeros.repeat(2 if rlstm else 4, 1),
        h=weights.get("h", zeros.repeat(3 if rlstm else 4, 1)),
        u=weights["u"] if rlstm else None,
        c=weights["c"] if rlstm else None,
        bias=torch.tensor(biases, dtype=torch.float64).repeat_interleave(n),
    )


def test_pitfall_2_f_reads_the_uncapped_product_and_h():
    """The forget gate is sigma(W_fu (i * j) + W_fh h + b_f), with the i that the cap has not touched."""
    n = 2
    eye = torch.eye(n, dtype=torch.float64)
    from_h = torch.cat((torch.zeros(2 * n, n, dtype=torch.float64), 0.5 * eye))
    weights = _affine_step(RLSTMCell(), n, [1.0, 2.0, 3.0, 0.0], u=eye, h=from_h)
    x, h, c = torch.zeros(1, n).double(), torch.full((1, n), 0.4).double(), torch.full((1, n), 0.25).double()
    i, j = torch.sigmoid(torch.tensor(1.0).double()), torch.tanh(torch.tensor(2.0).double())
    f = torch.sigmoid(i * j + 0.5 * 0.4 + 3.0)
    assert i > 1 - f, "the cap must bind, or this test would show nothing"
    _, c_new, tape = RLSTMCell().step(weights, x, h, c, None)
    torch.testing.assert_close(tape.f, f.expand(1, n))
    torch.testing.assert_close(c_new, (f * 0.25 + (1 - f) * j).expand(1, n))


def test_pitfall_3_the_baseline_caps_its_input_gate():
    """The baseline writes min(i, 1 - f) j; only capped=False writes i j."""
    weights = _affine_step(LSTMCell(), 1, [1.0, 2.0, 3.0, 0.0])
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    i, j, f = torch.sigmoid(one), torch.tanh(2 * one), torch.sigmoid(3 * one)
    _, capped, _ = LSTMCell().step(weights, zero, zero, one, None)
    _, plain, _ = LSTMCell(capped=False).step(weights, zero, zero, one, None)
    torch.testing.assert_close(capped, f + (1 - f) * j)
    torch.testing.assert_close(plain, f + i * j)


def test_pitfall_4_the_state_mask_hides_c_from_o_only(random_model):
    """The carried c does not see the mask at all, and h sees it through o alone."""
    _, layer, x, h, c, mask = _cell_and_inputs(random_model, cell="rlstm")
    h_masked, c_masked, tape = layer.cell.step(layer.cell_weights, x, h, c, mask)
    _, c_plain, _ = layer.cell.step(layer.cell_weights, x, h, c, None)
    assert torch.equal(c_masked, c_plain)
    o = torch.sigmoid((c_plain * mask) @ layer.c.T + layer.bias[15:])
    torch.testing.assert_close(h_masked, o * torch.tanh(c_plain))
    torch.testing.assert_close(tape.o, o)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("masked", [True, False])
def test_one_steps_backward_equals_automatic_differentiation(random_model, kind, masked):
    """Gradients at x, h, c and every weight equal autograd's to 1e-12."""
    _, layer, x, h, c, mask = _cell_and_inputs(random_model, **kind)
    mask = mask if masked else None
    inputs = [tensor.requires_grad_() for tensor in (x, h, c)]
    dh, dc = torch.randn(2, 3, 5, dtype=torch.float64)
    h_new, c_new, tape = layer.cell.step(layer.cell_weights, x, h, c, mask)
    weights = [weight for weight in layer.cell_weights if weight is not None]
    expected = torch.autograd.grad((h_new, c_new), [*inputs, *weights], (dh, dc))
    with torch.no_grad():
        *input_gradients, deltas = layer.cell.backward(layer.cell_weights, tape, dh, dc, mask)
        weight_gradients = layer.cell.gradients(layer.cell_weights, [tape], [deltas])
    actual = [*input_gradients, *(g for g in weight_gradients if g is not None)]
    for got, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


def test_a_capped_unit_sends_its_gradient_to_f_and_none_to_i_through_c():
    """Where i > 1 - f and nothing else reads i, i's pre-activation gets exactly zero."""
    weights = _affine_step(RLSTMCell(), 1, [2.0, 1.0, 2.0, 0.0])
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    _, _, tape = RLSTMCell().step(weights, zero, zero, zero, None)
    *_, deltas = RLSTMCell().backward(weights, tape, zero, one, None)
    d_i, _, d_f, _ = deltas.gates[0].tolist()
    assert d_i == 0.0
    assert d_f < 0.0
