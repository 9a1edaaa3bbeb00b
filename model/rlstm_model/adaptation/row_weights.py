"""What kinds of fast weights have in common that are rows of one :class:`RowModel`: reading and learning.

Shape suffixes: T tokens of a segment, N rows, V vocabulary, P fast weights of a row.
"""

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from rlstm_model.adaptation.fast_weights import Learned, row_tile, slow_norm, softmax_gradient
from rlstm_model.language_model import LanguageModel
from rlstm_model.row_model import RowEmbedding, RowGradients, RowModel
from rlstm_model.state import State


class RowFastWeights(ABC):
    """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`.

    ``storage`` is the dtype that deltas are kept in between segments; None is the model's, in which all
    arithmetic is done.
    """

    model: LanguageModel
    storage: torch.dtype | None
    at_once = 256

    @property
    @abstractmethod
    def size(self) -> int:
        """P."""

    @property
    @abstractmethod
    def layout(self) -> bytes:
        """What tells them from other fast weights of the same kind and size."""

    @abstractmethod
    def rows(self, delta_NP: Tensor) -> RowModel:
        """The model of N rows."""

    @abstractmethod
    def own_gradient(self, gradients: RowGradients, like: Tensor) -> Tensor:
        """Of what a way back gave, the gradient at the deltas: ``[N, P]``. ``like`` is ``[T, N, V]``."""

    @cached_property
    def tile(self) -> int:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        return row_tile(self.model, self.size)

    def computed(self, rows: int) -> int:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        return rows

    @cached_property
    def slow_norm(self) -> float:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`.

        Axes are orthonormal: the norm of a delta is that of what it adds to the weights.
        """
        return slow_norm(self.model)

    def zero(self, rows: int) -> Tensor:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        return self.model.embedding.input.new_zeros(rows, self.size, dtype=self.storage)

    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        rows = self._slow_rows if delta_NP is None else self.rows(delta_NP)
        features_TNH, after = rows.read(ids_TN, state)
        return rows.logits(features_TNH, temperature), after

    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        rows = self._slow_rows if delta_NP is None else self.rows(delta_NP)
        features_NH, after = rows.step(ids_N, state)
        return rows.logits(features_NH.unsqueeze(0), temperature)[0], after

    @torch.no_grad()
    def learn(
        self,
        delta_NP: Tensor | None,
        ids_TN: Tensor,
        targets_TN: Tensor,
        weights_TN: Tensor,
        state: State,
        *,
        temperature: float = 1.0,
    ) -> Learned:
        """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`."""
        rows = self.rows(self.zero(ids_TN.shape[1]) if delta_NP is None else delta_NP)
        tape = rows.tape(ids_TN, state)
        logits_TNV = rows.logits(tape.features, temperature)
        d_logits_TNV = softmax_gradient(logits_TNV, targets_TN)
        d_logits_TNV *= (weights_TN * temperature).unsqueeze(-1)
        return Learned(logits_TNV, tape.state, self.own_gradient(tape.back(d_logits_TNV), d_logits_TNV))

    @cached_property
    def _slow_rows(self) -> RowModel:
        shared = [self.model.stack.layer(layer) for layer in range(self.model.config.num_layers)]
        return RowModel(self.model, RowEmbedding(None, None, None), shared)
