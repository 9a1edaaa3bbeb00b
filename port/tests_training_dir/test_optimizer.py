"""Optimisers against their rules written out with NumPy, and the published table of r_t."""

import math

import numpy as np
import pytest
import torch

from rlstm_training.trainer import make_optimizer


def rectification(step: int, beta2: float) -> float | None:
    """r_t of the ``step``-th step (the first is 1); None while the variance is intractable (rho_t <= 5)."""
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


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
def test_oracle_k_rectification_table(step, beta2, expected):
    """r_t as published (mathematics: section 4)."""
    assert rectification(step, beta2) == pytest.approx(expected, abs=5e-4)


def test_oracle_k_five_steps_are_not_rectified():
    """With beta2 = 0.999 the variance is intractable for five steps."""
    assert [rectification(step, 0.999) is None for step in range(1, 8)] == [True] * 5 + [False] * 2


def _reference(weight, gradients, recipe):
    """Adam, rectified or not, written out with NumPy."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        m = recipe.beta1 * m + (1 - recipe.beta1) * g
        v = recipe.beta2 * v + (1 - recipe.beta2) * g * g
        step = m / (1 - recipe.beta1**t)
        r = 1.0 if recipe.optimizer == "adam" else rectification(t, recipe.beta2)
        if r is not None:
            # Rectified Adam adds epsilon to the root before, plain Adam after the correction of v.
            correction = math.sqrt(1 - recipe.beta2**t)
            if recipe.optimizer == "adam":
                step = step / (np.sqrt(v) / correction + recipe.epsilon)
            else:
                step = step * r * correction / (np.sqrt(v) + recipe.epsilon)
        weight = weight - recipe.learning_rate * step
    return weight


@pytest.mark.parametrize("optimizer", ["radam", "adam"])
@pytest.mark.parametrize("beta1", [0.0, 0.9])
@pytest.mark.parametrize("epsilon", [1e-8, 0.1])
def test_pitfall_14_steps_equal_the_written_out_rule(toy_recipe, optimizer, beta1, epsilon):
    """Twenty steps equal the formula in float64; rectified, the first five are plain, and none is skipped."""
    recipe = toy_recipe(optimizer=optimizer, beta1=beta1, epsilon=epsilon)
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=6), draw.normal(size=(20, 6))
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make_optimizer([weight], recipe)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), _reference(start, gradients, recipe), rtol=1e-10)


@pytest.mark.parametrize("optimizer", ["radam", "adam"])
def test_pitfall_13_no_weight_decay_outside_the_loss(toy_recipe, optimizer):
    """L2 is part of the gradient: the optimiser itself lets a weight without gradient be."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer([weight], toy_recipe(optimizer=optimizer, l2=0.5))
    weight.grad = torch.zeros(3)
    optimizer.step()
    assert weight.tolist() == [1.0] * 3
