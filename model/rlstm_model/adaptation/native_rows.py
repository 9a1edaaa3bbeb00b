"""Rows on a CPU, by the native core: no padding, and a row's bits are its own.

Shape suffixes: T tokens, N rows, V vocabulary, P fast weights of a row, D elements of all cores and biases.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstm_model import native
from rlstm_model.adaptation.fast_weights import Learned, slow_norm
from rlstm_model.adaptation.subspace import SubspaceFastWeights
from rlstm_model.language_model import LanguageModel
from rlstm_model.native.packed import Axes, PackedModel, Space
from rlstm_model.state import State


class NativeRows:
    """See :class:`~rlstm_model.adaptation.fast_weights.FastWeights`; ``own`` None is the weights as loaded."""

    tile = 1
    at_once = 256

    def __init__(self, model: LanguageModel, own: SubspaceFastWeights | None = None) -> None:
        self.model = model
        self._own = own

    @property
    def size(self) -> int:
        """P."""
        return 0 if self._own is None else self._own.size

    @cached_property
    def slow_norm(self) -> float:
        """See :class:`FastWeights`."""
        return slow_norm(self.model)

    def computed(self, rows: int) -> int:
        """See :class:`Weights`."""
        return rows

    def zero(self, rows: int) -> Tensor:
        """See :class:`Weights`."""
        if self._own is None:
            return self.model.embedding.input.new_zeros(rows, 0)
        return self._own.zero(rows)

    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """Log-probabilities ``[T, N, V]`` after each of the ids, and the state after them."""
        learned = self._window(delta_NP, ids_TN, None, None, state, temperature)
        return learned.logits_TNV, learned.state

    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """The same for one token a row: ``[N, V]``."""
        log_probs_1NV, after = self.read(delta_NP, ids_N[None], state, temperature=temperature)
        return log_probs_1NV[0], after

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
        """See :class:`FastWeights`."""
        delta_NP = self.zero(ids_TN.shape[1]) if delta_NP is None else delta_NP
        return self._window(delta_NP, ids_TN, targets_TN, weights_TN, state, temperature)

    def _window(
        self,
        delta_NP: Tensor | None,
        ids_TN: Tensor,
        targets_TN: Tensor | None,
        weights_TN: Tensor | None,
        state: State,
        temperature: float,
    ) -> Learned:
        packed = self._packed
        layers, rows, hidden = state.h.shape
        stacked = torch.stack((state.h, state.c)).permute(2, 0, 1, 3).reshape(rows, 2, layers * hidden)
        states = packed.pad_states(stacked.numpy())
        own = None if delta_NP is None else self._padded(delta_NP)
        ids, targets, loss = _by_row(ids_TN, np.int32), _by_row(targets_TN, np.int32), _by_row(weights_TN, np.float32)
        windows = native.pool().window(
            packed,
            [
                native.Row(
                    ids[n],
                    states[n],
                    None if own is None else own[n],
                    None if targets is None else targets[n],
                    None if loss is None else loss[n],
                )
                for n in range(rows)
            ],
            temperature=temperature,
        )
        log_probs = torch.from_numpy(np.stack([window.log_probs_TV for window in windows], 1))
        after = torch.from_numpy(packed.unpad_states(states)).view(rows, 2, layers, hidden).permute(1, 2, 0, 3)
        gradients = [window.gradient[self._places_P] for window in windows if window.gradient is not None]
        gradient = torch.from_numpy(np.stack(gradients)) if gradients else self.zero(0)
        return Learned(log_probs, State(after[0].contiguous(), after[1].contiguous()), gradient)

    def _padded(self, delta_NP: Tensor) -> NDArray[np.float32]:
        own = np.zeros((len(delta_NP), self._packed.size), np.float32)
        own[:, self._places_P] = delta_NP.numpy()
        return own

    @cached_property
    def _places_P(self) -> NDArray[np.int64]:
        chosen = None if self._own is None else self._own.chosen_P
        places = self._packed.places_D
        return places if chosen is None else places[chosen.numpy()]

    @cached_property
    def _packed(self) -> PackedModel:
        return PackedModel(self.model.config, _weights(self.model), _space(self._own))


def _weights(model: LanguageModel) -> Mapping[str, NDArray[Any]]:
    """Its weights; in half precision where that loses nothing, as of a model that was stored so."""
    named = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    halves = {name: weight.astype(np.float16) for name, weight in named.items()}
    exact = all(bool((halves[name] == weight).all()) for name, weight in named.items())
    return halves if exact else named


def _space(own: SubspaceFastWeights | None) -> Space:
    if own is None:
        return Space({}, ())
    axes = {name: Axes(basis.left.numpy(), basis.right.numpy()) for name, basis in own.bases.items()}
    return Space(axes, tuple(own.biases))


def _by_row(values_TN: Tensor | None, dtype: type) -> "NDArray[Any] | None":
    return None if values_TN is None else np.ascontiguousarray(values_TN.t().numpy(), dtype)
