"""One token at a time, in plain functions."""

import numpy as np
import pytest
import torch

from rlstm_model.one_token import read_token

SHAPES = [
    {
        "cell": cell,
        "cap_input_gate": capped,
        "mogrifier_rounds": rounds,
        "mogrifier_rank": rank,
        "mogrifier_bias": bias,
    }
    for cell, capped in (("rlstm", True), ("lstm", True), ("lstm", False))
    for rounds, rank, bias in ((0, 0, True), (1, 2, True), (4, 0, False), (5, 2, True))
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_a_token_is_what_the_equations_say(random_model, reference, shape):
    """The new h and c equal the NumPy layer's to 1e-12."""
    model = random_model(num_layers=1, **shape)
    layer = model.stack.layers[0]
    x, h, c = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        h_new, c_new = read_token(layer.weights, x, h, c, capped=layer.cell.capped)
    arrays = {name: weight.detach().numpy() for name, weight in layer.state_dict().items()}
    for b in range(2):
        x_b, h_b = reference.mogrify(model.config, arrays, x[b].numpy(), h[b].numpy())
        expected = reference.cell_step(model.config, arrays, x_b, h_b, c[b].numpy(), np.ones(5))
        np.testing.assert_allclose(h_new[b], expected[0], atol=1e-12)
        np.testing.assert_allclose(c_new[b], expected[1], atol=1e-12)


def test_automatic_differentiation_can_follow_it(random_model, plain):
    """Gradients of all weights equal those of the plain layer."""
    layer = random_model(num_layers=1, mogrifier_rank=2).stack.layers[0]
    x, h, c = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = list(layer.parameters())
    ours = torch.autograd.grad(
        sum(v.sin().sum() for v in read_token(layer.weights, x, h, c, capped=True)), weights
    )
    outputs, last = plain.layer_window(layer, x[None], h, c)
    wanted = torch.autograd.grad(outputs.sin().sum() + last.sin().sum(), weights)
    for got, expected in zip(ours, wanted, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
