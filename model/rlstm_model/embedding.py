"""Input embedding and output layer, tied or not.

Shape suffixes: V vocabulary, H hidden units; ``...`` any leading shape.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlstm_model.config import ModelConfig


class Embedding(nn.Module):
    """``E_in`` and ``E_out``, never scaled by sqrt(H); tied models share one (mathematics: §1.2, §2.6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape = (config.vocab_size, config.hidden_size)
        self.input = nn.Parameter(torch.zeros(shape))
        self.output = None if config.tie_embeddings else nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the input embedding, ``[..., H]``, for ids ``[...]``."""
        return functional.embedding(ids, self.input)

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the next token, ``[..., V]``, from features ``[..., H]``."""
        weight = self.input if self.output is None else self.output
        return functional.linear(features, weight, self.bias)
