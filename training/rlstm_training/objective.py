"""The training objective: cross-entropy, averaged over several dropout samples inside the logarithm.

    loss_t = ln D - ln sum_d p_d(w_t)

(Melis 2022, §4; docs/mathematics.md §2.8.) The average is taken for every token, over samples that have masks
and carried states of their own; sample d's share of the gradient is its responsibility p_d / sum_d p_d.
:func:`softmax_loss` is output layer and loss in one, piece by piece: the logits of a window with a large
vocabulary, and their gradient, would not fit any cache, and moving them costs more than the products.
Shape suffixes: T time, B batch rows, D dropout samples, V vocabulary, H hidden units, N = T * B * D.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlstm_model.network.language_model import Embedding

# Of logits at once: what a CPU's caches hold; on a GPU, enough that starting its kernels takes no time.
PIECE_BYTES, PIECE_BYTES_ON_GPU = 16 * 2**20, 512 * 2**20


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


def softmax_loss(
    features: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor,
    targets_TB: Tensor,
    samples: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """:func:`multi_sample_loss` of ``features weight^T + bias``, for features ``[T, B * D, H]``.

    ``dtype`` is that of the matrix products' inputs; sums, softmax and gradients are in the features' own.
    """
    repeated_N = repeat_samples(targets_TB, samples).flatten()
    loss: Tensor = _SoftmaxLoss.apply(  # type: ignore[no-untyped-call]
        features.flatten(0, 1), weight_VH, bias_V, repeated_N, samples, dtype
    )
    return loss


class _SoftmaxLoss(torch.autograd.Function):
    """Loss and all gradients in the forward pass; a piece's logits become their own gradient in place."""

    @staticmethod
    def forward(
        ctx: Any,
        features_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        samples: int,
        dtype: torch.dtype,
    ) -> Tensor:
        tokens = len(targets_N) // samples
        inputs_NH, matrix_VH = features_NH.to(dtype), weight_VH.to(dtype)
        d_features_NH = torch.empty_like(features_NH)
        d_weight_VH, d_bias_V = torch.zeros_like(weight_VH), torch.zeros_like(bias_V)
        nats = features_NH.new_zeros((), dtype=torch.float64)
        row_bytes = weight_VH.shape[0] * features_NH.element_size()
        piece_bytes = PIECE_BYTES_ON_GPU if features_NH.is_cuda else PIECE_BYTES
        at_once = max(1, piece_bytes // (samples * row_bytes)) * samples  # whole tokens, each of all samples
        for start in range(0, len(targets_N), at_once):
            piece = slice(start, start + at_once)
            x, targets = inputs_NH[piece], targets_N[piece, None]
            logits = (x @ matrix_VH.t()).to(features_NH.dtype).add_(bias_V)
            # ln p of a target is never taken from its probability, which may have underflowed to 0.
            log_p = logits.gather(1, targets) - logits.amax(-1, keepdim=True)
            torch.softmax(logits, -1, out=logits)
            log_p = log_p.add_(logits.amax(-1, keepdim=True).log_()).view(-1, samples)
            nats += (math.log(samples) - log_p.logsumexp(-1)).double().sum()
            share = (log_p.softmax(-1) / tokens).view(-1, 1)
            d_logits = logits.mul_(share).scatter_add_(1, targets, -share)
            d_bias_V += d_logits.sum(0)
            d_logits = d_logits.to(dtype)
            d_features_NH[piece] = d_logits @ matrix_VH
            d_weight_VH += d_logits.t() @ x
        ctx.save_for_backward(d_features_NH, d_weight_VH, d_bias_V)
        return (nats / tokens).to(features_NH.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        d_features_NH, d_weight_VH, d_bias_V = ctx.saved_tensors
        return d_features_NH * d_loss, d_weight_VH * d_loss, d_bias_V * d_loss, None, None, None


def language_model_loss(
    embedding: Embedding, features: Tensor, targets_TB: Tensor, samples: int, dtype: torch.dtype
) -> Tensor:
    """:func:`multi_sample_loss` of the output layer of ``embedding``, whichever it has.

    ``dtype`` is that of the inputs of a plain softmax's matrix products.
    """
    if embedding.mixture is not None:
        return multi_sample_loss(embedding.logits(features), targets_TB, samples)
    return softmax_loss(features, embedding.output_matrix, embedding.bias, targets_TB, samples, dtype)


@torch.no_grad()
def add_l2_gradient(weights: Sequence[Tensor], coefficient: float) -> None:
    """Add to each gradient that of ``coefficient / 2`` times the squared norm of all weights.

    Biases and embeddings included, and before any clipping: the penalty is a part of the loss
    (docs/mathematics.md §2.7).
    """
    if coefficient == 0.0:
        return
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.add_(weight, alpha=coefficient)
