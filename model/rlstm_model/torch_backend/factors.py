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
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.products import Matrix, ObservedMatrix
from rlstm_model.network.stack import layer_names
from rlstm_model.network.state import State
from rlstm_model.network.window import LayerWeights


class Factors(NamedTuple):
    """The gradients of one matrix over B rows' segments: left D ``[B, T, N]``, right X ``[B, T, M]``."""

    left: Tensor
    right: Tensor

    @property
    def batch(self) -> int:
        """B."""
        return len(self.left)

    def rows(self, index: slice) -> "Factors":
        """Those of some rows."""
        return Factors(self.left[index], self.right[index])

    def gradients(self) -> Tensor:
        """The gradients themselves, ``[B, N, M]``."""
        return torch.bmm(self.left.mT, self.right)

    def between(self, left_NR: Tensor, right_QM: Tensor) -> Tensor:
        """``left^T G right^T`` of every row, ``[B, R, Q]``."""
        return torch.bmm((self.left @ left_NR).mT, self.right @ right_QM.mT)


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
    if model.embedding.mixture is not None:
        raise ValueError("gradients of a mixture of softmaxes have no such factors")
    longest_first = sorted(texts, key=len, reverse=True)
    scale, device = 1 / segment if reduction == "mean" else 1.0, model.embedding.input.device
    for start in range(0, len(longest_first), rows):
        some = longest_first[start : start + rows]
        state, last_1B = model.initial_state(len(some)), torch.full((1, len(some)), bos_id, device=device)
        for stop in range(segment, len(some[0]) + 1, segment):
            going_on = [list(text[stop - segment : stop]) for text in some if len(text) >= stop]
            targets_SB = torch.tensor(going_on, device=device).t()
            ids_SB = torch.cat((last_1B[:, : len(going_on)], targets_SB[:-1]))
            gradients, state = _gradients(model, ids_SB, targets_SB, state.rows(slice(len(going_on))), scale)
            yield gradients
            last_1B = targets_SB[-1:]


@torch.no_grad()
def _gradients(
    model: LanguageModel, ids_SB: Tensor, targets_SB: Tensor, state: State, scale: float
) -> tuple[SegmentGradients, State]:
    """Of the losses times ``scale``, and the state after the segment."""
    layers = [_observed(layer, *ids_SB.shape) for layer in model.stack.weights]
    read_SBH = model.embedding.embed(ids_SB).requires_grad_(True)
    with torch.enable_grad():
        features_SBH, after = model.stack.sequence(read_SBH, state, weights=layers)
    output_VH = model.embedding.output_matrix
    d_logits_SBV = softmax_gradient(
        functional.linear(features_SBH, output_VH).add_(model.embedding.bias), targets_SB
    ).mul_(scale)
    learned = {
        name: weight if isinstance(weight, Tensor) else weight[-1]
        for layer, weights in enumerate(layers)
        for name, weight in zip(layer_names(layer), weights.flat(), strict=True)
        if weight is not None and 0 not in weight.shape
    }
    d_read_SBH, *gradients = torch.autograd.grad(
        features_SBH, (read_SBH, *learned.values()), d_logits_SBV @ output_VH
    )
    biases = {"embedding.bias": d_logits_SBV.sum(0)}
    matrices = _embedding_factors(model, ids_SB, d_logits_SBV, d_read_SBH, features_SBH.detach())
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    for name, gradient in zip(learned, gradients, strict=True):
        if name.endswith("bias"):
            biases[name] = gradient.transpose(0, 1) if gradient.dim() == 3 else gradient
        else:
            matrices[name] = _layer_factors(gradient, shapes[name])
    return SegmentGradients(targets_SB.shape[1], matrices, biases), after.detach()


def _observed(layer: LayerWeights, time: int, batch: int) -> LayerWeights:
    """A layer with observed matrices and a bias for every row; a mogrifier's have the rounds in front."""

    def observed(name: str, weight: Matrix | None) -> Matrix | None:
        if not isinstance(weight, Tensor):
            return None
        if name.endswith("bias"):
            return weight.detach().unsqueeze(-2).repeat_interleave(batch, -2).requires_grad_(True)
        *rounds, rows, columns = weight.shape
        factors = weight.new_zeros(()).expand(*rounds, time, batch, rows + columns)
        return ObservedMatrix(weight.detach(), factors.requires_grad_(True))

    return LayerWeights.from_flat([*map(observed, layer_names(0), layer.flat())])


def softmax_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Gradient of each target's loss at the logits ``[.., V]``: p - 1 for the target, p for all others."""
    d_logits = torch.softmax(logits, -1)
    minus_one = d_logits.new_full((), -1.0).expand(*targets.shape, 1)
    return d_logits.scatter_add_(-1, targets.unsqueeze(-1), minus_one)


def _embedding_factors(
    model: LanguageModel, ids_SB: Tensor, d_logits_SBV: Tensor, d_read_SBH: Tensor, features_SBH: Tensor
) -> dict[str, list[Factors]]:
    """Of the two matrices; where they are tied, of the one, whose gradient is the sum over both places."""
    ids_BS, d_logits, d_read, features = (
        part.transpose(0, 1) for part in (ids_SB, d_logits_SBV, d_read_SBH, features_SBH)
    )
    read = functional.one_hot(ids_BS, d_logits.shape[-1]).to(d_logits)
    if model.embedding.output is None:
        both = torch.cat((read, d_logits), 1), torch.cat((d_read, features), 1)
        return {"embedding.input": [Factors(*both)]}
    return {"embedding.input": [Factors(read, d_read)], "embedding.output": [Factors(d_logits, features)]}


def _layer_factors(observed: Tensor, shape: torch.Size) -> list[Factors]:
    """From what an observed matrix's gradient is: ``[T, B, N + M]``, with the rounds in front or without."""
    rounds = observed.unbind() if observed.dim() == 4 else [observed]
    return [Factors(*each.transpose(0, 1).split_with_sizes(shape[-2:], -1)) for each in rounds]
