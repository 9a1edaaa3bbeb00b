"""The optimiser: rectified Adam (Liu et al. 2020; mathematics: §4) or plain Adam, as torch has them."""

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
