"""Initial weights, in one table.

=====================  ===============================================================================
weight                 distribution (H hidden units, K rank; truncated normal cuts at 2 sigma)
=====================  ===============================================================================
cell matrices          truncated normal, std sqrt(1 / H), truncation compensated
cell biases i, j, o    truncated normal, std sqrt(1 / H), truncation compensated
cell bias f            Chrono: ln u, u ~ U(1, chrono_max - 1), elementwise; without it, as the other
                       biases but around 1
mogrifier, full rank   truncated normal, std sqrt(1 / H), truncation compensated
mogrifier, low rank    both factors truncated normal, std (1 / (H K))^(1/4), not compensated
mogrifier bias         0
embeddings             truncated normal, std sqrt(1 / H), truncation compensated
output bias            0
mixture of softmaxes   both matrices truncated normal, std sqrt(1 / H), compensated; bias 0
=====================  ===============================================================================

(docs/mathematics.md §2.5; Chrono: Tallec & Ollivier 2018, in the form of Melis 2022, §5 there.)
"""

import math

import torch
from torch import Tensor, nn

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.stack import RecurrentLayer

_COMPENSATION = math.sqrt(1.3)


@torch.no_grad()
def initialise(model: LanguageModel, *, chrono_max: float | None, generator: torch.Generator) -> None:
    """Draw all weights of ``model`` in place.

    ``chrono_max`` (T_max, in tokens) is the longest memory that the forget gates start with; None is the
    baseline's initialisation. Raises ValueError unless it is above 2.
    """
    if chrono_max is not None and not chrono_max > 2.0:
        raise ValueError(f"chrono_max must be above 2, not {chrono_max}")
    std = math.sqrt(1.0 / model.config.hidden_size)
    embedding = model.embedding
    for matrix in (embedding.input, embedding.output):
        if matrix is not None:
            _truncated(matrix, std, generator)
    embedding.bias.zero_()
    if embedding.mixture is not None:
        _truncated(embedding.mixture.projection, std, generator)
        _truncated(embedding.mixture.weights, std, generator)
        embedding.mixture.projection_bias.zero_()
    for layer in model.stack.layers:
        assert isinstance(layer, RecurrentLayer)
        _initialise_layer(layer, std, chrono_max, generator)


def _initialise_layer(
    layer: RecurrentLayer, std: float, chrono_max: float | None, generator: torch.Generator
) -> None:
    n = layer.bias.shape[0] // 4
    for weight in (layer.x, layer.h, layer.u, layer.c, layer.bias):
        if weight is not None:
            _truncated(weight, std, generator)
    forget = layer.bias[2 * n : 3 * n]
    if chrono_max is None:
        forget.add_(1.0)
    else:
        forget.uniform_(1.0, chrono_max - 1.0, generator=generator).log_()
    if layer.mogrifier_down is None:
        _truncated(layer.mogrifier_up, std, generator)
    else:
        rank = layer.mogrifier_down.shape[1]
        factor_std = (1.0 / (n * rank)) ** 0.25 / _COMPENSATION
        for factor in (layer.mogrifier_up, layer.mogrifier_down):
            _truncated(factor, factor_std, generator)
    if layer.mogrifier_bias is not None:
        layer.mogrifier_bias.zero_()


def _truncated(weight: Tensor, std: float, generator: torch.Generator) -> None:
    sigma = std * _COMPENSATION
    nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
