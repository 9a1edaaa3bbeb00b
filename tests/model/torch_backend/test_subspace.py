"""Many rows with cores of their own against one plain model a row, by automatic differentiation."""

import dataclasses

import pytest
import torch

from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"stacking": "skip"},
    {"stacking": "plain"},
    {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 2, "mogrifier_rank": 0},
    {"mogrifier_rounds": 0},
]
ROWS, TIME = 3, 5


def bases_of(model, names, rank=2, seed=4):
    """Random orthonormal bases of some matrices; of ``input`` and ``down`` with unequal ranks."""
    generator = torch.Generator().manual_seed(seed)
    weights = dict(model.named_parameters())
    bases = {}
    for name in names:
        *rounds, rows, columns = weights[name].shape
        left = torch.linalg.qr(torch.randn(*rounds, rows, rank, generator=generator, dtype=torch.float64))[0]
        wide = rank if name.endswith(("h", "up")) else min(columns, rank + 1)
        right = torch.linalg.qr(
            torch.randn(*rounds, columns, wide, generator=generator, dtype=torch.float64)
        )[0]
        bases[name] = Basis(left, right.mT.contiguous())
    return bases


def everything(model):
    """A subspace of all matrices, and all biases, of a model."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.numel()}
    matrices = [name for name in weights if not name.endswith("bias")]
    return SubspaceFastWeights(model, bases_of(model, matrices), [n for n in weights if n not in matrices])


def dense(subspace, delta_P):
    """A plain model of one row, with the cores expanded into its weights."""
    model = subspace.model
    parts = {name: part[0] for name, part in subspace.split(delta_P[None]).items()}
    twin = type(model)(model.config).double()
    weights = model.state_dict()
    for name, part in parts.items():
        if name in subspace.bases:
            part = subspace.bases[name].left @ part @ subspace.bases[name].right
        weights[name] = weights[name] + part
    twin.load_state_dict(weights)
    return twin


@pytest.fixture
def case(tiny_model, draw_lesson):
    """Makes fast weights in float64, deltas, a state in mid-text, inputs and targets."""

    def make(chosen=everything, **shape):
        subspace = chosen(tiny_model(dtype=torch.float64, **shape))
        return subspace, *draw_lesson(subspace, rows=ROWS, time=TIME)

    return make


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_read_as_a_model_each_would(case, shape):
    """Logits and states of every row are those of a model with the expanded weights, read token by token."""
    subspace, delta, state, inputs, _ = case(**shape)
    rows = subspace.rows(delta)
    features, after = rows.read(inputs, state)
    logits = rows.logits(features, 0.9)
    for row in range(ROWS):
        twin, own = dense(subspace, delta[row]), state.rows(slice(row, row + 1))
        for t in range(TIME):
            expected, own = twin.step(inputs[t, row : row + 1], own)
            torch.testing.assert_close(logits[t, row], twin.logits(expected, 0.9)[0], atol=1e-11, rtol=0)
        torch.testing.assert_close(after.rows(slice(row, row + 1)), own, atol=1e-11, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_equal_automatic_differentiation(case, shape):
    """For every row: the gradient of its own loss at its own cores and biases, and of no other row's."""
    subspace, delta, state, inputs, targets = case(**shape)
    rows = subspace.rows(delta)
    window = rows.unroll(inputs, state)
    logits = rows.logits(window.features)
    d_logits = torch.softmax(logits, -1) - torch.nn.functional.one_hot(targets, 11)
    found = torch.zeros_like(delta)
    subspace.gradient(window.backward(d_logits), found)
    for row in range(ROWS):
        twin, own = dense(subspace, delta[row]).requires_grad_(True), state.rows(slice(row, row + 1))
        loss = torch.zeros((), dtype=torch.float64)
        for t in range(TIME):
            features, own = twin.step(inputs[t, row : row + 1], own)
            loss = loss - twin.log_probs(features)[0, targets[t, row]]
        loss.backward()
        expected = project(subspace, twin)
        torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=0)


def project(subspace, twin):
    """A plain model's gradients in the axes of a subspace, as one flat vector."""
    gradients = {name: weight.grad for name, weight in twin.named_parameters()}
    flat = []
    for name in subspace.shapes:
        gradient = gradients[name]
        if name in subspace.bases:
            gradient = subspace.bases[name].left.mT @ gradient @ subspace.bases[name].right.mT
        flat.append(gradient.flatten())
    return torch.cat(flat)


def test_bases_of_another_model_are_refused(case):
    """A basis must fit a matrix of the model, and a bias be one."""
    subspace, *_ = case()
    wrong = {"stack.layers.0.x": subspace.bases["stack.layers.0.c"]}
    with pytest.raises(ValueError, match=r"stack\.layers\.0\.x"):
        SubspaceFastWeights(subspace.model, wrong, [])
    with pytest.raises(ValueError, match="no matrix nonsense"):
        SubspaceFastWeights(subspace.model, {"nonsense": subspace.bases["stack.layers.0.c"]}, [])
    with pytest.raises(ValueError, match=r"no bias embedding\.input"):
        SubspaceFastWeights(subspace.model, {}, ["embedding.input"])


def test_a_mixture_of_softmaxes_is_refused(tiny_model):
    """Rows can add nothing to one, and say so."""
    model = tiny_model(dtype=torch.float64, softmax_components=2)
    subspace = SubspaceFastWeights(model, {}, ["embedding.bias"])
    with pytest.raises(ValueError, match="mixture of softmaxes"):
        subspace.rows(torch.zeros(1, subspace.size, dtype=torch.float64))


@pytest.mark.parametrize(
    "places",
    [
        torch.tensor([0, 1, 1]),
        torch.tensor([3, 2]),
        torch.tensor([-1, 2]),
        torch.tensor([0, 10**6]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([[0, 1]]),
        torch.tensor(3),
        torch.tensor([0.0, 1.0]),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([True, False]),
    ],
    ids=["twice", "falling", "negative", "beyond", "none", "matrix", "number", "floats", "int32", "mask"],
)
def test_wrong_places_are_refused(case, places):
    """Places must be ascending, each once, and among the elements that there are."""
    subspace, *_ = case()
    with pytest.raises(ValueError, match="chosen_P must be"):
        dataclasses.replace(subspace, chosen_P=places)
