"""A language model as others write it with torch.nn, its state dict by their names, and what it says."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn


class Original(nn.Module):
    """An embedding, LSTMs and a linear layer; ``widths`` are those of the embedding and of each LSTM."""

    def __init__(self, vocab_size, widths, *, tied=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Embedding(vocab_size, widths[0])
        self.rnns = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(widths))
        self.decoder = nn.Linear(widths[-1], vocab_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -0.4, 0.4)
        if tied:
            self.decoder.weight = self.encoder.weight
        self.double()

    @torch.no_grad()
    def log_probs(self, ids):
        """Natural log-probabilities ``[T, V]`` of what follows each of some ids, from a zero state."""
        x = self.encoder(torch.tensor(ids))[:, None]
        for rnn in self.rnns:
            x, _ = rnn(x)
        return torch.log_softmax(self.decoder(x)[:, 0], -1).numpy()

    def named(self, family):
        """The state dict in float32, as a family of models calls it."""
        return {_name(family, *name.split(".")): w.detach().float() for name, w in self.state_dict().items()}


def _name(family, module, *rest):
    if module == "rnns":
        layer, part = rest
        if family == "awd":
            raw = "_raw" if part.startswith("weight_hh") else ""
            return f"rnns.{layer}.module.{part}{raw}"
        module, rest = "rnn", [f"{part[:-1]}{layer}"]
    names = {"encoder": "input_embedding", "decoder": "output_linear"} if family == "icefall" else {}
    before = {"espnet": "lm.", "icefall": "module."}.get(family, "")
    return before + ".".join([names.get(module, module), *rest])


def numbers(count):
    """So many different words."""
    return [f"w{index}" for index in range(count)]


def distributions(model, text):
    """The model's whole distributions of each token of a text, ``[T, V]``."""
    scores = model.score(text, top=model.vocab.size).tokens
    order = np.argsort(scores.top_ids, axis=1)
    return np.take_along_axis(scores.top_logprobs, order, 1)
