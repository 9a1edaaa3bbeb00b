"""The kind ``subspace``: small cores between fixed bases, W + U C A^T, and biases.

U and A are the leading eigenvectors of sum G G^T and sum G^T G over segment gradients G on training text
(docs/adaptation.md §2): within these axes a diagonal preconditioner comes close to the curvature (George et
al. 2018). They belong to a checkpoint and all sessions share them; a session has its fast weights alone.
These may be few: of cores and biases only those elements that learn most, whose places are shared too.
All products with shared weights are done for all rows at once.
Shape suffixes: T tokens, N rows, P fast weights, D elements of all cores and biases, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.products import Matrix, RowMatrix
from rlstm_model.network.stack import layer_names
from rlstm_model.network.state import State
from rlstm_model.network.window import LayerWeights
from rlstm_model.torch_backend.fast_weights import FastWeights, row_tile

_TIMES = 8  # rows of a product by whose multiples their last bits do not depend on how many there are


class Basis(NamedTuple):
    """Orthonormal axes of a matrix ``[N, M]``: ``left`` U ``[N, R]`` and ``right`` A^T ``[Q, M]``.

    Of the mogrifier's matrices, which are stacked over rounds, both have the rounds in front.
    """

    left: Tensor
    right: Tensor

    @property
    def core(self) -> tuple[int, ...]:
        """The shape of one row's core: ``[R, Q]``, with the rounds in front."""
        return (*self.left.shape[:-2], self.left.shape[-1], self.right.shape[-2])


class SubspaceFastWeights(FastWeights):
    """Deltas ``[N, P]`` of a subspace of ``model``'s weights, which has no mixture of softmaxes."""

    at_once = 256

    def __init__(
        self,
        model: LanguageModel,
        bases: Mapping[str, Basis],
        biases: Sequence[str],
        chosen_P: Tensor | None = None,
    ) -> None:
        """``bases`` of the matrices that take part, ``biases`` that do, by weight name.

        ``chosen_P`` are the places of the fast weights among the elements of all parts; None is all of them.
        Raises ValueError for a mixture of softmaxes.
        """
        super().__init__(model)
        if model.embedding.mixture is not None:
            raise ValueError("rows cannot add to a mixture of softmaxes")
        self._slow = {name: weight.detach() for name, weight in model.named_parameters()}
        self._bases, self._chosen_P = bases, chosen_P
        cores = {name: torch.Size(basis.core) for name, basis in bases.items()}
        self._shapes = cores | {name: self._slow[name].shape for name in biases}
        self.elements = sum(shape.numel() for shape in self._shapes.values())
        self.size = self.elements if chosen_P is None else len(chosen_P)
        self.tile = row_tile(model, self.size)

    def logits(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, temperature: float
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`.

        The bias comes after the product, which would add it somewhere within: so rows with biases of their
        own have the bits of those without, where these are equal.
        """
        parts = {} if delta_NP is None else self._parts(delta_NP)
        tied = self.model.embedding.output is None
        read = self._matrix("embedding.input", parts)
        written = self._matrix("embedding.input" if tied else "embedding.output", parts)
        x_TNH = functional.embedding(ids_TN, self._slow["embedding.input"])
        if isinstance(read, RowMatrix):
            x_TNH = x_TNH + _by_row(read.left[ids_TN], read.core) @ read.right
        layers = [self._layer(layer, parts) for layer in range(self.model.config.num_layers)]
        features_TNH, after = self.model.stack.sequence(x_TNH, state, weights=layers)
        shared = written.shared if isinstance(written, RowMatrix) else written
        logits_TNV = functional.linear(features_TNH, shared)
        logits_TNV = logits_TNV + self._bias("embedding.bias", parts, 0)
        if isinstance(written, RowMatrix):
            low = _by_row(features_TNH @ written.right.t(), written.core.mT)
            logits_TNV = logits_TNV + low @ written.left.t()
        return (logits_TNV if temperature == 1.0 else logits_TNV * temperature), after

    def _parts(self, delta_NP: Tensor) -> dict[str, Tensor]:
        """The cores and biases ``[N, ..]`` of rows, by weight name: 0 where nothing was chosen."""
        if self._chosen_P is not None:
            whole = delta_NP.new_zeros(len(delta_NP), self.elements)
            delta_NP = whole.index_copy(1, self._chosen_P, delta_NP)
        parts = torch.split(delta_NP, [shape.numel() for shape in self._shapes.values()], -1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(-1, *shape) for (name, shape), part in named}

    def _layer(self, layer: int, parts: Mapping[str, Tensor]) -> LayerWeights:
        def own(name: str) -> Matrix | None:
            if name not in self._slow:
                return None
            if not name.endswith("bias"):
                return self._matrix(name, parts)
            return self._bias(name, parts, int("mogrifier" in name))  # its rounds stand before the rows

        return LayerWeights.from_flat([*map(own, layer_names(layer))])

    def _bias(self, name: str, parts: Mapping[str, Tensor], rows: int) -> Tensor:
        """A bias, with a dimension of rows where each has its own."""
        shared = self._slow[name]
        return shared.unsqueeze(rows) + parts[name].movedim(0, rows) if name in parts else shared

    def _matrix(self, name: str, parts: Mapping[str, Tensor]) -> Tensor | RowMatrix:
        if name not in parts:
            return self._slow[name]
        core = parts[name]
        return RowMatrix(
            self._slow[name], *self._bases[name], core.transpose(0, 1) if core.dim() == 4 else core
        )


def _by_row(low_TNR: Tensor, core_NRQ: Tensor) -> Tensor:
    """Each row's values times its own core, ``[T, N, Q]``.

    A window may end where a neighbour's text does. T is padded so that this changes no bit of a row.
    """
    time = len(low_TNR)
    padded = functional.pad(low_TNR, (0, 0, 0, 0, 0, -time % _TIMES))
    return torch.bmm(padded.transpose(0, 1), core_NRQ).transpose(0, 1)[:time]
