"""One segment's scores and gradient.

A model with a large vocabulary is nearly all embedding, and a step nearly all passes over vectors of its
size. So the gradient is written where it will be read, once: the softmax is differentiated by hand into its
place in the flat vector, and what the embedding gets from being read is added to the rows that were.
Shape suffixes: S segment tokens, V vocabulary, H hidden units, P fast weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.config import Reduction
from rlstm_model.adaptation.fast_weights import FullFastWeights
from rlstm_model.embedding import Embedding
from rlstm_model.state import State


class SegmentPass(NamedTuple):
    """What one pass over a segment yields: the distributions, the state after it, and the gradient.

    ``logits_SV`` have been multiplied by the temperature. ``gradient_P`` is the workspace's own and lives
    until the next pass.
    """

    logits_SV: Tensor
    state: State
    gradient_P: Tensor


@torch.no_grad()
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
    temperature: float = 1.0,
) -> SegmentPass:
    """Read ``inputs`` from ``state`` (one row, cut from its history) and differentiate the loss.

    The loss is the sum over targets with a learn flag, divided by ``segment`` where the reduction is the
    mean: a segment of which a part does not learn takes a smaller step, not a stronger one. It is that of
    the distributions at ``temperature``, which multiplies the logits.
    """
    device = state.h.device
    model, parts = fast_weights.learning_model(delta_P), fast_weights.gradients
    inputs_S, targets_S = torch.tensor(inputs, device=device), torch.tensor(targets, device=device)
    weights_S = torch.tensor(learn, device=device).to(state.h) / (segment if reduction == "mean" else 1)
    read_S1H = model.embedding.embed(inputs_S)[:, None].requires_grad_(True)
    with torch.enable_grad():
        features_S1H, after = model.read(read_S1H, state.detach())
    backward = _softmax_backward if model.embedding.mixture is None else _mixture_backward
    logits_SV, d_features_SH = backward(
        model.embedding, features_S1H.detach()[:, 0], targets_S, weights_S, temperature, parts
    )
    names, weights = zip(*model.stack.named_parameters(prefix="stack"), strict=True)
    d_read_S1H, *gradients = torch.autograd.grad(features_S1H, (read_S1H, *weights), d_features_SH[:, None])
    for name, gradient in zip(names, gradients, strict=True):
        parts[name].copy_(gradient)
    if model.embedding.output is not None:
        parts["embedding.input"].zero_()
    parts["embedding.input"].index_add_(0, inputs_S, d_read_S1H[:, 0])
    return SegmentPass(logits_SV, after.detach(), fast_weights.gradient_P)


def _softmax_backward(
    embedding: Embedding,
    features_SH: Tensor,
    targets_S: Tensor,
    weights_S: Tensor,
    temperature: float,
    parts: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Logits, and the weighted loss's gradient at the features; those of the output layer go into ``parts``.

    At the logits it is p - 1 for the target and p for all others.
    """
    logits_SV = embedding.logits(features_SH, temperature)
    d_logits_SV = torch.softmax(logits_SV, -1)
    d_logits_SV[torch.arange(len(targets_S), device=targets_S.device), targets_S] -= 1
    d_logits_SV *= weights_S[:, None] * temperature
    matrix = "embedding.input" if embedding.output is None else "embedding.output"
    torch.mm(d_logits_SV.t(), features_SH, out=parts[matrix])
    torch.sum(d_logits_SV, 0, out=parts["embedding.bias"])
    return logits_SV, d_logits_SV @ embedding.output_matrix


def _mixture_backward(
    embedding: Embedding,
    features_SH: Tensor,
    targets_S: Tensor,
    weights_S: Tensor,
    temperature: float,
    parts: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """The same for a mixture of softmaxes, by automatic differentiation."""
    named = {f"embedding.{name}": weight for name, weight in embedding.named_parameters()}
    if embedding.output is not None:
        del named["embedding.input"]
    features_SH = features_SH.detach().requires_grad_(True)
    with torch.enable_grad():
        log_probs_SV = embedding.logits(features_SH, temperature)
        losses_S = torch.nn.functional.cross_entropy(log_probs_SV, targets_S, reduction="none")
        loss = (losses_S * weights_S).sum()
    d_features_SH, *gradients = torch.autograd.grad(loss, (features_SH, *named.values()))
    for name, gradient in zip(named, gradients, strict=True):
        parts[name].copy_(gradient)
    return log_probs_SV.detach(), d_features_SH
