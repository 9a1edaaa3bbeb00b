"""The kind ``full``: a delta for every weight, theta = theta_0 + delta.

The literature's dynamic evaluation. Rows cannot share a product, so they are read one after the other.
A model with a large vocabulary is nearly all embedding, and a step nearly all passes over vectors of its
size. So the gradient is written where it will be read, once: the softmax is differentiated by hand into its
place in the flat vector, and what the embedding gets from being read is added to the rows that were.
Shape suffixes: S segment tokens, N rows, V vocabulary, H hidden units, P all weights of the model.
"""

import copy
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlstm_model.adaptation.config import Reduction
from rlstm_model.network.language_model import Embedding, LanguageModel
from rlstm_model.network.state import State
from rlstm_model.torch_backend.fast_weights import Learned, check_precision, slow_norm, softmax_gradient


class FullFastWeights:
    """See :class:`rlstm_model.torch_backend.fast_weights.FastWeights`.

    A delta is an immutable ``[P]`` vector in the precision of the slow weights; None is the zero delta and
    costs nothing to read with. To compute with a delta, it is laid over the slow weights in a workspace,
    which holds one delta at a time; each thread has its own.
    """

    tile = 1
    at_once = 1

    def __init__(self, model: LanguageModel) -> None:
        """Raises ValueError when the model's weights have less than single precision."""
        check_precision(model)
        named = [(name, weight.detach()) for name, weight in model.named_parameters()]
        self.model = model
        self.names = [name for name, _ in named]
        self.shapes = [weight.shape for _, weight in named]
        self.size = sum(weight.numel() for _, weight in named)
        self.slow_norm = slow_norm(model)
        self._slow = [weight for _, weight in named]
        self._threads = threading.local()

    def computed(self, rows: int) -> int:
        """See :class:`FastWeights`."""
        return rows

    def zero(self, rows: int) -> Tensor:
        """See :class:`FastWeights`."""
        return self._slow[0].new_zeros(rows, self.size)

    @torch.no_grad()
    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`."""
        logits, states = [], []
        for row in range(ids_TN.shape[1]):
            own = slice(row, row + 1)
            model = self.reading_model(None if delta_NP is None else delta_NP[row])
            features_T1H, after = model(ids_TN[:, own], state.rows(own))
            logits.append(model.logits(features_T1H, temperature))
            states.append(after)
        return torch.cat(logits, 1), _joined(states)

    @torch.no_grad()
    def step(
        self, delta_NP: Tensor | None, ids_N: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`."""
        if delta_NP is None or len(delta_NP) == 1:
            model = self.reading_model(None if delta_NP is None else delta_NP[0])
            features_NH, after = model.step(ids_N, state)
            return model.logits(features_NH, temperature), after
        logits_1NV, after = self.read(delta_NP, ids_N.unsqueeze(0), state, temperature=temperature)
        return logits_1NV[0], after

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
        """See :class:`FastWeights`."""
        rows = ids_TN.shape[1]
        own_1P = self._workspace.gradient_1P
        gradient_NP = own_1P if rows == 1 else own_1P.new_empty(rows, self.size)
        logits, states = [], []
        for row in range(rows):
            own = slice(row, row + 1)
            model = self.learning_model(None if delta_NP is None else delta_NP[row])
            logits_SV, after = self._learn_row(
                model, ids_TN[:, row], targets_TN[:, row], weights_TN[:, row], state.rows(own), temperature
            )
            if rows > 1:
                gradient_NP[row] = own_1P[0]
            logits.append(logits_SV.unsqueeze(1))
            states.append(after)
        return Learned(torch.cat(logits, 1), _joined(states), gradient_NP)

    def _learn_row(
        self,
        model: LanguageModel,
        inputs_S: Tensor,
        targets_S: Tensor,
        weights_S: Tensor,
        state: State,
        temperature: float,
    ) -> tuple[Tensor, State]:
        """Logits and the state after one row's segment; its gradient goes into the workspace."""
        parts = self._workspace.gradients
        read_S1H = model.embedding.embed(inputs_S)[:, None].requires_grad_(True)
        with torch.enable_grad():
            features_S1H, after = model.read(read_S1H, state.detach())
        backward = _softmax_backward if model.embedding.mixture is None else _mixture_backward
        logits_SV, d_features_SH = backward(
            model.embedding, features_S1H.detach()[:, 0], targets_S, weights_S, temperature, parts
        )
        names, weights = zip(*model.stack.named_parameters(prefix="stack"), strict=True)
        d_read_S1H, *gradients = torch.autograd.grad(
            features_S1H, (read_S1H, *weights), d_features_SH[:, None]
        )
        for name, gradient in zip(names, gradients, strict=True):
            parts[name].copy_(gradient)
        if model.embedding.output is not None:
            parts["embedding.input"].zero_()
        parts["embedding.input"].index_add_(0, inputs_S, d_read_S1H[:, 0])
        return logits_SV, after.detach()

    def reading_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The model with ``delta_P`` applied, for inference; valid until the thread's next call."""
        return self.model if delta_P is None else self._lay(delta_P)

    def learning_model(self, delta_P: Tensor | None) -> LanguageModel:
        """The same with parameters that take gradients; valid until the thread's next call."""
        return self._lay(delta_P)

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """Windows by weight name into the gradient that the thread computed last."""
        return self._workspace.gradients

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

    @property
    def _workspace(self) -> "_Workspace":
        """The thread's own, made when it first computes with a delta."""
        own: _Workspace | None = getattr(self._threads, "workspace", None)
        if own is None:
            gradient_1P = self.zero(1)
            own = _Workspace(self.model, gradient_1P, self.split(gradient_1P[0]))
            self._threads.workspace = own
        return own

    @torch.no_grad()
    def _lay(self, delta_P: Tensor | None) -> LanguageModel:
        own = self._workspace
        weights = list(own.model.parameters())
        if delta_P is None and own.laid is not None:
            for weight, slow in zip(weights, self._slow, strict=True):
                weight.copy_(slow)
        elif delta_P is not None and not own.holds(delta_P):
            for weight, slow, part in zip(weights, self._slow, self.split(delta_P).values(), strict=True):
                torch.add(slow, part, out=weight)
        own.laid = delta_P
        return own.model


class _Workspace:
    """What a thread computes with.

    model        a copy of the model, with a delta laid over its weights, not windows into one vector: odd
                 offsets would change the last bits of every product
    laid         that delta; None is zero
    gradient_1P  where every gradient is written, by weight in ``gradients``: the next one overwrites it
    """

    def __init__(self, model: LanguageModel, gradient_1P: Tensor, gradients: Mapping[str, Tensor]) -> None:
        self.model = copy.deepcopy(model).requires_grad_(True)
        self.laid: Tensor | None = None
        self.gradient_1P = gradient_1P
        self.gradients = gradients

    def holds(self, delta_P: Tensor) -> bool:
        """Whether it is the same memory, which is kept from being another's: each caller has its own view."""
        return self.laid is not None and delta_P.data_ptr() == self.laid.data_ptr()


def _joined(states: list[State]) -> State:
    h, c = (torch.cat(parts, 1) for parts in zip(*states, strict=True))
    return State(h, c)


def _softmax_backward(
    embedding: Embedding,
    features_SH: Tensor,
    targets_S: Tensor,
    weights_S: Tensor,
    temperature: float,
    parts: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Logits, and the weighted loss's gradient at the features; the output layer's go into ``parts``."""
    logits_SV = embedding.logits(features_SH, temperature)
    d_logits_SV = softmax_gradient(logits_SV, targets_S)
    d_logits_SV *= weights_S[:, None] * temperature
    matrix = "embedding.input" if embedding.output is None else "embedding.output"
    torch.mm(d_logits_SV.t(), features_SH, out=parts[matrix])
    torch.sum(d_logits_SV, 0, out=parts["embedding.bias"])
    return logits_SV, d_logits_SV @ embedding.output_matrix


def _mixture_backward(
    embedding: Embedding,
    features_SH: Tensor,
    targets_S: Tensor,
    weights_S: Tensor,
    temperature: float,
    parts: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """The same for a mixture of softmaxes, by automatic differentiation."""
    named = {f"embedding.{name}": weight for name, weight in embedding.named_parameters()}
    if embedding.output is not None:
        del named["embedding.input"]
    features_SH = features_SH.detach().requires_grad_(True)
    with torch.enable_grad():
        log_probs_SV = embedding.logits(features_SH, temperature)
        losses_S = torch.nn.functional.cross_entropy(log_probs_SV, targets_S, reduction="none")
        loss = (losses_S * weights_S).sum()
    d_features_SH, *gradients = torch.autograd.grad(loss, (features_SH, *named.values()))
    for name, gradient in zip(named, gradients, strict=True):
        parts[name].copy_(gradient)
    return log_probs_SV.detach(), d_features_SH


def measure_rms(
    model: LanguageModel, texts: Sequence[Sequence[int]], *, segment: int, reduction: Reduction, bos_id: int
) -> tuple[dict[str, Tensor], int]:
    """RMS over the gradients of single segments at the slow weights, by weight name, and how many there were.

    Each text is read from its beginning with carried state, as a session would be; its last tokens that
    fill no segment are left. Raises ValueError when no text fills one.
    """
    fast_weights = FullFastWeights(model)
    squares_P = fast_weights.zero(1)[0].double()
    weights_S1 = model.embedding.input.new_full((segment, 1), 1 / segment if reduction == "mean" else 1.0)
    count = 0
    for ids in texts:
        state, last = model.initial_state(1), bos_id
        for start in range(0, len(ids) - segment + 1, segment):
            read = torch.tensor([last, *ids[start : start + segment]], device=weights_S1.device)[:, None]
            done = fast_weights.learn(None, read[:-1], read[1:], weights_S1, state)
            gradient_P = done.gradient_NP[0].double()
            squares_P.addcmul_(gradient_P, gradient_P)
            state, last, count = done.state, int(read[-1]), count + 1
    if count == 0:
        raise ValueError(f"no text fills a segment of {segment} tokens")
    return fast_weights.split((squares_P / count).sqrt().to(model.embedding.input)), count
