"""Gradients of many rows' segments, as their factors: for statistics that never need a gradient whole.

A matrix's gradient over one row's segment is G = D^T X, where D ``[T, N]`` are loss gradients at its
products and X ``[T, M]`` what it was multiplied with. T is much smaller than N and M.
Shape suffixes: T factor rows, B batch rows, S segment tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlstm_model.adaptation.config import Reduction
from rlstm_model.network.cells import CellWeights
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.mogrifier import MogrifierWeights
from rlstm_model.network.products import Matrix, ObservedMatrix
from rlstm_model.network.row_model import RowEmbedding, RowModel, UnrolledRows
from rlstm_model.network.window import LayerWeights
from rlstm_model.torch_backend.fast_weights import softmax_gradient
from rlstm_model.torch_backend.subspace import SubspaceFastWeights, layer_names


class Factor(NamedTuple):
    """One factor ``[B, T, N]``: rows with a single one, at ``ids`` ``[B, I]``, and after them ``dense``.

    An embedding is read by id: its one-hot vectors stay ids. ``dense`` is ``[B, T - I, N]``.
    """

    ids: Tensor
    dense: Tensor

    @classmethod
    def of(cls, dense_BTN: Tensor) -> "Factor":
        """One without ids."""
        return cls(dense_BTN.new_empty(len(dense_BTN), 0, dtype=torch.long), dense_BTN)

    def rows(self, index: slice) -> "Factor":
        """Some of the batch rows."""
        return Factor(self.ids[index], self.dense[index])

    def double(self) -> "Factor":
        """The same in double precision."""
        return Factor(self.ids, self.dense.double())

    def whole(self) -> Tensor:
        """``[B, T, N]``, with the one-hot vectors written out."""
        ones = functional.one_hot(self.ids, self.dense.shape[-1]).to(self.dense)
        return torch.cat((ones, self.dense), 1)

    def gram(self) -> Tensor:
        """The factor times its transpose, ``[B, T, T]``."""
        among_ids = (self.ids[:, :, None] == self.ids[:, None, :]).to(self.dense)
        across = self.dense.gather(2, self.ids[:, None, :].expand(-1, self.dense.shape[1], -1))
        below = torch.cat((across, torch.bmm(self.dense, self.dense.mT)), 2)
        return torch.cat((torch.cat((among_ids, across.mT), 2), below), 1)

    def times(self, matrix_NK: Tensor) -> Tensor:
        """``[B, T, K]``."""
        return torch.cat((matrix_NK[self.ids], self.dense @ matrix_NK), 1)

    def add_transposed_times(self, values_BTK: Tensor, total_NK: Tensor) -> None:
        """``total`` grows by the transposed factor times ``values``, summed over the batch."""
        by_id, rest = values_BTK.split_with_sizes([self.ids.shape[1], self.dense.shape[1]], 1)
        total_NK.index_add_(0, self.ids.flatten(), by_id.flatten(0, 1))
        total_NK.addmm_(self.dense.flatten(0, 1).t(), rest.flatten(0, 1))


class Factors(NamedTuple):
    """The gradients of one matrix over B rows' segments: left D, right X, which has no ids."""

    left: Factor
    right: Factor

    @property
    def batch(self) -> int:
        """B."""
        return len(self.left.ids)

    def rows(self, index: slice) -> "Factors":
        """Those of some rows."""
        return Factors(self.left.rows(index), self.right.rows(index))

    def gradients(self) -> Tensor:
        """The gradients themselves, ``[B, N, M]``."""
        ids, source = self.left.ids, self.right.dense
        gradients = torch.bmm(self.left.dense.mT, source[:, ids.shape[1] :])
        batch = torch.arange(len(ids), device=ids.device)[:, None]
        return gradients.index_put_((batch, ids), source[:, : ids.shape[1]], accumulate=True)

    def between(self, left_NR: Tensor, right_QM: Tensor) -> Tensor:
        """``left^T G right^T`` of every row, ``[B, R, Q]``."""
        return torch.bmm(self.left.times(left_NR).mT, self.right.times(right_QM.mT))


class SegmentGradients(NamedTuple):
    """Loss gradients of a model's weights over one segment of each of ``batch`` rows, by weight name.

    ``matrices`` lists the factors over the rounds of a mogrifier's matrices; of others it has one entry.
    ``biases`` are ``[B, ..]``. Matrices without elements are left out.
    """

    batch: int
    matrices: dict[str, list[Factors]]
    biases: dict[str, Tensor]


def segment_gradients(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    segment: int,
    reduction: Reduction,
    bos_id: int,
    rows: int = 32,
) -> Iterator[SegmentGradients]:
    """Gradients at the slow weights over all whole segments of some texts, ``rows`` texts at a time.

    Every text is read from its beginning, after ``bos_id``, with carried state, as a session would be; its
    last tokens that fill no segment are left. A row whose text has ended leaves the batch. The loss is the
    mean over the segment, or the sum. Memory grows with rows times segment times vocabulary. Raises
    ValueError for a segment or rows below 1, and for a mixture of softmaxes.
    """
    for name, value in (("segment", segment), ("rows", rows)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    longest_first = sorted(texts, key=len, reverse=True)
    scale = 1 / segment if reduction == "mean" else 1.0
    for start in range(0, len(longest_first), rows):
        for window, targets_SB in _read(model, longest_first[start : start + rows], segment, bos_id):
            yield _gradients(window, targets_SB, scale)


def _read(
    model: LanguageModel, texts: Sequence[Sequence[int]], segment: int, bos_id: int
) -> Iterator[tuple[UnrolledRows, Tensor]]:
    """Segment after segment of some texts, longest first: what was read, and the targets ``[S, B]``."""
    device, state = model.embedding.input.device, model.initial_state(len(texts))
    last_1B = torch.full((1, len(texts)), bos_id, device=device)
    for stop in range(segment, len(texts[0]) + 1, segment):
        going_on = [text[stop - segment : stop] for text in texts if len(text) >= stop]
        batch = len(going_on)
        targets_SB = torch.tensor([[int(token) for token in part] for part in going_on], device=device).t()
        ids_SB = torch.cat((last_1B[:, :batch], targets_SB[:-1]))
        window = _observed(model, batch).unroll(ids_SB, state.rows(slice(batch)))
        yield window, targets_SB
        state, last_1B = window.state, targets_SB[-1:]


def _observed(model: LanguageModel, batch: int) -> RowModel:
    """The model for a batch, whose layers have observed matrices and a bias for every row."""
    biases = [name for name, _ in model.stack.named_parameters(prefix="stack") if name.endswith("bias")]
    subspace = SubspaceFastWeights(model, {}, biases)
    rows = subspace.rows(subspace.zero(batch))
    return RowModel(model, RowEmbedding(None, None, None), [_observed_layer(layer) for layer in rows.layers])


def _observed_layer(layer: LayerWeights) -> LayerWeights:
    cell, mogrifier = layer.cell, layer.mogrifier
    u, c, down = (_observed_matrix(matrix) for matrix in (cell.u, cell.c, mogrifier.down))
    return LayerWeights(
        CellWeights(_observe(cell.x), _observe(cell.h), u, c, cell.bias),
        MogrifierWeights(_observe(mogrifier.up), down, mogrifier.bias),
    )


def _observed_matrix(matrix: Matrix | None) -> ObservedMatrix | None:
    return None if matrix is None else _observe(matrix)


def _observe(matrix: Matrix) -> ObservedMatrix:
    return ObservedMatrix((matrix if isinstance(matrix, Tensor) else matrix.shared).detach())


@torch.no_grad()
def _gradients(window: UnrolledRows, targets_SB: Tensor, scale: float) -> SegmentGradients:
    """The backward pass from the losses times ``scale``."""
    d_logits_SBV = softmax_gradient(window.rows.logits(window.features), targets_SB).mul_(scale)
    model = window.rows.model
    d_read_SBH, layers = window.backward_layers(d_logits_SBV @ model.embedding.output_matrix)
    biases = {"embedding.bias": d_logits_SBV.sum(0)}
    matrices = _embedding_factors(window, d_logits_SBV.transpose(0, 1), d_read_SBH.transpose(0, 1))
    weights = dict(model.named_parameters())
    for layer, gradients in enumerate(layers):
        for name, gradient in zip(layer_names(layer), gradients, strict=True):
            if gradient is None:
                continue
            if name.endswith("bias"):
                biases[name] = gradient.transpose(0, 1) if gradient.dim() == 3 else gradient
            elif gradient.numel() > 0:
                matrices[name] = _layer_factors(gradient, weights[name].shape)
    return SegmentGradients(targets_SB.shape[1], matrices, biases)


def _embedding_factors(
    window: UnrolledRows, d_logits_BSV: Tensor, d_read_BSH: Tensor
) -> dict[str, list[Factors]]:
    """Of the two matrices; where they are tied, of the one, whose gradient is the sum over both places."""
    ids_BS, features_BSH = window.ids.t(), window.features.transpose(0, 1)
    if window.rows.model.embedding.output is None:
        sources = torch.cat((d_read_BSH, features_BSH), 1)
        return {"embedding.input": [Factors(Factor(ids_BS, d_logits_BSV), Factor.of(sources))]}
    return {
        "embedding.input": [Factors(Factor(ids_BS, d_logits_BSV[:, :0]), Factor.of(d_read_BSH))],
        "embedding.output": [Factors(Factor.of(d_logits_BSV), Factor.of(features_BSH))],
    }


def _layer_factors(observed: Tensor, shape: torch.Size) -> list[Factors]:
    """From what an observed matrix's gradient is: ``[T, B, N + M]``, with the rounds in front or without."""
    rounds = observed.unbind() if observed.dim() == 4 else [observed]
    return [
        Factors(*(Factor.of(part) for part in each.transpose(0, 1).split_with_sizes(shape[-2:], -1)))
        for each in rounds
    ]
