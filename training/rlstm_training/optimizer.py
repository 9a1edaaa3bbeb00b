"""The optimiser: rectified Adam (Liu et al. 2020; mathematics: §4) or plain Adam, as torch has them."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from rlstm_training.config import Recipe


def make_optimizer(parameters: Iterable[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser. L2 is part of the loss, so it has no weight decay."""
    kind = torch.optim.RAdam if recipe.optimizer == "radam" else torch.optim.Adam
    return kind(
        parameters,
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        foreach=True,
    )


def rectification(step: int, beta2: float) -> float | None:
    """r_t of the ``step``-th step (the first is 1); None while the variance is intractable (rho_t <= 5)."""
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
