import math

import numpy as np
import pytest
import torch

from rlstm_training.optimizer import make_optimizer, rectification


@pytest.mark.parametrize(
    ("step", "beta2", "expected"),
    [
        (6, 0.999, 0.026),
        (10, 0.999, 0.049),
        (100, 0.999, 0.215),
        (1000, 0.999, 0.645),
        (5000, 0.999, 0.983),
        (1000, 0.9999, 0.221),
    ],
)
def test_rectification_table(step, beta2, expected):
    """r_t as published (mathematics: section 4)."""
    assert rectification(step, beta2) == pytest.approx(expected, abs=5e-4)


def test_five_steps_are_not_rectified():
    """With beta2 = 0.999 the variance is intractable for five steps."""
    assert [rectification(step, 0.999) is None for step in range(1, 8)] == [True] * 5 + [False] * 2


def _reference(weight, gradients, recipe):
    """Rectified Adam, written out with NumPy."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        m = recipe.beta1 * m + (1 - recipe.beta1) * g
        v = recipe.beta2 * v + (1 - recipe.beta2) * g * g
        step = m / (1 - recipe.beta1**t)
        r = rectification(t, recipe.beta2)
        if r is not None:
            step = step * r * math.sqrt(1 - recipe.beta2**t) / (np.sqrt(v) + recipe.epsilon)
        weight = weight - recipe.learning_rate * step
    return weight


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_steps_equal_the_written_out_rule(toy_recipe, beta1):
    """Twenty steps, over the border of the rectified phase, equal the formula in float64."""
    recipe = toy_recipe(beta1=beta1)
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=6), draw.normal(size=(20, 6))
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make_optimizer([weight], recipe)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), _reference(start, gradients, recipe), rtol=1e-10)
