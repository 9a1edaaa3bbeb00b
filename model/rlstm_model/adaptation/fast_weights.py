"""Fast weights: what a session may change, as one flat vector beside the shared slow weights.

Shape suffixes: P all weights of the model.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from rlstm_model.language_model import LanguageModel


class FullFastWeights:
    """The kind ``full``: a delta for every weight, theta = theta_0 + delta.

    A delta is an immutable ``[P]`` vector in the precision of the slow weights, at least float32 (half
    precision would swallow the steps); None is the zero delta and costs nothing. To compute with a delta, it
    is laid over the slow weights in a workspace, a second model. The workspace holds one delta at a time and
    belongs to one thread.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Raises ValueError when the model's weights have less than single precision."""
        named = [(name, weight.detach()) for name, weight in model.named_parameters()]
        self.slow_model = model
        self.names = [name for name, _ in named]
        self.shapes = [weight.shape for _, weight in named]
        self.size = sum(weight.numel() for _, weight in named)
        self._slow = [weight for _, weight in named]
        if self._slow[0].dtype not in (torch.float32, torch.float64):
            raise ValueError(f"fast weights need a model in float32 or float64, not {self._slow[0].dtype}")
        self.slow_norm = sum(float(weight.double().square().sum()) for weight in self._slow) ** 0.5
        # Where every gradient is written, as a vector and by weight: the next one overwrites it.
        self.gradient_P = self.zero()
        self.gradients = self.split(self.gradient_P)
        # A copy, not windows into one vector: odd offsets would change the last bits of every product.
        self._workspace = copy.deepcopy(model).requires_grad_(True)
        self._laid: Tensor | None = None

    def zero(self) -> Tensor:
        """The zero delta, ``[P]``, to be replaced but never written."""
        return self._slow[0].new_zeros(self.size)

    def reading_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The model with ``delta_P`` applied, for inference; valid until the next call."""
        return self.slow_model if delta_P is None else self._lay(delta_P)

    def learning_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The same with parameters that take gradients; valid until the next call."""
        return self._lay(delta_P)

    def split(self, flat_P: Tensor) -> dict[str, Tensor]:
        """Windows into a flat vector, by weight name."""
        parts = torch.split(flat_P, [shape.numel() for shape in self.shapes])
        return {n: part.view(s) for n, part, s in zip(self.names, parts, self.shapes, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat vector from tensors by weight name. Raises KeyError or ValueError when they do not fit."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if tensors[name].shape != shape:
                raise ValueError(f"{name} has shape {list(tensors[name].shape)}, not {list(shape)}")
        flat = torch.cat([tensors[name].flatten() for name in self.names])
        return flat.to(self._slow[0])

    @torch.no_grad()
    def _lay(self, delta_P: Tensor | None) -> LanguageModel:
        weights = list(self._workspace.parameters())
        if delta_P is None and self._laid is not None:
            for weight, slow in zip(weights, self._slow, strict=True):
                weight.copy_(slow)
        elif delta_P is not None and delta_P is not self._laid:
            for weight, slow, part in zip(weights, self._slow, self.split(delta_P).values(), strict=True):
                torch.add(slow, part, out=weight)
        self._laid = delta_P
        return self._workspace
