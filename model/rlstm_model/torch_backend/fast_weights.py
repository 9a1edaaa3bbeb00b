"""Fast weights: what a session may change, one flat vector a row beside the shared slow weights.

Rows are read and learn N at once, each with a delta of its own; no row changes another. Every kind says what
its rows predict as a function of their deltas; automatic differentiation gives the gradients, through layers
whose backward pass is written out (:mod:`rlstm_model.network.window`).
Shape suffixes: T tokens of a segment, N rows, V vocabulary, P fast weights of a row.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State


class Learned(NamedTuple):
    """What rows read, and the gradient of each row's own loss.

    ``logits_TNV`` have been multiplied by the temperature. Of recorded graphs ``gradient_NP`` lives until the
    next call.
    """

    logits_TNV: Tensor
    state: State
    gradient_NP: Tensor


class FastWeights(ABC):
    """A kind of fast weights of one model, which it never changes.

    Deltas are ``[N, P]``, or None where all are zero.

    size     P
    tile     rows by whose multiples a row's last bits do not depend on how many rows there are
    at_once  rows that are read or learn in one pass: what more of them would cost in memory they gain not
    """

    size: int
    tile: int
    at_once: int

    def __init__(self, model: LanguageModel) -> None:
        """Raises ValueError for a model in half precision, which would swallow the steps."""
        self.model = model
        self.dtype = model.embedding.input.dtype
        if self.dtype.itemsize < 4:
            raise ValueError(f"fast weights need a model in float32 or float64, not {self.dtype}")

    @abstractmethod
    def logits(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, temperature: float
    ) -> tuple[Tensor, State]:
        """Logits ``[T, N, V]`` after each of the ids, and the state after: differentiable in the deltas."""

    @torch.no_grad()
    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """Logits and state, without gradients."""
        return self.logits(delta_NP, ids_TN, state, temperature)

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
        """The same, and the gradient of each row's sum of weighted losses at its delta.

        ``state`` is cut from its history. The loss is that of the distributions at the temperature.
        """
        rows = ids_TN.shape[1]
        given_NP = state.h.new_zeros(rows, self.size) if delta_NP is None else delta_NP.detach()
        with torch.enable_grad():
            given_NP = given_NP.requires_grad_(True)
            logits_TNV, after = self.logits(given_NP, ids_TN, state.detach(), temperature)
            losses = cross_entropy(logits_TNV.flatten(0, 1), targets_TN.flatten(), reduction="none")
            (gradient_NP,) = torch.autograd.grad((losses * weights_TN.flatten()).sum(), given_NP)
        return Learned(logits_TNV.detach(), after.detach(), gradient_NP)


class FrozenWeights(FastWeights):
    """Nothing to learn: the weights as loaded, of any model."""

    size = 0
    at_once = 256

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.tile = row_tile(model)

    def logits(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, temperature: float
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`; deltas add nothing."""
        features_TNH, after = self.model(ids_TN, state)
        return self.model.logits(features_TNH, temperature), after


class FullFastWeights(FastWeights):
    """The kind ``full``: a delta for every weight, theta = theta_0 + delta.

    The literature's dynamic evaluation. Rows cannot share a product: each is read with weights of its own.
    """

    tile = 1
    at_once = 1

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self._predicting = _Predicting(model)
        self._slow = {name: weight.detach() for name, weight in self._predicting.named_parameters()}
        self.size = sum(weight.numel() for weight in self._slow.values())

    def logits(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, temperature: float
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`."""
        if delta_NP is None:
            read: tuple[Tensor, State] = self._predicting(ids_TN, state, temperature)
            return read
        rows = []
        for row, delta_P in enumerate(delta_NP):
            own = slice(row, row + 1)
            parts = torch.split(delta_P, [weight.numel() for weight in self._slow.values()])
            weights = {
                name: slow + part.view_as(slow)
                for (name, slow), part in zip(self._slow.items(), parts, strict=True)
            }
            rows.append(
                functional_call(self._predicting, weights, (ids_TN[:, own], state.rows(own), temperature))
            )
        logits, states = zip(*rows, strict=True)
        h, c = (torch.cat(parts, 1) for parts in zip(*states, strict=True))
        return torch.cat(logits, 1), State(h, c)


class _Predicting(nn.Module):
    """A model, from ids to logits in one call."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_TN: Tensor, state: State, temperature: float) -> tuple[Tensor, State]:
        features_TNH, after = self.model(ids_TN, state)
        return self.model.logits(features_TNH, temperature), after


def row_tile(model: LanguageModel, fast_weights: int = 32) -> int:
    """Rows by whose multiples a row's last bits do not depend on how many rows there are.

    Matrix products are the same for 8 rows and more. Pointwise functions are worked out 32 values at a time,
    and what is left over in another way, to other last bits: so a tile's hidden units must leave nothing, nor
    what its rows have of fast weights.
    """
    widths = (model.config.hidden_size, fast_weights)
    return math.lcm(8, *(32 // math.gcd(32, width) for width in widths))


def slow_norm(model: LanguageModel) -> float:
    """The norm of all weights of a model together."""
    return math.sqrt(sum(float(weight.detach().double().square().sum()) for weight in model.parameters()))
