"""Input embedding and output layer, tied or not; one softmax or a mixture of several.

The mixture (Yang et al. 2018; mathematics: §2.6) with C components and projections P_c, mixed in log space:

    p(w) = sum_c pi_c softmax(tanh(P_c x + p_c) E_out + b)_w          pi = softmax(R x)

Shape suffixes: V vocabulary, H hidden units, C components; ``...`` any leading shape.
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
        mixed = config.softmax_components > 1
        self.mixture = SoftmaxMixture(config.softmax_components, config.hidden_size) if mixed else None

    @property
    def output_matrix(self) -> Tensor:
        """``[V, H]``."""
        return self.input if self.output is None else self.output

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the input embedding, ``[..., H]``, for ids ``[...]``."""
        return functional.embedding(ids, self.input)

    def logits(self, features: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the next token up to a constant, ``[..., V]``, from features ``[..., H]``.

        ``temperature`` multiplies the logits of each softmax, so below 1 it flattens (mathematics: §2.13).
        """
        if self.mixture is not None:
            return self.mixture.log_probs(features, self.output_matrix, self.bias, temperature)
        logits = functional.linear(features, self.output_matrix, self.bias)
        return logits if temperature == 1.0 else logits * temperature


class SoftmaxMixture(nn.Module):
    """The projections and the mixing weights of C softmaxes."""

    def __init__(self, components: int, hidden: int) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.zeros(components, hidden, hidden))
        self.projection_bias = nn.Parameter(torch.zeros(components, hidden))
        self.weights = nn.Parameter(torch.zeros(components, hidden))

    def log_probs(self, features: Tensor, output_VH: Tensor, bias_V: Tensor, temperature: float) -> Tensor:
        """Log-probabilities ``[..., V]`` of the mixture."""
        projected = functional.linear(features, self.projection.flatten(0, 1), self.projection_bias.flatten())
        latents = torch.tanh(projected).view(*features.shape[:-1], *self.weights.shape)
        components = torch.log_softmax(functional.linear(latents, output_VH, bias_V) * temperature, -1)
        log_weights = torch.log_softmax(functional.linear(features, self.weights), -1)
        return torch.logsumexp(components + log_weights.unsqueeze(-1), -2)
