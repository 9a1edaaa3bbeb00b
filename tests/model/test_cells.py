"""Both cells, one step at a time, against the equations."""

import numpy as np
import pytest
import torch

from rlstm_model.cell_tape import CellDeltas, CellStep, CellTape, slopes
from rlstm_model.network.cells import CellWeights, LSTMCell, RLSTMCell, StepGradients

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


def _stacked(weights):
    """The weights of a group of one layer."""
    *matrices, bias = (None if weight is None else weight.detach()[None] for weight in weights)
    return CellWeights(*matrices, bias[:, None])


@torch.no_grad()
def _step(cell, weights, x, h, c, mask=None):
    """The new h and the values of the step, from ``[B, H]`` tensors."""
    step = CellStep.scratch(c[None], cell.blocks)
    cell.step(_stacked(weights).transposed(), step, x[None], h[None], None if mask is None else mask[None])
    return (step.o * step.tanh_c)[0], step


@torch.no_grad()
def _there_and_back(cell, weights, inputs, mask, dh, dc):
    """Loss gradients at x, h, c, those of the weights, and the deltas, of a window of one step."""
    x, h, c = (value.detach() for value in inputs)
    mask_1 = None if mask is None else mask[None]
    tape, new = CellTape.empty(h[None, None], masked=mask is not None), torch.empty_like(h)[None, None]
    tape.c[0, 0] = c
    (step,) = tape.steps(cell.blocks)
    cell.step(_stacked(weights).transposed(), step, x[None], h[None], mask_1)
    torch.mul(tape.gates[..., 3 * h.shape[1] :], tape.tanh_c, out=new)
    deltas, gradients = (
        CellDeltas(torch.empty_like(tape.gates)),
        StepGradients(x[None].clone(), dh[None], dc[None]),
    )
    (slope,) = slopes(tape, new, deltas, capped=cell.capped)
    (delta,) = deltas.steps(cell.blocks)
    cell.backward(_stacked(weights), step, slope, delta, mask_1, gradients)
    window = CellTape(*(part[0, :1] for part in tape))
    own = cell.gradients(weights, window, deltas.gates[0], x[None], h[None], x.dtype)
    return [value[0] for value in gradients], own, deltas.gates[0, 0]


def _as_numpy(layer):
    return {name: weight.detach().numpy() for name, weight in layer.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_is_what_the_equations_say(random_model, reference, kind):
    """New h and c equal the NumPy cell to 1e-12, with a state mask that drops and scales units."""
    config, layer, x, h, c, mask = _cell_and_inputs(random_model, **kind)
    h_new, step = _step(layer.cell, layer.weights.cell, x, h, c, mask)
    for b in range(3):
        expected = reference.cell_step(
            config, _as_numpy(layer), x[b].numpy(), h[b].numpy(), c[b].numpy(), mask[b].numpy()
        )
        np.testing.assert_allclose(h_new[b], expected[0], atol=1e-12)
        np.testing.assert_allclose(step.c[0, b], expected[1], atol=1e-12)


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
    _, step = _step(RLSTMCell(), weights, x, h, c)
    torch.testing.assert_close(step.f[0], f.expand(1, n))
    torch.testing.assert_close(step.c[0], (f * 0.25 + (1 - f) * j).expand(1, n))


def test_pitfall_3_the_baseline_caps_its_input_gate():
    """The baseline writes min(i, 1 - f) j; only capped=False writes i j."""
    weights = _affine_step(LSTMCell(), 1, [1.0, 2.0, 3.0, 0.0])
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    i, j, f = torch.sigmoid(one), torch.tanh(2 * one), torch.sigmoid(3 * one)
    _, capped = _step(LSTMCell(), weights, zero, zero, one)
    _, uncapped = _step(LSTMCell(capped=False), weights, zero, zero, one)
    torch.testing.assert_close(capped.c[0], f + (1 - f) * j)
    torch.testing.assert_close(uncapped.c[0], f + i * j)


def test_pitfall_4_the_state_mask_hides_c_from_o_only(random_model):
    """The carried c does not see the mask at all, and h sees it through o alone."""
    _, layer, x, h, c, mask = _cell_and_inputs(random_model, cell="rlstm")
    h_masked, masked = _step(layer.cell, layer.weights.cell, x, h, c, mask)
    _, unmasked = _step(layer.cell, layer.weights.cell, x, h, c)
    assert torch.equal(masked.c, unmasked.c)
    o = torch.sigmoid((unmasked.c[0] * mask) @ layer.c.detach().T + layer.bias.detach()[15:])
    torch.testing.assert_close(h_masked, o * torch.tanh(unmasked.c[0]))
    torch.testing.assert_close(masked.o[0], o)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("masked", [True, False])
def test_one_steps_backward_equals_automatic_differentiation(random_model, plain, kind, masked):
    """Gradients at x, h, c and every weight equal autograd's to 1e-12."""
    _, layer, x, h, c, mask = _cell_and_inputs(random_model, **kind)
    cell, weights = layer.cell, layer.weights.cell
    inputs = [tensor.requires_grad_() for tensor in (x, h, c)]
    dh, dc = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    results = plain.cell_step(weights, *inputs, mask if masked else torch.ones_like(mask), cell.capped)
    given = [weight for weight in weights if weight is not None]
    expected = torch.autograd.grad(results, [*inputs, *given], (dh, dc))
    input_gradients, own, _ = _there_and_back(cell, weights, inputs, mask if masked else None, dh, dc)
    actual = [*input_gradients, *(gradient for gradient in own if gradient is not None)]
    for got, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)


def test_a_capped_unit_sends_its_gradient_to_f_and_none_to_i_through_c():
    """Where i > 1 - f and nothing else reads i, i's pre-activation gets exactly zero."""
    weights = _affine_step(RLSTMCell(), 1, [2.0, 1.0, 2.0, 0.0])
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    *_, deltas = _there_and_back(RLSTMCell(), weights, (zero, zero, zero), None, zero.clone(), one)
    d_i, _, d_f, _ = deltas[0].tolist()
    assert d_i == 0.0
    assert d_f < 0.0


def test_at_an_exact_tie_the_gradient_is_the_input_gates():
    """With i = 1 - f = 1/2 the whole gradient of what is written reaches i, and f sees only the old c."""
    weights = _affine_step(RLSTMCell(), 1, [0.0, 1.0, 0.0, 0.0])
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    *_, deltas = _there_and_back(RLSTMCell(), weights, (zero, zero, zero), None, zero.clone(), one)
    d_i, _, d_f, _ = deltas[0].tolist()
    assert d_i == pytest.approx(np.tanh(1.0) / 4)
    assert d_f == 0.0
