"""One segment's scores and gradient.

Shape suffixes: S segment tokens, V vocabulary, P fast weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.config import Reduction
from rlstm_model.adaptation.fast_weights import FullFastWeights
from rlstm_model.state import State


class SegmentPass(NamedTuple):
    """What one pass over a segment yields: the distributions, the state after it, and the gradient.

    ``gradient_P`` is the workspace's own and lives until the next pass.
    """

    logits_SV: Tensor
    state: State
    gradient_P: Tensor


def segment_gradient(
    fast_weights: FullFastWeights,
    delta_P: Tensor | None,
    state: State,
    inputs: Sequence[int],
    targets: Sequence[int],
    learn: Sequence[bool],
    *,
    segment: int,
    reduction: Reduction,
) -> SegmentPass:
    """Read ``inputs`` from ``state`` (one row, cut from its history) and differentiate the loss.

    The loss is the sum over targets with a learn flag, divided by ``segment`` where the reduction is the
    mean: a segment of which a part does not learn takes a smaller step, not a stronger one.
    """
    device = state.h.device
    with torch.enable_grad():
        model = fast_weights.learning_model(delta_P)
        features_S1H, after = model(torch.tensor(inputs, device=device)[:, None], state.detach())
        logits_SV = model.logits(features_S1H[:, 0])
        losses_S = torch.nn.functional.cross_entropy(
            logits_SV, torch.tensor(targets, device=device), reduction="none"
        )
        loss = (losses_S * torch.tensor(learn, device=device)).sum()
        if reduction == "mean":
            loss = loss / segment
        gradient_P = fast_weights.flat_gradient(loss)
    return SegmentPass(logits_SV.detach(), after.detach(), gradient_P)
