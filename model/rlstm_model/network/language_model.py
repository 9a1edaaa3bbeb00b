"""The language model: embedding, residual stack of mogrified cells, softmax layer.

The softmax may be a mixture of C of them with projections P_c, mixed in log space (Yang et al. 2018;
docs/mathematics.md §2.6):

    p(w) = sum_c pi_c softmax(tanh(P_c x + p_c) E_out + b)_w          pi = softmax(R x)

Shape suffixes: T time, B batch rows, L layers, H hidden units, V vocabulary, C components; ``...`` any
leading shape.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.stack import Stack
from rlstm_model.network.state import State
from rlstm_model.parameters import Parameters, shapes


class LanguageModel(nn.Module):
    """A recurrent language model. State in, state out: the module remembers nothing but its weights.

    A model first *reads* a token and then predicts the next one. It returns *features*, the summed layer
    outputs; ``logits`` maps them to the vocabulary, so that a long text never needs a T x V matrix.
    New models have zero weights: initialise them (:mod:`rlstm_model.network.initialisation`) or load them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.stack = Stack(config)

    @classmethod
    def of(cls, parameters: Parameters) -> "LanguageModel":
        """A model with these weights, in float32, that takes no gradients."""
        model = cls(parameters.config).eval().requires_grad_(False)
        for name, weight in model.state_dict().items():
            weight.copy_(torch.from_numpy(np.array(parameters.arrays[name], np.float32)))
        return model

    @property
    def parameter_arrays(self) -> Parameters:
        """Its weights as arrays, copies in float32."""
        named = {name: weight.detach().cpu().float().numpy() for name, weight in self.state_dict().items()}
        return Parameters(self.config, {name: np.array(named[name]) for name in shapes(self.config)})

    def initial_state(self, batch: int) -> State:
        """The state before any text, for ``batch`` rows."""
        return State.zeros(self.config.num_layers, batch, self.config.hidden_size, self.embedding.input)

    def forward(
        self,
        ids_TB: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, State]:
        """Read a window of at least one token. Returns features ``[T, B, H]`` and the state after it.

        ``precision`` is that of the factors of the layers' matrix products; None is that of the weights.
        """
        return self.read(self.embedding.embed(ids_TB), state, masks, precision=precision)

    def read(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, State]:
        """The same for tokens that have been embedded."""
        if masks.input is not None:
            x_TBH = x_TBH * masks.input[..., : x_TBH.shape[-1]]
        features_TBH, state = self.stack.sequence(x_TBH, state, masks, precision=precision)
        if masks.output is not None:
            features_TBH = features_TBH * masks.output[..., : features_TBH.shape[-1]]
        return features_TBH, state

    def logits(self, features: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities ``[..., V]`` of the next token, up to a constant.

        ``temperature`` multiplies the logits (docs/mathematics.md §2.13).
        """
        return self.embedding.logits(features, temperature)

    def log_probs(self, features: Tensor, temperature: float = 1.0) -> Tensor:
        """Natural log-probabilities ``[..., V]`` of the next token."""
        return torch.log_softmax(self.logits(features, temperature), -1)


class Embedding(nn.Module):
    """``E_in`` and ``E_out``, never scaled; tied models share one (docs/mathematics.md §1.2, §2.6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        read, last = config.layer_widths[0][0], config.layer_widths[-1][1]
        self.input = nn.Parameter(torch.zeros(config.vocab_size, read))
        tied = config.tie_embeddings
        self.output = None if tied else nn.Parameter(torch.zeros(config.vocab_size, last))
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

        ``temperature`` multiplies each softmax's logits: below 1 it flattens (docs/mathematics.md §2.13).
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
