"""The training objective: cross-entropy, averaged over several dropout samples inside the logarithm.

    loss_t = ln D - ln sum_d p_d(w_t)

(Melis 2022, §4; mathematics: §2.8.) The average is taken for every token, over samples that have masks
and carried states of their own. Shape suffixes: T time, B batch rows, D dropout samples, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def repeat_samples(ids_TB: Tensor, samples: int) -> Tensor:
    """Each row ``samples`` times, adjacent: ``[T, B * D]``."""
    return ids_TB.repeat_interleave(samples, 1)


def multi_sample_loss(logits: Tensor, targets_TB: Tensor, samples: int) -> Tensor:
    """The mean loss over tokens, in nats, from logits ``[T, B * D, V]`` and targets ``[T, B]``."""
    repeated = repeat_samples(targets_TB, samples)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), repeated.flatten(), reduction="none")
    if samples == 1:
        return losses.mean()
    time, batch = targets_TB.shape
    mixed = torch.logsumexp(-losses.view(time, batch, samples), -1)
    return (math.log(samples) - mixed).mean()


def l2_penalty(parameters: Sequence[Tensor], coefficient: float) -> Tensor:
    """``coefficient / 2`` times the squared norm of all weights, biases and embeddings included."""
    squares = torch.stack([parameter.square().sum() for parameter in parameters])
    return squares.sum() * (coefficient / 2)
