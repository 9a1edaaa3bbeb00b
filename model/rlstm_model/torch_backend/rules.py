"""The learning rule; both terms use the old delta.

    delta <- delta - eta g / (RMS + epsilon) - min(1, lambda RMS / mean(RMS)) * delta

(Krause et al. 2017; mathematics: §8.1; adaptation: §1.) ``sgd`` is the same without RMS.
Shape suffixes: N rows, P fast weights of a row.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.native.packed import Rule
from rlstm_model.torch_backend.fast_weights import send

# Rows are done in parts whose passes over the fast weights stay in a core's cache: a third of the time.
_ELEMENTS_AT_ONCE = 1 << 19
# A norm over few rows may be taken in another order, to other last bits.
_TILE = 8


class Steps(NamedTuple):
    """What became of N rows' deltas.

    delta_NP     after the step, in the deltas' precision; a row whose step was not finite keeps its own
    taken        whether the row's step was finite
    norms        of each delta before it was cut back
    scales       what the row was multiplied with to be cut back to the greatest norm; 1 where it was not
    gradient_norms  of what was learned from
    """

    delta_NP: Tensor
    taken: list[bool]
    norms: list[float]
    scales: list[float]
    gradient_norms: list[float]

    def figures(self) -> Iterator[tuple[bool, float, float, float]]:
        """For each row whether its step was taken, its scale, its norm, and the norm of its gradient."""
        return zip(self.taken, self.scales, self.norms, self.gradient_norms, strict=True)

    @classmethod
    def together(cls, parts: Sequence["Steps"]) -> "Steps":
        """Those of all rows, in their order."""
        deltas, *lists = zip(*parts, strict=True)
        return cls(torch.cat(deltas), *(list(chain.from_iterable(values)) for values in lists))


class LearningRule:
    """The rule of one calibration, on a device."""

    def __init__(self, rule: Rule, device: torch.device) -> None:
        self._max_norm = rule.max_norm
        self._precision_P = (
            None if rule.precision_P is None else torch.from_numpy(rule.precision_P).to(device)
        )
        self._shrink = torch.as_tensor(rule.shrink_P, dtype=torch.float32, device=device)

    def step(
        self,
        delta_NP: Tensor,
        gradient_NP: Tensor,
        rates: Sequence[float],
    ) -> Steps:
        """One step of every row, each with its own rate. The arguments are left as they are.

        Deltas may be kept in less precision than the gradients have, which is the one that is computed in.
        """
        rows = len(delta_NP) if delta_NP.is_cuda else _rows_at_once(delta_NP.shape[1])
        parts = [
            self._step(delta_NP[own], gradient_NP[own], rates[own])
            for own in (slice(first, first + rows) for first in range(0, len(delta_NP), rows))
        ]
        return parts[0] if len(parts) == 1 else Steps.together(parts)

    def _step(
        self,
        delta_NP: Tensor,
        gradient_NP: Tensor,
        rates: Sequence[float],
    ) -> Steps:
        """The same for rows that are done at once."""
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
        taken, scales, norms, gradient_norms = _fetch(taken_N, scales_N, norms_N, of_gradient_N)
        return Steps(moved_NP, [*map(bool, taken)], norms, scales, gradient_norms)

    def _moved(self, delta_NP: Tensor, gradient_NP: Tensor, rates: Sequence[float]) -> Tensor:
        kept_NP = torch.addcmul(delta_NP, delta_NP, self._shrink, value=-1)
        if len(rates) == 1:  # spares a pass over what may be all weights of a model
            if self._precision_P is None:
                return torch.sub(kept_NP, gradient_NP, alpha=rates[0])
            return torch.addcmul(kept_NP, gradient_NP, self._precision_P, value=-rates[0])
        rates_N1 = send(rates, delta_NP.dtype, delta_NP.device).unsqueeze(1)
        if self._precision_P is None:
            return torch.addcmul(kept_NP, gradient_NP, rates_N1, value=-1)
        return torch.addcmul(kept_NP, gradient_NP * rates_N1, self._precision_P, value=-1)


def _fetch(*figures_N: Tensor) -> list[list[float]]:
    """The values of vectors of one length: one copy for all of them."""
    return torch.stack([figure_N.double() for figure_N in figures_N]).tolist()


def _needed(flags_N: Tensor) -> bool:
    """Whether any flag is set. On a GPU always: to know would take a wait, to do what is not needed less."""
    return flags_N.is_cuda or bool(flags_N.any())


def _rows_at_once(size: int) -> int:
    return max(1, _ELEMENTS_AT_ONCE // (_TILE * max(1, size))) * _TILE
