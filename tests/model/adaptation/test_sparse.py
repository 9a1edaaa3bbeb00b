"""Rows whose units add to each other, against one plain model a row, by automatic differentiation."""

import pytest
import torch

from rlstm_model.adaptation.sparse import SparseFastWeights, SparseStatistics, all_units
from rlstm_model.one_token import read_token
from rlstm_model.network.stack import Stack
from rlstm_model.network.state import State

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"stacking": "skip"},
    {"stacking": "plain", "num_layers": 3},
    {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 2, "mogrifier_rank": 0},
    {"mogrifier_rounds": 0, "num_layers": 1},
]
ROWS, TIME, TEMPERATURE = 3, 5, 0.9
UNITS = torch.tensor([[3, 0, 2], [1, 4, 0], [0, 1, 2]])


def by_hand(model, units_LU, matrices_LUU, ids_T, state):
    """Logits of one row, token by token, h + M h in the place of h; and the state after them."""
    logits, hs, cs = [], list(state.h.unbind()), list(state.c.unbind())
    for token in ids_T:
        source, total = model.embedding.embed(token[None]), None
        for layer, (units, matrix) in enumerate(zip(units_LU, matrices_LUU, strict=True)):
            capped = model.stack.layers[layer].cell.capped
            h, c = read_token(model.stack.layer(layer), source, hs[layer], cs[layer], capped=capped)
            whole = torch.zeros(h.shape[1], h.shape[1], dtype=h.dtype)
            whole = whole.index_put((units[:, None], units[None, :]), matrix)
            hs[layer], cs[layer] = h + h @ whole.t(), c
            source, total = model.stack.join(total, hs[layer])
        logits.append(model.logits(total, TEMPERATURE)[0])
    return torch.stack(logits), State(torch.stack(hs), torch.stack(cs))


@pytest.fixture(params=["layer by layer", "wave", "few steps at once"])
def case(tiny_model, draw_lesson, request, monkeypatch):
    """Makes fast weights in float64, deltas, a state in mid-text, inputs and targets."""
    if request.param == "few steps at once":
        monkeypatch.setattr("rlstm_model.way_back._CACHED_VALUES", 2 * 5 * ROWS)
    if request.param == "wave":
        monkeypatch.setattr(Stack, "layers_at_once", lambda stack, *_: len(stack.layers))

    def make(**shape):
        model = tiny_model(dtype=torch.float64, **shape)
        sparse = SparseFastWeights(model, UNITS[: model.config.num_layers])
        return sparse, *draw_lesson(sparse, rows=ROWS, time=TIME)

    return make


def matrices(sparse, delta_P):
    return delta_P.view(len(sparse.units_LU), sparse.units_LU.shape[1], -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_read_as_a_model_each_would(case, shape):
    """In a window: logits, and the state that is carried, are those of h + M h in the place of h."""
    sparse, delta, state, inputs, _ = case(**shape)
    logits, after = sparse.read(delta, inputs, state, temperature=TEMPERATURE)
    for row in range(ROWS):
        own = slice(row, row + 1)
        expected, last = by_hand(
            sparse.model, sparse.units_LU, matrices(sparse, delta[row]), inputs[:, row], state.rows(own)
        )
        torch.testing.assert_close(logits[:, row], expected, atol=1e-11, rtol=0)
        torch.testing.assert_close(after.rows(own), last, atol=1e-11, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_single_steps_are_a_window(case, shape):
    """One token after the other."""
    sparse, delta, state, inputs, _ = case(**shape)
    expected, after = sparse.read(delta, inputs, state)
    for t in range(TIME):
        logits, state = sparse.step(delta, inputs[t], state)
        torch.testing.assert_close(logits, expected[t], atol=1e-11, rtol=0)
    torch.testing.assert_close(state, after, atol=1e-11, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("from_zero", [False, True])
def test_gradients_equal_automatic_differentiation(case, shape, from_zero):
    """For every row: the gradient of its own loss at its own matrices, and of no other row's."""
    sparse, delta, state, inputs, targets = case(**shape)
    delta = torch.zeros_like(delta) if from_zero else delta
    weights = torch.rand(TIME, ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given = None if from_zero else delta
    found = sparse.learn(given, inputs, targets, weights, state, temperature=TEMPERATURE)
    for row in range(ROWS):
        own = delta[row].clone().requires_grad_(True)
        logits, _ = by_hand(
            sparse.model,
            sparse.units_LU,
            matrices(sparse, own),
            inputs[:, row],
            state.rows(slice(row, row + 1)),
        )
        losses = torch.nn.functional.cross_entropy(logits, targets[:, row], reduction="none")
        (losses * weights[:, row]).sum().backward()
        torch.testing.assert_close(found.gradient_NP[row], own.grad, atol=1e-11, rtol=0)
        torch.testing.assert_close(found.logits_TNV[:, row], logits.detach(), atol=1e-11, rtol=0)
    assert found.gradient_NP.abs().max() > 1e-3


def test_zero_matrices_are_the_shared_model(case):
    """To the last digit but few: nothing is added."""
    sparse, delta, state, inputs, _ = case()
    found = sparse.read(torch.zeros_like(delta), inputs, state)
    expected = sparse.read(None, inputs, state)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_arithmetic_is_in_the_precision_of_the_model(case):
    """A delta in half precision is read as the same numbers in the model's, to the bit."""
    sparse, delta, state, inputs, _ = case()
    kept = delta.half()
    half = SparseFastWeights(sparse.model, sparse.units_LU, torch.float16)
    assert half.zero(2).dtype == torch.float16
    assert torch.equal(half.read(kept, inputs, state)[0], sparse.read(kept.double(), inputs, state)[0])


@pytest.mark.parametrize(
    "units",
    [
        torch.tensor([[0, 1]]),
        torch.tensor([[0, 1], [2, 2]]),
        torch.tensor([[0, 1], [2, 5]]),
        torch.tensor([[0, 1], [2, -1]]),
        torch.tensor([0, 1]),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
    ],
    ids=["layers", "twice", "beyond", "negative", "vector", "none", "int32"],
)
def test_wrong_units_are_refused(tiny_model, units):
    """They are named for what they are."""
    with pytest.raises(ValueError, match="units"):
        SparseFastWeights(tiny_model(), units)


@pytest.fixture
def measured(tiny_model):
    """A model and the RMS between all units of its two layers of five."""
    generator = torch.Generator().manual_seed(7)
    return tiny_model(), torch.rand(2, 5, 5, generator=generator)


def test_units_that_learn_most_come_first(measured):
    """By the mean squares of what may be added to a unit and of what may be added from it."""
    _, rms = measured
    found = SparseStatistics.of(rms)
    for layer, units in enumerate(found.units_LU.tolist()):
        squares = rms[layer].double().square()
        scores = [float(squares[unit].sum() + squares[:, unit].sum()) for unit in units]
        assert sorted(units) == [0, 1, 2, 3, 4]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("units", [1, 3, 5])
def test_rms_are_in_the_order_of_the_fast_weights(measured, units):
    """Each number is the RMS between the units whose weight has its place; fewer units are the first ones."""
    model, rms = measured
    statistics = SparseStatistics.of(rms)
    sparse, rms_P = statistics.greatest(model, 2 * units**2)
    assert torch.equal(sparse.units_LU, statistics.units_LU[:, :units])
    expected = [
        rms[layer, to, source]
        for layer, chosen in enumerate(sparse.units_LU.tolist())
        for to in chosen
        for source in chosen
    ]
    assert rms_P.tolist() == pytest.approx([float(value) for value in expected], abs=0)
    assert len(rms_P) == sparse.size


@pytest.mark.parametrize("num_fast_weights", [0, -8, 7, 19, 72])
def test_coordinates_are_those_of_whole_units(measured, num_fast_weights):
    """Of as many units in each layer, and of no more than there are."""
    model, rms = measured
    with pytest.raises(ValueError, match=f"n from 1 to 5: not {num_fast_weights}"):
        SparseStatistics.of(rms).greatest(model, num_fast_weights)


def test_all_units_have_a_place(tiny_model):
    """The matrices of all units are those that statistics are made of."""
    model = tiny_model()
    assert all_units(model).units_LU.tolist() == [[0, 1, 2, 3, 4]] * 2
