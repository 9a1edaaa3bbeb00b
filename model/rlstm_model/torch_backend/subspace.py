"""The kind ``subspace``: small cores between fixed bases, W + U C A^T, and biases.

U and A are the leading eigenvectors of sum G G^T and sum G^T G over segment gradients G on training text
(docs/adaptation.md §2): within these axes a diagonal preconditioner comes close to the curvature (George et
al. 2018). They belong to a checkpoint and all sessions share them; a session has its fast weights alone.
These may be few: of cores and biases only those elements that learn most, whose places are shared too.
Shape suffixes: N rows, P fast weights, D elements of all cores and biases, L layers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.network.cells import CellWeights
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.mogrifier import MogrifierWeights
from rlstm_model.network.products import Matrix, RowMatrix
from rlstm_model.network.row_model import RowEmbedding, RowGradients, RowModel
from rlstm_model.network.state import State
from rlstm_model.network.window import LayerWeights
from rlstm_model.torch_backend.fast_weights import (
    Learned,
    check_precision,
    row_tile,
    slow_norm,
    softmax_gradient,
)

_LAYER = (*CellWeights._fields, *(f"mogrifier_{name}" for name in MogrifierWeights._fields))


def layer_names(layer: int) -> list[str]:
    """The names of a layer's weights, in the order of :meth:`LayerWeights.flat`."""
    return [f"stack.layers.{layer}.{name}" for name in _LAYER]


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

    def leading(self, rows: int, columns: int) -> "Basis":
        """The first axes of each side."""
        return Basis(self.left[..., :rows], self.right[..., :columns, :])


@dataclass(frozen=True, eq=False, repr=False)
class SubspaceFastWeights:
    """Deltas ``[N, P]`` of a subspace of ``model``'s weights.

    bases     those of the matrices that take part, by weight name
    biases    the names of the vectors that do
    chosen_P  the places of the fast weights among the elements of all parts, ascending; None is all of them
    storage   the dtype that deltas are kept in between segments; None is the model's, which all arithmetic is
              in. In half precision twice as many fast weights fit into a state: worth more than the digits
    """

    model: LanguageModel
    bases: Mapping[str, Basis]
    biases: Sequence[str]
    chosen_P: Tensor | None = None
    storage: torch.dtype | None = None
    at_once = 256

    def __post_init__(self) -> None:
        weights = dict(self.model.named_parameters())
        for name, basis in self.bases.items():
            _check_basis(name, basis, weights)
        for name in self.biases:
            if name not in weights or not name.endswith("bias"):
                raise ValueError(f"the model has no bias {name}")

        if self.chosen_P is not None:
            _check_chosen(self.chosen_P, self.elements)
        check_precision(self.model)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The cores and biases of one row, in their order."""
        weights = dict(self.model.named_parameters())
        cores = {name: basis.core for name, basis in self.bases.items()}
        return cores | {name: tuple(weights[name].shape) for name in self.biases}

    @cached_property
    def elements(self) -> int:
        """D."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @property
    def size(self) -> int:
        """P."""
        return self.elements if self.chosen_P is None else len(self.chosen_P)

    def split(self, elements_ND: Tensor) -> dict[str, Tensor]:
        """The parts ``[N, ..]`` of rows, by weight name, as views."""
        shapes = self.shapes
        parts = torch.split(elements_ND, [torch.Size(shape).numel() for shape in shapes.values()], -1)
        return {
            name: part.view(*elements_ND.shape[:-1], *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def expand(self, delta_NP: Tensor) -> Tensor:
        """All elements ``[N, D]`` of rows, in the model's precision: 0 where nothing was chosen."""
        delta_NP = delta_NP.to(self.model.embedding.input.dtype)
        if self.chosen_P is None:
            return delta_NP
        elements_ND = delta_NP.new_zeros(len(delta_NP), self.elements)
        return elements_ND.index_copy_(1, self.chosen_P, delta_NP)

    def rows(self, delta_NP: Tensor) -> RowModel:
        """The model of N rows."""
        parts = self.split(self.expand(delta_NP))
        embedding = self.model.embedding
        matrix = "embedding.input" if embedding.output is None else "embedding.output"
        bias = parts.get("embedding.bias")
        return RowModel(
            self.model,
            RowEmbedding(
                input=self._row_matrix("embedding.input", parts),
                output=self._row_matrix(matrix, parts),
                bias=None if bias is None else embedding.bias + bias,
            ),
            [self._layer(layer, parts) for layer in range(self.model.config.num_layers)],
        )

    @cached_property
    def tile(self) -> int:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
        return row_tile(self.model, self.size)

    def computed(self, rows: int) -> int:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
        return rows

    @cached_property
    def slow_norm(self) -> float:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`.

        Axes are orthonormal: the norm of a delta is that of what it adds to the weights.
        """
        return slow_norm(self.model)

    def zero(self, rows: int) -> Tensor:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
        return self.model.embedding.input.new_zeros(rows, self.size, dtype=self.storage)

    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
        rows = self._slow_rows if delta_NP is None else self.rows(delta_NP)
        features_TNH, after = rows.read(ids_TN, state)
        return rows.logits(features_TNH, temperature), after

    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
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
        """See :class:`~rlstm_model.torch_backend.fast_weights.FastWeights`."""
        rows = self.rows(self.zero(ids_TN.shape[1]) if delta_NP is None else delta_NP)
        window = rows.unroll(ids_TN, state)
        logits_TNV = rows.logits(window.features, temperature)
        d_logits_TNV = softmax_gradient(logits_TNV, targets_TN)
        d_logits_TNV *= (weights_TN * temperature).unsqueeze(-1)
        gradient_NP = self._own_gradient(window.backward(d_logits_TNV), d_logits_TNV)
        return Learned(logits_TNV, window.state, gradient_NP)

    @cached_property
    def _slow_rows(self) -> RowModel:
        shared = [self.model.stack.layer(layer) for layer in range(self.model.config.num_layers)]
        return RowModel(self.model, RowEmbedding(None, None, None), shared)

    def _own_gradient(self, gradients: RowGradients, like: Tensor) -> Tensor:
        """Of what a backward pass gave, the gradient at the deltas: ``[N, P]``. ``like`` is ``[T, N, V]``."""
        gradient_ND = like.new_empty(like.shape[1], self.elements)
        self.gradient(gradients, gradient_ND)
        return gradient_ND if self.chosen_P is None else gradient_ND.index_select(1, self.chosen_P)

    @property
    def layout(self) -> bytes:
        """What tells them from other fast weights of the same size."""
        parts = [
            name.encode() + tensor_bytes(b.left) + tensor_bytes(b.right) for name, b in self.bases.items()
        ]
        parts += [json.dumps(list(self.biases)).encode(), str(self.storage).encode()]
        if self.chosen_P is not None:
            parts.append(self.chosen_P.cpu().numpy().astype("<i8", copy=False).tobytes())
        return b"".join(parts)

    def gradient(self, gradients: RowGradients, out_ND: Tensor) -> None:
        """Write what a backward pass gave into ``out_ND``."""
        parts = self.split(out_ND)
        given = dict(self._named(gradients))
        for name, part in parts.items():
            part.copy_(given[name])
        if self.model.embedding.output is None and gradients.embedding.output is not None:
            parts["embedding.input"] += gradients.embedding.output

    def _named(self, gradients: RowGradients) -> list[tuple[str, Tensor]]:
        embedding = gradients.embedding
        named = [("embedding.input", embedding.input), ("embedding.output", embedding.output)]
        named.append(("embedding.bias", embedding.bias))
        for layer, parts in enumerate(gradients.layers):
            for name, part in zip(layer_names(layer), parts, strict=True):
                by_row = part if part is None or "mogrifier" not in name else part.transpose(0, 1)
                named.append((name, by_row))
        return [(name, part) for name, part in named if part is not None]

    def _layer(self, layer: int, parts: Mapping[str, Tensor]) -> LayerWeights:
        shared = self.model.stack.layer(layer)
        prefix = f"stack.layers.{layer}."

        def matrix(name: str, own: Matrix) -> Matrix:
            return self._row_matrix(prefix + name, parts) or own

        def optional(name: str, own: Matrix | None) -> Matrix | None:
            return None if own is None else matrix(name, own)

        def bias(name: str, own: Tensor, rows: int) -> Tensor:
            part = parts.get(prefix + name)
            return own if part is None else own.unsqueeze(rows) + part.movedim(0, rows)

        cell, mogrifier = shared.cell, shared.mogrifier
        return LayerWeights(
            CellWeights(
                matrix("x", cell.x),
                matrix("h", cell.h),
                optional("u", cell.u),
                optional("c", cell.c),
                bias("bias", cell.bias, 0),
            ),
            MogrifierWeights(
                matrix("mogrifier_up", mogrifier.up),
                optional("mogrifier_down", mogrifier.down),
                None if mogrifier.bias is None else bias("mogrifier_bias", mogrifier.bias, 1),
            ),
        )

    def _row_matrix(self, name: str, parts: Mapping[str, Tensor]) -> RowMatrix | None:
        if name not in self.bases:
            return None
        basis, core = self.bases[name], parts[name]
        shared = dict(self.model.named_parameters())[name].detach()
        return RowMatrix(shared, basis.left, core.transpose(0, 1) if core.dim() == 4 else core, basis.right)


def _check_basis(name: str, basis: Basis, weights: Mapping[str, Tensor]) -> None:
    if name not in weights or weights[name].dim() not in (2, 3):
        raise ValueError(f"the model has no matrix {name}")
    shape = (*basis.left.shape[:-1], basis.right.shape[-1])
    if tuple(weights[name].shape) != shape:
        raise ValueError(f"the bases of {name} are of a matrix {list(shape)}, not of this model's")


def _check_chosen(chosen_P: Tensor, elements: int) -> None:
    if chosen_P.dtype != torch.int64 or chosen_P.dim() != 1 or len(chosen_P) == 0:
        raise ValueError(f"chosen_P must be a vector of int64, not {chosen_P.dtype} {list(chosen_P.shape)}")
    inside = int(chosen_P[0]) >= 0 and int(chosen_P[-1]) < elements
    if not inside or not bool((chosen_P.diff() > 0).all()):
        raise ValueError(f"chosen_P must be ascending places among {elements} elements")


def tensor_bytes(tensor: Tensor) -> bytes:
    """The values as little-endian float32, for a fingerprint."""
    return tensor.detach().cpu().float().contiguous().numpy().astype("<f4", copy=False).tobytes()
