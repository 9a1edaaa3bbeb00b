"""Shared by the tests of the torch backend: tiny models in torch, and gradients one segment at a time."""

import copy

import pytest
import torch

from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

BOS, SEGMENT = 1, 4


def _subspace(model, rank):
    """Cores of all matrices of a model between random axes, and all biases."""
    generator = torch.Generator().manual_seed(4)
    bases, biases = {}, []
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            biases.append(name)
        elif weight.numel():
            *rounds, rows, columns = weight.shape
            left, right = (
                torch.linalg.qr(torch.randn(*rounds, side, min(side, rank), generator=generator))[0].to(
                    weight
                )
                for side in (rows, columns)
            )
            bases[name] = Basis(left, right.mT.contiguous())
    return SubspaceFastWeights(model, bases, biases)


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
        gradients.append(_flat(parts))
    return gradients


def _flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.fixture(scope="session")
def tiny_model(random_model):
    """Makes models of 11 tokens and a few hundred weights, as a checkpoint would load them."""

    def make(**changes):
        shape = {"dtype": torch.float32, "scale": 0.4, "mogrifier_rounds": 3, "mogrifier_rank": 2}
        return random_model(**{**shape, **changes}).eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def wide_model(tiny_model):
    """A model wide enough that a row's last bits depend on how many rows a product has."""
    return tiny_model(hidden_size=48, vocab_size=40, scale=0.15)


@pytest.fixture(scope="session")
def subspace():
    """Makes a random subspace of a model, of a rank."""
    return _subspace


@pytest.fixture(scope="session")
def gradients_by_hand():
    return _gradients_by_hand


@pytest.fixture(scope="session")
def flat():
    return _flat


@pytest.fixture(scope="session")
def text():
    """Makes random tokens."""

    def make(length, *, seed=3, vocab_size=11):
        return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()

    return make
