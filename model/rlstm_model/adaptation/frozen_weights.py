"""The weights as loaded, for rows that have no fast ones: static texts share rounds with learning streams."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rlstm_model.adaptation.fast_weights import row_tile
from rlstm_model.language_model import LanguageModel
from rlstm_model.state import State


@dataclass(frozen=True)
class FrozenWeights:
    """:class:`~rlstm_model.adaptation.fast_weights.Weights` without anything to learn.

    Those of one model are equal, so that all its static texts are read together.

    ``compiled``: texts are read token by token with a step by ``torch.compile``, whose pointwise parts are
    fused; numbers agree to rounding. It is meant for a GPU under recorded graphs, needs a compiler, and takes
    minutes at first: off unless it was measured to win (``make gpu`` prints both).
    """

    model: LanguageModel
    compiled: bool = False
    at_once = 256

    @property
    def tile(self) -> int:
        """See :class:`~rlstm_model.adaptation.fast_weights.Weights`."""
        return row_tile(self.model)

    def computed(self, rows: int) -> int:
        """See :class:`~rlstm_model.adaptation.fast_weights.Weights`."""
        return rows

    def zero(self, rows: int) -> Tensor:
        """Deltas ``[N, 0]``."""
        return self.model.embedding.input.new_zeros(rows, 0)

    @torch.no_grad()
    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """Logits ``[T, N, V]`` after each of the ids, and the state after them; deltas add nothing."""
        if not self.compiled:
            features_TNH, after = self.model(ids_TN, state)
            return self.model.logits(features_TNH, temperature), after
        features = []
        for ids_N in ids_TN:
            features_NH, state = self._step(ids_N, state)
            features.append(features_NH)
        return self.model.logits(torch.stack(features), temperature), state

    @torch.no_grad()
    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """The same for one token a row: logits ``[N, V]``."""
        features_NH, after = self._step(ids_N, state)
        return self.model.logits(features_NH, temperature), after

    @cached_property
    def _step(self) -> Callable[[Tensor, State], tuple[Tensor, State]]:
        return torch.compile(self.model.step) if self.compiled else self.model.step
