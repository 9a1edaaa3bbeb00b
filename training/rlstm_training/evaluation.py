"""Evaluation: static and dynamic, in nats summed in float64.

Shape suffixes: T time, B batch rows.
"""

import numpy as np
import torch

from rlstm_model.language_model import LanguageModel
from rlstm_training.batches import Ids


@torch.no_grad()
def striped_loss(model: LanguageModel, ids: Ids, *, stripes: int = 16, window: int = 200) -> float:
    """Mean nats a token of ``ids`` read as parallel stripes: quick, but each stripe starts cold.

    For validation during training; published numbers come from :func:`static_loss`.
    """
    length = (len(ids) - 1) // stripes
    if length < 1:
        raise ValueError(f"{len(ids)} tokens do not fill {stripes} stripes")
    text = torch.from_numpy(np.asarray(ids[: stripes * length + 1], dtype=np.int64))
    inputs_TB = text[:-1].view(stripes, length).t()
    targets_TB = text[1:].view(stripes, length).t()
    state, total = model.initial_state(stripes), 0.0
    for start in range(0, length, window):
        features, state = model(inputs_TB[start : start + window], state)
        logits = model.logits(features).flatten(0, 1)
        targets = targets_TB[start : start + window].flatten()
        total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").double().item()
    return total / (stripes * length)
