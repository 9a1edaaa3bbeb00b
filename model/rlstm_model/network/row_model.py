"""A model that differs from row to row: shared weights, and what every row adds to them.

All products with shared weights are done for all rows at once, forward and backward; there is no gradient of
a shared weight. This is what learning for many streams at once stands on (docs/adaptation.md §2, §3).
Shape suffixes: T time, B batch rows, L layers, H hidden units, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.products import RowMatrix
from rlstm_model.network.state import State
from rlstm_model.network.window import (
    LayerMasks,
    LayerState,
    LayerWeights,
    UnrolledLayer,
    read_token,
    read_window,
    unroll,
)

_TILE = 8  # rows of a product by whose multiples their last bits do not depend on how many there are


class RowEmbedding(NamedTuple):
    """What rows add to the embedding; None adds nothing.

    ``input`` and ``output`` are ``[V, H]``, and one and the same where they are tied; ``bias`` ``[B, V]``
    is the whole bias, the shared one included.
    """

    input: RowMatrix | None
    output: RowMatrix | None
    bias: Tensor | None


class EmbeddingGradients(NamedTuple):
    """Loss gradients of a :class:`RowEmbedding`: cores ``[B, R, Q]``, and ``[B, V]``."""

    input: Tensor | None
    output: Tensor | None
    bias: Tensor | None


class RowGradients(NamedTuple):
    """Loss gradients at what rows add: of the embedding, and of each layer in the order of its weights."""

    embedding: EmbeddingGradients
    layers: list[Sequence[Tensor | None]]


@dataclass(frozen=True, eq=False)
class RowModel:
    """``model`` with what B rows add to it. ``layers`` are the weights of its layers, rows' own included.

    The backward pass goes no deeper than it must: layers below all that rows add to are only read.
    """

    model: LanguageModel
    embedding: RowEmbedding
    layers: Sequence[LayerWeights]

    def __post_init__(self) -> None:
        if self.model.embedding.mixture is not None:
            raise ValueError("rows cannot add to a mixture of softmaxes")

    @cached_property
    def _lowest(self) -> int:
        """The first layer to go back to; the number of layers when there is none."""
        if self.embedding.input is not None:
            return 0
        layers = enumerate(self._detached)
        return min((index for index, layer in layers if layer.take_gradients), default=len(self.layers))

    @cached_property
    def _detached(self) -> list[LayerWeights]:
        return [layer.detached() for layer in self.layers]

    @torch.no_grad()
    def read(self, ids_TB: Tensor, state: State) -> tuple[Tensor, State]:
        """Features ``[T, B, H]`` and the state after them."""
        read = self._through(ids_TB, state, len(self.layers))
        return read.features, read.state

    @torch.no_grad()
    def unroll(self, ids_TB: Tensor, state: State) -> "UnrolledRows":
        """The same, with what the backward pass needs."""
        return self._through(ids_TB, state, self._lowest)

    @torch.no_grad()
    def step(self, ids_B: Tensor, state: State) -> tuple[Tensor, State]:
        """The same for one token a row: features ``[B, H]``."""
        stack = self.model.stack
        source, total, states = self._embed(ids_B.unsqueeze(0))[0], None, []
        capped = stack.kind(None).cell.capped
        for layer, (h, c) in zip(self.layers, state.layers(stack.widths), strict=True):
            h, c = read_token(layer, source, h, c, capped=capped)
            states.append((h, c))
            source, total = stack.join(total, h)
        assert total is not None
        return total, State.of(states)

    def logits(self, features_TBH: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities ``[T, B, V]`` up to a constant; ``temperature`` multiplies the logits.

        The bias comes after the product, which would add it somewhere within: so rows with biases of their
        own have the bits of those without, where these are equal.
        """
        shared, own = self.model.embedding, self.embedding
        logits_TBV = functional.linear(features_TBH, shared.output_matrix)
        logits_TBV += shared.bias if own.bias is None else own.bias
        if own.output is not None:
            low = _by_row(features_TBH @ own.output.right.t(), own.output.core.mT)
            logits_TBV.flatten(0, 1).addmm_(low.flatten(0, 1), own.output.left.t())
        return logits_TBV if temperature == 1.0 else logits_TBV * temperature

    def _embed(self, ids_TB: Tensor) -> Tensor:
        embedded_TBH, own = self.model.embedding.embed(ids_TB), self.embedding.input
        if own is None:
            return embedded_TBH
        return embedded_TBH + _by_row(own.left[ids_TB], own.core) @ own.right

    def _through(self, ids_TB: Tensor, state: State, lowest: int) -> "UnrolledRows":
        """Read a window; activations are saved of the layers from ``lowest`` on."""
        stack, kind, masks = self.model.stack, self.model.stack.kind(None), LayerMasks()
        source, total, states = self._embed(ids_TB), None, []
        unrolled: list[UnrolledLayer] = []
        for index, (layer, own) in enumerate(zip(self._detached, state.layers(stack.widths), strict=True)):
            before = LayerState(*own)
            if index >= lowest:
                unrolled.append(unroll(kind, layer, source, before, masks))
                output, last = unrolled[-1].out, unrolled[-1].state
            else:
                output, last = read_window(kind, layer, source, before, masks)
            states.append(last)
            source, total = stack.join(total, output)
        assert total is not None
        return UnrolledRows(self, ids_TB, total, State.of(states), unrolled)


@dataclass(frozen=True, eq=False)
class UnrolledRows:
    """A window that rows have read: ``features`` ``[T, B, H]``, the state after it, and what layers saved."""

    rows: RowModel
    ids: Tensor
    features: Tensor
    state: State
    layers: Sequence[UnrolledLayer]

    @torch.no_grad()
    def backward(self, d_logits_TBV: Tensor) -> RowGradients:
        """From loss gradients at the logits (as if the temperature were 1) to those at what rows add."""
        own = self.rows.embedding
        d_output, low = None, None
        if own.output is not None:
            low = d_logits_TBV @ own.output.left
            d_output = torch.bmm(low.permute(1, 2, 0), (self.features @ own.output.right.t()).transpose(0, 1))
        d_input, layers = self._backward_below(d_logits_TBV, low)
        d_bias = None if own.bias is None else d_logits_TBV.sum(0)
        return RowGradients(EmbeddingGradients(d_input, d_output, d_bias), layers)

    def _backward_below(
        self, d_logits_TBV: Tensor, low_TBR: Tensor | None
    ) -> tuple[Tensor | None, list[Sequence[Tensor | None]]]:
        """Gradients below the softmax: of the input's cores, and of the layers."""
        shared, own = self.rows.model.embedding, self.rows.embedding
        if not self.layers:
            return None, self._none(len(self.rows.layers))
        d_features_TBH = d_logits_TBV @ shared.output_matrix
        if own.output is not None and low_TBR is not None:
            d_low = _by_row(low_TBR, own.output.core)
            d_features_TBH.flatten(0, 1).addmm_(d_low.flatten(0, 1), own.output.right)
        d_read_TBH, layers = self.backward_layers(d_features_TBH)
        if own.input is None:
            return None, layers
        low = own.input.left[self.ids].permute(1, 2, 0)
        return torch.bmm(low, (d_read_TBH @ own.input.right.t()).transpose(0, 1)), layers

    @torch.no_grad()
    def backward_layers(self, d_features_TBH: Tensor) -> tuple[Tensor, list[Sequence[Tensor | None]]]:
        """From loss gradients at the features to those at each layer's weights.

        And, first, to those at what was read by the lowest layer that it went back to.
        """
        stack = self.rows.model.stack
        gradients: list[Sequence[Tensor | None]] = []
        arriving = d_read = d_features_TBH
        for unrolled in reversed(self.layers):
            zeros = torch.zeros_like(unrolled.h[0])
            d_read, _, own = unrolled.backward(arriving, LayerState(zeros, zeros.clone()))
            gradients = [own, *gradients]
            arriving = stack.arriving_below(arriving, d_features_TBH, d_read)
        return d_read, self._none(len(self.rows.layers) - len(gradients)) + gradients

    def _none(self, layers: int) -> list[Sequence[Tensor | None]]:
        """What the lowest layers get where nothing goes back to them."""
        return [[None] * len(layer.flat()) for layer in self.rows.layers[:layers]]


def _by_row(low_TBR: Tensor, core_BRQ: Tensor) -> Tensor:
    """Each row's values times its own core, ``[T, B, Q]``.

    A window may end where a neighbour's text does. T is padded so that this changes no bit of a row.
    """
    time = len(low_TBR)
    padded = functional.pad(low_TBR, (0, 0, 0, 0, 0, -time % _TILE))
    return torch.bmm(padded.transpose(0, 1), core_BRQ).transpose(0, 1)[:time]
