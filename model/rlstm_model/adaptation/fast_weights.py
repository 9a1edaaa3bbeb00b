"""Fast weights: what a session may change, as one flat vector beside the shared slow weights.

Shape suffixes: P all weights of the model.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlstm_model.language_model import LanguageModel


class FullFastWeights:
    """The kind ``full``: a delta for every weight, theta = theta_0 + delta.

    A delta is an immutable ``[P]`` float32 vector; None is the zero delta and costs nothing. To compute
    with a delta, it is laid over the slow weights in a workspace: a model whose parameters are windows
    into one flat vector. The workspace holds one delta at a time and belongs to one thread.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.slow_model = model
        named = [(name, weight.detach()) for name, weight in model.named_parameters()]
        self.names = [name for name, _ in named]
        self.shapes = [weight.shape for _, weight in named]
        self._slow_P = torch.cat([weight.flatten() for _, weight in named])
        self.slow_norm = float(torch.linalg.vector_norm(self._slow_P.double()))
        self._theta_P = self._slow_P.clone()
        self._gradient_P = torch.empty_like(self._slow_P)
        self._workspace = _windows_model(model, self.split(self._theta_P))
        self._laid: Tensor | None = None

    @property
    def size(self) -> int:
        """P."""
        return self._slow_P.numel()

    def zero(self) -> Tensor:
        """The zero delta, ``[P]``, to be replaced but never written."""
        return torch.zeros_like(self._slow_P)

    def reading_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The model with ``delta_P`` applied, for inference; valid until the next call."""
        return self.slow_model if delta_P is None else self._lay(delta_P)

    def learning_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The same with parameters that take gradients; valid until the next call."""
        return self._lay(delta_P)

    def flat_gradient(self, loss: Tensor) -> Tensor:
        """Gradient ``[P]``, with respect to the delta, of a loss computed with :meth:`learning_model`.

        The vector is the workspace's own: it is overwritten by the next call.
        """
        gradients = torch.autograd.grad(loss, list(self._workspace.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients], out=self._gradient_P)

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
        return flat.to(self._slow_P)

    @torch.no_grad()
    def _lay(self, delta_P: Tensor | None) -> LanguageModel:
        if delta_P is None:
            self._theta_P.copy_(self._slow_P)
        elif delta_P is not self._laid:
            torch.add(self._slow_P, delta_P, out=self._theta_P)
        self._laid = delta_P
        return self._workspace


def _windows_model(model: LanguageModel, windows: Mapping[str, Tensor]) -> LanguageModel:
    """A model of the same shape whose parameters are ``windows``: it owns no memory."""
    with torch.device("meta"):
        twin = LanguageModel(model.config)
    for name, window in windows.items():
        owner_name, _, leaf = name.rpartition(".")
        setattr(twin.get_submodule(owner_name), leaf, nn.Parameter(window))
    return twin
