"""The kind ``sparse``: in every layer, what some hidden units add to each other, h' = h + M h.

M is zero at first and is all that learns; h' takes the place of h everywhere, in the recurrent state and on
the way up (Krause et al. 2017; mathematics: §8.4). Their units are arbitrary; here they are those that
M's gradients on training text are largest at.
Shape suffixes: N rows, P fast weights, L layers, U units of each, H hidden units.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from rlstm_model.adaptation.fast_weights import check_precision
from rlstm_model.adaptation.row_weights import RowFastWeights
from rlstm_model.language_model import LanguageModel
from rlstm_model.products import RowMatrix
from rlstm_model.row_model import RowEmbedding, RowGradients, RowModel


@dataclass(frozen=True, eq=False, repr=False)
class SparseFastWeights(RowFastWeights):
    """Deltas ``[N, P]``: the matrices M of all layers ``[L, U, U]``, from unit (column) to unit (row).

    ``units_LU`` (int64) are the places of the units in each layer, no two of a layer the same.
    """

    model: LanguageModel
    units_LU: Tensor
    storage: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_units(self.units_LU, self.model)
        check_precision(self.model)

    @property
    def size(self) -> int:
        """P."""
        layers, units = self.units_LU.shape
        return layers * units**2

    @property
    def layout(self) -> bytes:
        """See :class:`~rlstm_model.adaptation.row_weights.RowFastWeights`."""
        units = self.units_LU.cpu().numpy().astype("<i8", copy=False).tobytes()
        return units + str(self.storage).encode()

    def rows(self, delta_NP: Tensor) -> RowModel:
        """The model of N rows."""
        units = self.units_LU.shape[1]
        cores_LNUU = delta_NP.to(self._axes_LUH).view(len(delta_NP), -1, units, units).transpose(0, 1)
        layers = []
        for layer, (axes_UH, core_NUU) in enumerate(zip(self._axes_LUH, cores_LNUU, strict=True)):
            nothing = axes_UH.new_zeros(()).expand(axes_UH.shape[1], axes_UH.shape[1])
            out = RowMatrix(nothing, axes_UH.t(), core_NUU, axes_UH)
            layers.append(self.model.stack.layer(layer)._replace(out=out))
        return RowModel(self.model, RowEmbedding(None, None, None), layers)

    def own_gradient(self, gradients: RowGradients, like: Tensor) -> Tensor:
        """See :class:`~rlstm_model.adaptation.row_weights.RowFastWeights`."""
        outs = [layer[-1] for layer in gradients.layers]
        return torch.stack([out for out in outs if out is not None], 1).view(like.shape[1], self.size)

    @cached_property
    def _axes_LUH(self) -> Tensor:  # noqa: N802 - the shape of a tensor
        """The units as axes, one-hot: so they are chosen, and put back, in products that all rows share."""
        return functional.one_hot(self.units_LU, self.model.config.hidden_size).to(self.model.embedding.input)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseStatistics:
    """Which units learn most, and how much: ``units_LU`` in that order, and the RMS of M's gradients.

    ``rms_LUU`` is between these units, so that fewer of them have its leading block.
    """

    units_LU: Tensor
    rms_LUU: Tensor

    @classmethod
    def of(cls, rms_LHH: Tensor) -> "SparseStatistics":
        """From the RMS between all units.

        A unit counts by the mean square of what M may add to it and of what M may add from it.
        """
        squares = rms_LHH.double().square()
        units_LU = (squares.sum(1) + squares.sum(2)).argsort(dim=1, descending=True, stable=True)
        layers = torch.arange(len(units_LU), device=units_LU.device)[:, None, None]
        return cls(units_LU=units_LU, rms_LUU=rms_LHH[layers, units_LU[:, :, None], units_LU[:, None, :]])

    def leading(self, units: int) -> "SparseStatistics":
        """Those of the first units of each layer, ``units`` at most."""
        return SparseStatistics(units_LU=self.units_LU[:, :units], rms_LUU=self.rms_LUU[:, :units, :units])

    def greatest(self, model: LanguageModel, num_fast_weights: int) -> tuple[SparseFastWeights, Tensor]:
        """The fast weights of the units that learn most, and the RMS of their gradients, ``[P]``.

        Raises ValueError unless ``num_fast_weights`` is as many as a whole number of units in each layer has.
        """
        layers, most = self.units_LU.shape
        units = math.isqrt(max(0, num_fast_weights) // layers)
        if not 1 <= units <= most or layers * units**2 != num_fast_weights:
            raise ValueError(
                f"{layers} layers of n units each have {layers} n^2 num_fast_weights, n from 1 to {most}: "
                f"not {num_fast_weights}"
            )
        chosen = self.leading(units)
        return SparseFastWeights(model, chosen.units_LU, torch.float16), chosen.rms_LUU.flatten()


def all_units(model: LanguageModel) -> SparseFastWeights:
    """The fast weights of all units of a model: of their gradients the statistics are made."""
    units_H = torch.arange(model.config.hidden_size, device=model.embedding.input.device)
    return SparseFastWeights(model, units_H.repeat(model.config.num_layers, 1))


def check_units(units_LU: Tensor, model: LanguageModel) -> None:
    """Raise ValueError unless these are units of a model's layers, as many of each, none twice."""
    layers, hidden = model.config.num_layers, model.config.hidden_size
    if units_LU.dtype != torch.int64 or units_LU.dim() != 2 or units_LU.numel() == 0:
        raise ValueError(f"units must be a matrix of int64, not {units_LU.dtype} {list(units_LU.shape)}")
    if len(units_LU) != layers:
        raise ValueError(f"units are of {len(units_LU)} layers, the model has {layers}")
    ordered = units_LU.sort(1).values
    if int(ordered.min()) < 0 or int(ordered.max()) >= hidden or not bool((ordered.diff() > 0).all()):
        raise ValueError(f"units must be places among {hidden}, no two of a layer the same")
