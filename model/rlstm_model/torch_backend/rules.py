"""The learning rule; both terms use the old delta.

    delta <- delta - eta g / (RMS + epsilon) - min(1, lambda RMS / mean(RMS)) * delta

(Krause et al. 2017; docs/adaptation.md §1.) ``sgd`` is the same without RMS.
Shape suffixes: N rows, P fast weights of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlstm_model.native import Step
from rlstm_model.native.packed import Rule


class LearningRule:
    """The rule of one calibration, on a device."""

    def __init__(self, rule: Rule, device: torch.device) -> None:
        self._max_norm = rule.max_norm
        precision = 1.0 if rule.precision_P is None else rule.precision_P
        self._precision_P, self._shrink_P = (
            torch.as_tensor(part, dtype=torch.float32, device=device) for part in (precision, rule.shrink_P)
        )

    def step(self, delta_NP: Tensor, gradient_NP: Tensor, rates: Sequence[float]) -> list[Step]:
        """One step of every row, each with its own rate; one whose step was not finite keeps its delta.

        Deltas may be kept in less precision than the gradients have, which is the one that is computed in.
        """
        old_NP, rates_N1 = delta_NP.to(gradient_NP.dtype), _sent(rates, gradient_NP).unsqueeze(1)
        moved_NP = torch.addcmul(old_NP, old_NP, self._shrink_P, value=-1)
        moved_NP = torch.addcmul(moved_NP, gradient_NP * rates_N1, self._precision_P, value=-1)
        norms_N, of_gradient_N = (torch.linalg.vector_norm(part, dim=1) for part in (moved_NP, gradient_NP))
        beyond_N = (norms_N.double() > self._max_norm) & norms_N.isfinite()
        scales_N = torch.where(beyond_N, (self._max_norm / norms_N).clamp(max=1.0), 1.0)
        cut_NP = (moved_NP * scales_N.unsqueeze(1)).to(delta_NP.dtype)
        taken_N = norms_N.isfinite() & cut_NP.isfinite().all(1)
        after_NP = torch.where(taken_N.unsqueeze(1), cut_NP, delta_NP).cpu().numpy()
        figures = torch.stack([part.double() for part in (taken_N, scales_N, norms_N, of_gradient_N)])
        return [
            Step(own_P, bool(taken), scale, norm, of_gradient)
            for own_P, (taken, scale, norm, of_gradient) in zip(after_NP, figures.t().tolist(), strict=True)
        ]


def _sent(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers on a device: a copy from ordinary memory waits for all before it, one from pinned does not."""
    pinned = torch.tensor(values, dtype=like.dtype, pin_memory=like.is_cuda)
    return pinned.to(like.device, non_blocking=True)
