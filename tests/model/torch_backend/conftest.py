"""Shared by the tests of the torch backend: tiny models in torch, and gradients one segment at a time."""

import copy

import pytest
import torch

BOS, SEGMENT = 1, 4


def _gradients_by_hand(model, ids):
    """Of each segment's mean loss at all weights ``[P]``, by plain automatic differentiation."""
    model = copy.deepcopy(model).requires_grad_(True)
    state, last, gradients = model.initial_state(1), BOS, []
    for start in range(0, len(ids) - len(ids) % SEGMENT, SEGMENT):
        loss, state = 0.0, state.detach()
        for token in ids[start : start + SEGMENT]:
            features, state = model(torch.tensor([[last]]), state)
            loss, last = loss - model.log_probs(features)[0, 0, token] / SEGMENT, token
        parts = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        gradients.append(torch.cat([part.flatten() for part in parts]))
    return gradients


@pytest.fixture(scope="session")
def tiny_model(random_model):
    """Makes models of 11 tokens and a few hundred weights, as a checkpoint would load them."""

    def make(**changes):
        shape = {"dtype": torch.float32, "scale": 0.4, "mogrifier_rounds": 3, "mogrifier_rank": 2}
        return random_model(**{**shape, **changes}).eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def gradients_by_hand():
    return _gradients_by_hand


@pytest.fixture(scope="session")
def text():
    """Makes random tokens."""

    def make(length, *, seed=3, vocab_size=11):
        return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()

    return make
