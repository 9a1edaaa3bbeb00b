"""Models that are measured beside ours, with as many weights: torch.nn.LSTM, GPT-2, and an untrained one.

Shape suffixes: T time, B batch rows, H hidden units.
"""

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlstm_model.adaptation.calibration import Calibration, CalibrationSet
from rlstm_model.checkpoint import load
from rlstm_model.config import ModelConfig
from rlstm_model.local import LocalModel
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import Embedding, LanguageModel
from rlstm_model.network.stack import Stack
from rlstm_model.network.state import State
from rlstm_model.network.window import LayerWeights
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import ByteVocab
from rlstm_training.evaluation.measurements import (
    Form,
    Measurements,
    Setting,
    Statistics,
    cores_of,
    most_fast_weights,
)

GPT2 = "transformers"
RANK, AXES = 32, 128


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
    """A language model of torch.nn.LSTM layers, on a GPU those of cuDNN; all around them is ours.

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

    def sequence(
        self,
        x_TBH: Tensor,
        state: State,
        masks: DropoutMasks = NO_DROPOUT,
        *,
        precision: torch.dtype | None = None,
        weights: Sequence[LayerWeights] | None = None,
    ) -> tuple[Tensor, State]:
        """See :class:`Stack`. What precision is used is torch's own choice."""
        # Always in training mode, without which cuDNN has no backward pass; so it is the rate that changes.
        self.lstm.dropout = 0.0 if masks.cell is None else self._dropout
        # Whoever evaluates other weights points the parameters at them; cuDNN wants them in one piece.
        self.lstm.flatten_parameters()
        outputs_TBH, (h, c) = self.lstm(x_TBH, (state.h.contiguous(), state.c.contiguous()))
        if masks.cell is not None:
            outputs_TBH = outputs_TBH * masks.cell[-1]
        return outputs_TBH, State(h, c)


def gpt2_shape(weights: int, *, vocabulary: int, context: int) -> tuple[int, int, int] | None:
    """Units, layers and heads of a GPT-2 of at most so many weights, in proportion: 64 units a layer.

    Attention has 4 d^2 weights a layer, what follows it 8 d^2; tokens and places have embeddings. None when
    the embeddings alone have more.
    """
    shapes = []
    for layers in range(1, 49):
        linear = 13 * layers + vocabulary + context + 2
        root = (math.sqrt(linear * linear + 48 * layers * weights) - linear) / (24 * layers)
        width = int(root) // 8 * 8
        if width:
            divisors = [count for count in range(1, width + 1) if width % count == 0]
            heads = min(divisors, key=lambda count: abs(math.log(width / count / 64)))
            shapes.append((width, layers, heads))
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / shape[1] / 64)), default=None)


def gpt2(config: ModelConfig, context: int) -> tuple[Any, int] | None:
    """GPT-2 with as many weights, random, and the multiply-adds of a token but for attention itself.

    None where its library is not installed, or the embeddings alone have more.
    """
    vocabulary = config.vocab_size
    shape = gpt2_shape(config.num_parameters, vocabulary=vocabulary, context=context)
    if shape is None or importlib.util.find_spec(GPT2) is None:
        return None
    library, (width, layers, heads) = importlib.import_module(GPT2), shape
    sizes = {"vocab_size": vocabulary, "n_positions": context, "bos_token_id": 0, "eos_token_id": 0}
    made = library.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, use_cache=False, **sizes)
    model = library.GPT2LMHeadModel(made).eval().requires_grad_(False)
    return model, layers * 12 * width * width + vocabulary * width


class Subject(NamedTuple):
    """A model that is measured, and what is known about how it learns."""

    name: str
    parameters: Parameters
    calibrated: CalibrationSet
    bos_id: int

    @classmethod
    def load(cls, name: str) -> "Subject":
        """A checkpoint. Raises CheckpointError, also where it cannot learn."""
        checkpoint = load(name)
        return cls(
            checkpoint.name, checkpoint.parameters, LocalModel(checkpoint).calibrated, checkpoint.vocab.bos_id
        )

    @classmethod
    def untrained(cls, hidden: int) -> "Subject":
        """Two layers of so many units over bytes, with statistics of random text: speed depends on neither.

        Its rules are as those of a served checkpoint: the embedding and the softmax within 128 axes, and all
        biases, which is the default; and full weights.
        """
        vocab = ByteVocab()
        config = ModelConfig(vocab_size=vocab.size, hidden_size=hidden, num_layers=2, mogrifier_rank=RANK)
        model = LanguageModel(config)
        initialise(model, chrono_max=None, generator=torch.Generator().manual_seed(0))
        model.requires_grad_(False)
        text = np.random.default_rng(0).integers(config.vocab_size, size=10_000, dtype=np.uint8)
        # Of a cell no axis is used, but one is measured: without any there would be no subspace.
        statistics = Statistics(heads=8, segments=4, rank=1, embedding_rank=AXES)
        setting = Setting(rate=1e-3, decay=1e-3, epsilon=1.0, segment=20)
        measured = Measurements(model, [(text, 1)], bos_id=vocab.bos_id, statistics=statistics)
        num_fast_weights = most_fast_weights(cores_of(config, statistics), AXES, cells=False)
        forms = Form("subspace", num_fast_weights, AXES), Form("full")
        rules = tuple(measured.config(setting, form) for form in forms)
        calibrated = CalibrationSet(statistics=measured.of(setting.segment), choices=rules)
        return cls(f"untrained, {hidden} units", model.parameter_arrays, calibrated, vocab.bos_id)

    def full_rule(self) -> Calibration:
        """Full fast weights under their rule or, as speed depends on no rate, under the default's figures."""
        known = next((choice for choice in self.calibrated.choices if choice.kind == "full"), None)
        weights = self.parameters.config.num_parameters
        rule = known or replace(self.calibrated.default, kind="full", num_fast_weights=weights, rank=0)
        return self.calibrated.statistics.calibration(rule)
