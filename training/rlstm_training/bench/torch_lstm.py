"""torch.nn.LSTM as a language model: the yardstick for speed, and for what is learned in a given time.

Embedding, softmax and everything around them are the language model's; only the stack is torch's own, on a
GPU that of cuDNN. Shape suffixes: T time, B batch rows, H hidden units.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.embedding import Embedding
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.stack import Stack
from rlstm_model.network.state import State


def lstm_of_equal_size(config: ModelConfig) -> ModelConfig:
    """The shape of the plain LSTM with as many layers and weights as a model.

    A second bias a gate, which torch's has, is not counted: it is a thousandth of the weights.
    """
    plain = replace(
        config,
        cell="lstm",
        cap_input_gate=False,
        mogrifier_rounds=0,
        stacking="plain",
        softmax_components=1,
    )
    return plain.with_budget(config.num_parameters)


class TorchLSTM(LanguageModel):
    """A language model of torch.nn.LSTM layers.

    Of a window's masks it applies those of input and output, and of the cell's the last layer's; between its
    layers it drops units by itself, with probability ``dropout`` wherever there are masks of cells.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        # Not LanguageModel's own, which would make a stack to throw away.
        nn.Module.__init__(self)
        self.config = config
        self.embedding = Embedding(config)
        self.stack = _TorchStack(config, dropout)

    @torch.no_grad()
    def initialise(self, *, chrono_max: float | None, generator: torch.Generator) -> None:
        """Draw all weights: LSTM matrices as torch does, forget biases and embeddings as for our models."""
        bound = math.sqrt(1.0 / self.config.hidden_size)
        for matrix in (self.embedding.input, self.embedding.output):
            if matrix is not None:
                nn.init.trunc_normal_(matrix, std=bound, a=-2 * bound, b=2 * bound, generator=generator)
        for name, weight in self.stack.named_parameters():
            weight.uniform_(-bound, bound, generator=generator)
            if "bias" in name:
                forget = weight[self.config.hidden_size : 2 * self.config.hidden_size]
                # A gate has two biases, whose sum counts.
                if "_hh_" in name:
                    forget.zero_()
                elif chrono_max is None:
                    forget.fill_(1.0)
                else:
                    forget.uniform_(1.0, chrono_max - 1.0, generator=generator).log_()


class _TorchStack(Stack):
    """torch.nn.LSTM in the place of our layers."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        nn.Module.__init__(self)
        self._dropout = dropout
        self.lstm = nn.LSTM(config.hidden_size, config.hidden_size, config.num_layers)

    def step(self, x_BH: Tensor, state: State) -> tuple[Tensor, State]:
        """See :class:`Stack`."""
        features_TBH, state = self.sequence(x_BH[None], state)
        return features_TBH[0], state

    def sequence(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
        wave: bool | None = None,
    ) -> tuple[Tensor, State]:
        """See :class:`Stack`. What precision and order are used is torch's own choice."""
        # Always in training mode, without which cuDNN has no backward pass; so it is the rate that changes.
        self.lstm.dropout = 0.0 if masks.cell is None else self._dropout
        # Whoever evaluates other weights points the parameters at them; cuDNN wants them in one piece.
        self.lstm.flatten_parameters()
        outputs_TBH, (h, c) = self.lstm(x_TBH, (state.h.contiguous(), state.c.contiguous()))
        if masks.cell is not None:
            outputs_TBH = outputs_TBH * masks.cell[-1]
        return outputs_TBH, State(h, c)
