"""Fast weights: what a session may change, one flat vector a row beside the shared slow weights.

Every kind (in :mod:`~rlstm_model.torch_backend.full` and `subspace` beside it) reads and learns for
N rows at once, each with a delta of its own; no row changes another.
Shape suffixes: T tokens of a segment, N rows, V vocabulary, P fast weights of a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State


class Learned(NamedTuple):
    """What rows read, and the gradient of each row's own loss.

    ``logits_TNV`` have been multiplied by the temperature. ``gradient_NP`` may be a workspace's own, and
    lives until the next call of the same thread.
    """

    logits_TNV: Tensor
    state: State
    gradient_NP: Tensor


class Weights(Protocol):
    """What rows are read with: fast weights, or less where nothing learns.

    Deltas are ``[N, P]``, or None where all are zero. Several threads may use it, and it never changes the
    model.
    """

    @property
    def model(self) -> LanguageModel:
        """The model with its slow weights, as loaded."""

    @property
    def tile(self) -> int:
        """Rows by whose multiples a row's last bits do not depend on how many rows there are."""

    @property
    def at_once(self) -> int:
        """Rows that are read or learn in one pass: what more of them would cost in memory they gain not."""

    def computed(self, rows: int) -> int:
        """Rows that are computed where so many whole tiles of them are given."""

    def zero(self, rows: int) -> Tensor:
        """Deltas of zero ``[N, P]``, in the dtype they are kept in: a value, never written to."""

    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """Logits ``[T, N, V]`` after each of the ids, and the state after them."""

    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """The same for one token a row: logits ``[N, V]``."""


class FastWeights(Weights, Protocol):
    """A kind of fast weights of one model."""

    @property
    def size(self) -> int:
        """P."""

    @property
    def slow_norm(self) -> float:
        """The norm of all slow weights, by which that of a delta is measured."""

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
        """What :meth:`read` gives, and the gradient of each row's sum of weighted losses at its delta.

        ``state`` is cut from its history. The loss is that of the distributions at the temperature.
        """


@dataclass(frozen=True)
class FrozenWeights:
    """:class:`Weights` without anything to learn: the weights as loaded.

    Those of one model are equal, so that frozen texts are read together, and share batches with others.
    """

    model: LanguageModel
    at_once = 256

    @property
    def tile(self) -> int:
        """See :class:`Weights`."""
        return row_tile(self.model)

    def computed(self, rows: int) -> int:
        """See :class:`Weights`."""
        return rows

    def zero(self, rows: int) -> Tensor:
        """Deltas ``[N, 0]``."""
        return self.model.embedding.input.new_zeros(rows, 0)

    @torch.no_grad()
    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """Logits ``[T, N, V]`` after each of the ids, and the state after them; deltas add nothing."""
        features_TNH, after = self.model(ids_TN, state)
        return self.model.logits(features_TNH, temperature), after

    @torch.no_grad()
    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """The same for one token a row: logits ``[N, V]``."""
        features_NH, after = self.model.step(ids_N, state)
        return self.model.logits(features_NH, temperature), after


def softmax_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Gradient of each target's loss at the logits ``[.., V]``: p - 1 for the target, p for all others."""
    d_logits = torch.softmax(logits, -1)
    minus_one = d_logits.new_full((), -1.0).expand(*targets.shape, 1)
    return d_logits.scatter_add_(-1, targets.unsqueeze(-1), minus_one)


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


def check_precision(model: LanguageModel) -> None:
    """Raise ValueError for a model in half precision, which would swallow the steps."""
    dtype = model.embedding.input.dtype
    if dtype.itemsize < 4:
        raise ValueError(f"fast weights need a model in float32 or float64, not {dtype}")


def send(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, or nested lists of them, as a tensor on a device.

    A copy to a GPU from ordinary memory waits until the GPU has done everything before it; from pinned memory
    nobody waits.
    """
    pinned = device.type == "cuda"
    return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)
