"""A session as one would write it in torch: token by token, automatic differentiation, the rule by weight."""

import copy

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear

from benchmarks.cases import random_ids
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.mogrifier import MogrifierWeights
from rlstm_model.network.state import State
from rlstm_model.network.window import LayerWeights


class EagerSession:
    """Its model is its own, whose weights follow the text."""

    def __init__(self, model: LanguageModel, full: Calibration, ids: Tensor | None = None) -> None:
        """``ids`` ``[S + 1]`` is what is read over and over, each token predicting the next; else random."""
        rule, segment = full.config, full.config.segment
        device = model.embedding.input.device
        if ids is None:
            ids = torch.tensor(random_ids(model.config.vocab_size, 1, segment + 1)[0], device=device)
        self.model = copy.deepcopy(model).requires_grad_(True)
        self._read, self._targets = ids[:-1, None], ids[1:]
        self._state = model.initial_state(1)
        self._rate = rule.rate
        named = [weight for weight in self.model.parameters() if weight.numel()]
        self._weights, self._loaded = named, [weight.detach().clone() for weight in named]
        rms_P = torch.from_numpy(full.rms_P).to(self._loaded[0])
        parts = torch.split(rms_P, [weight.numel() for weight in named])
        mean = float(rms_P.double().mean())
        rms = [part.view_as(weight) for part, weight in zip(parts, named, strict=True)]
        self._scales = [part + rule.epsilon * mean for part in rms]
        self._pulls = [(rule.decay / mean * part).clamp(max=1.0) for part in rms]

    def __call__(self) -> int:
        """A segment."""
        state, features = self._state, []
        for ids_1 in self._read:
            feature, state = step(self.model, ids_1, state)
            features.append(feature)
        loss = functional.cross_entropy(self.model.logits(torch.cat(features)), self._targets)
        gradients = torch.autograd.grad(loss, self._weights)
        self._state = state.detach()
        with torch.no_grad():
            columns = (self._weights, self._loaded, gradients, self._scales, self._pulls)
            for weight, loaded, gradient, scale, pull in zip(*columns, strict=True):
                weight.sub_(self._rate * gradient / scale + pull * (weight - loaded))
        return len(self._targets)


def step(model: LanguageModel, ids_B: Tensor, state: State) -> tuple[Tensor, State]:
    """Read one token a row: features ``[B, H]`` and the state, by plain operations that keep nothing."""
    stack, total, states = model.stack, None, []
    source, capped = model.embedding.embed(ids_B), model.config.cap_input_gate
    for layer, (h, c) in zip(stack.weights, state.layers(stack.widths), strict=True):
        h, c = _layer(layer, source, h, c, capped=capped)
        states.append((h, c))
        source, total = stack.join(total, h)
    assert total is not None
    return total, State.of(states)


def _layer(
    weights: LayerWeights, x_BH: Tensor, h_BH: Tensor, c_BH: Tensor, *, capped: bool
) -> tuple[Tensor, Tensor]:
    x_BH, h_BH = _mogrify(weights.mogrifier, x_BH, h_BH)
    x, h, u, c, bias = weights.cell
    n = h_BH.shape[1]
    assert isinstance(x, Tensor)
    assert isinstance(h, Tensor)
    if not isinstance(u, Tensor) or not isinstance(c, Tensor):
        i, j, f, o = (linear(h_BH, h, bias) + linear(x_BH, x)).chunk(4, 1)
        c_BH = _new_c(i.sigmoid(), j.tanh(), f.sigmoid(), c_BH, capped=capped)
        return o.sigmoid() * c_BH.tanh(), c_BH
    from_h = linear(h_BH, h, bias[: 3 * n])
    i, j = (from_h[:, : 2 * n] + linear(x_BH, x)).chunk(2, 1)
    i, j = i.sigmoid(), j.tanh()
    f = torch.sigmoid(from_h[:, 2 * n :] + linear(i * j, u))
    c_BH = _new_c(i, j, f, c_BH, capped=capped)
    return torch.sigmoid(linear(c_BH, c, bias[3 * n :])) * c_BH.tanh(), c_BH


def _mogrify(weights: MogrifierWeights, x_BH: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor]:
    for k, (up, down, bias) in enumerate(weights.rounds()):
        source, gated = (h_BH, x_BH) if k % 2 == 0 else (x_BH, h_BH)
        assert isinstance(up, Tensor)
        low = linear(source, down) if isinstance(down, Tensor) else source
        gated = 2 * torch.sigmoid(linear(low, up, bias)) * gated
        x_BH, h_BH = (gated, h_BH) if k % 2 == 0 else (x_BH, gated)
    return x_BH, h_BH


def _new_c(i: Tensor, j: Tensor, f: Tensor, c_BH: Tensor, *, capped: bool) -> Tensor:
    written = torch.minimum(i, 1 - f) if capped else i
    return torch.addcmul(f * c_BH, written, j)
