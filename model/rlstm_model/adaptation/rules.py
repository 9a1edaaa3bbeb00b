"""The learning rule; both terms use the old delta.

    delta <- delta - eta g / (RMS + epsilon) - min(1, lambda RMS / mean(RMS)) * delta

(Krause et al. 2017; docs/mathematics.md §8.1; docs/adaptation.md §1.) ``sgd`` is the same without RMS.
Shape suffixes: N rows, P fast weights of a row.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.fast_weights import send

# Rows are done in parts whose passes over the fast weights stay in a core's cache: a third of the time.
_ELEMENTS_AT_ONCE = 1 << 19
# A norm over few rows may be taken in another order, to other last bits.
_TILE = 8


class Steps(NamedTuple):
    """What became of N rows' deltas.

    delta_NP     after the step, in the deltas' precision; a row whose step was not finite keeps its own
    taken        whether the row's step was finite
    norm_ratios  of each delta to the slow weights, by their norms
    scales       what the row was multiplied with to be cut back to the greatest norm; 1 where it was not
    gradient_norms  of what was learned from
    """

    delta_NP: Tensor
    taken: list[bool]
    norm_ratios: list[float]
    scales: list[float]
    gradient_norms: list[float]

    @classmethod
    def together(cls, parts: Sequence["Steps"]) -> "Steps":
        """Those of all rows, in their order."""
        deltas, *lists = zip(*parts, strict=True)
        return cls(torch.cat(deltas), *(list(chain.from_iterable(values)) for values in lists))

    def of(self, rows: slice) -> "Steps":
        """Those of some rows."""
        return Steps(
            self.delta_NP[rows],
            self.taken[rows],
            self.norm_ratios[rows],
            self.scales[rows],
            self.gradient_norms[rows],
        )


class LearningRule:
    """The rule for one calibration: what does not change from step to step is worked out once."""

    def __init__(self, config: AdaptationConfig, rms_P: Tensor, slow_norm: float) -> None:
        """``slow_norm`` is that of the loaded weights. Raises ValueError when the RMS is needed and zero."""
        self.config = config
        self._max_norm = config.max_norm_ratio * slow_norm
        self._slow_norm = slow_norm
        self._precision_P: Tensor | None = None
        self._shrink = rms_P.new_tensor(min(1.0, config.decay))
        if config.rule == "rms":
            mean = rms_P.double().mean().item()
            if not mean > 0:
                raise ValueError("the gradient statistics are all zero")
            self._precision_P = 1.0 / (rms_P + config.epsilon * mean)
            if config.decay:
                self._shrink = (rms_P / mean * config.decay).clamp_(max=1.0)

    @property
    def idle(self) -> bool:
        """Whether no step can ever change anything."""
        return self.config.rate == 0 and self.config.decay == 0

    def step(self, delta_NP: Tensor, gradient_NP: Tensor, rate_scales: Sequence[float]) -> Steps:
        """One step of every row, each with its own rate. The arguments are left as they are.

        Deltas may be kept in less precision than the gradients have, which is the one that is computed in.
        """
        rows = len(delta_NP) if delta_NP.is_cuda else _rows_at_once(delta_NP.shape[1])
        parts = [
            self._step(delta_NP[own], gradient_NP[own], rate_scales[own])
            for own in (slice(first, first + rows) for first in range(0, len(delta_NP), rows))
        ]
        return parts[0] if len(parts) == 1 else Steps.together(parts)

    def _step(self, delta_NP: Tensor, gradient_NP: Tensor, rate_scales: Sequence[float]) -> Steps:
        """The same for rows that are done at once."""
        # A factor beyond the dtype's range would raise; the largest within it ends as a step not taken.
        greatest = torch.finfo(gradient_NP.dtype).max
        rates = [min(self.config.rate * scale, greatest) for scale in rate_scales]
        moved_NP = self._moved(delta_NP.to(gradient_NP.dtype), gradient_NP, rates)
        norms_N = torch.linalg.vector_norm(moved_NP, dim=1)
        taken_N = norms_N.isfinite()
        beyond_N = (norms_N.double() > self._max_norm) & taken_N
        scales_N = torch.where(beyond_N, (self._max_norm / norms_N).clamp(max=1.0), 1.0)
        if _needed(scales_N != 1):
            moved_NP = moved_NP * scales_N.unsqueeze(1)
        if moved_NP.dtype != delta_NP.dtype:
            moved_NP = moved_NP.to(delta_NP.dtype)
            # No element is greater than the norm.
            if _needed(norms_N > torch.finfo(delta_NP.dtype).max):
                taken_N = taken_N & moved_NP.isfinite().all(1)
        if _needed(~taken_N):
            moved_NP = torch.where(taken_N.unsqueeze(1), moved_NP, delta_NP)
        of_gradient_N = torch.linalg.vector_norm(gradient_NP, dim=1)
        # One copy from the device for all of them.
        figures = torch.stack([each.double() for each in (taken_N, scales_N, norms_N, of_gradient_N)])
        taken, scales, norms, gradient_norms = figures.tolist()
        ratios = [min(norm, self._max_norm) / self._slow_norm if self._slow_norm else 0.0 for norm in norms]
        return Steps(moved_NP, [*map(bool, taken)], ratios, scales, gradient_norms)

    def _moved(self, delta_NP: Tensor, gradient_NP: Tensor, rates: Sequence[float]) -> Tensor:
        kept_NP = delta_NP
        if self.config.decay:
            kept_NP = torch.addcmul(delta_NP, delta_NP, self._shrink, value=-1)
        if len(rates) == 1:  # spares a pass over what may be all weights of a model
            if self._precision_P is None:
                return torch.sub(kept_NP, gradient_NP, alpha=rates[0])
            return torch.addcmul(kept_NP, gradient_NP, self._precision_P, value=-rates[0])
        rates_N1 = send(rates, delta_NP.dtype, delta_NP.device).unsqueeze(1)
        if self._precision_P is None:
            return torch.addcmul(kept_NP, gradient_NP, rates_N1, value=-1)
        return torch.addcmul(kept_NP, gradient_NP * rates_N1, self._precision_P, value=-1)


def _needed(flags_N: Tensor) -> bool:
    """Whether any flag is set. On a GPU always: to know would take a wait, to do what is not needed less."""
    return flags_N.is_cuda or bool(flags_N.any())


def _rows_at_once(size: int) -> int:
    return max(1, _ELEMENTS_AT_ONCE // (_TILE * max(1, size))) * _TILE
