"""Many inputs in few passes: each as if it were alone."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlstm_model.adaptation.padded_rows import LearningRows, PaddedRows, RowInput, TrainingInput

from rlstm_model.network.state import State
from rlstm_model.torch_backend.full import FullFastWeights

few = settings(max_examples=6, deadline=None)
counts = st.lists(st.integers(1, 3), min_size=1, max_size=6)
texts = st.tuples(counts, st.lists(st.integers(1, 6), min_size=6, max_size=6), st.booleans())
shapes = texts.map(lambda text: [(rows, length, text[2]) for rows, length in zip(*text[:2], strict=False)])
trainings = st.tuples(counts, st.integers(1, 6), st.booleans()).map(
    lambda text: [(rows, text[1], text[2]) for rows in text[0]]
)


@pytest.fixture(scope="module", params=["subspace", "full"])
def fast_weights(request, wide_model, subspace):
    """Both kinds, of one model."""
    return subspace(wide_model, 8) if request.param == "subspace" else FullFastWeights(wide_model)


@pytest.fixture(scope="module")
def of_subspace(wide_model, subspace):
    return subspace(wide_model, 8)


def randoms(fast_weights, shapes, seed=1):
    """Readings of given (rows, length, with deltas of their own) from random states."""
    generator = torch.Generator().manual_seed(seed)
    config, inputs = fast_weights.model.config, []
    for rows, length, own in shapes:
        h, c = torch.randn(2, config.num_layers, rows, config.hidden_size, generator=generator).tanh()
        ids = torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        delta = 0.1 * torch.randn(rows, fast_weights.size, generator=generator) if own else None
        inputs.append(RowInput(ids, State(h, c), delta))
    return inputs


def trainings_of(fast_weights, inputs, seed=2):
    generator = torch.Generator().manual_seed(seed)
    vocab = fast_weights.model.config.vocab_size
    return [
        TrainingInput(
            reading,
            torch.randint(vocab, (len(reading.ids),), generator=generator).tolist(),
            torch.rand(len(reading.ids), generator=generator).tolist(),
        )
        for reading in inputs
    ]


class Own(NamedTuple):
    """What is one reading's own of a pass."""

    logits_TRV: torch.Tensor
    state: State
    gradient_RP: torch.Tensor | None = None


def own(inputs, read, gradient_NP=None):
    """Each input's own, apart."""
    found = []
    for reading, first, state in zip(inputs, read.first, read.states, strict=True):
        rows, windows, total = slice(first, first + reading.rows), [], 0
        for window in read.windows:
            if total < len(reading.ids):
                windows.append(window[:, rows])
                total += len(window)
        gradient_RP = None if gradient_NP is None else gradient_NP[rows].clone()
        found.append(Own(torch.cat(windows), state, gradient_RP))
    return found


def read_all(rows, inputs):
    return own(inputs, rows.read(inputs))


def learn_all(rows, trainings):
    learned = rows.learn(trainings)
    return own([training.read for training in trainings], learned.read, learned.gradient_NP)


def same(one, other):
    assert torch.equal(one.logits_TRV, other.logits_TRV)
    assert torch.equal(one.state.h, other.state.h)
    assert torch.equal(one.state.c, other.state.c)
    if one.gradient_RP is not None:
        assert torch.equal(one.gradient_RP, other.gradient_RP)


@few
@given(shapes)
def test_inputs_equal_one_by_one_to_the_last_bit(of_subspace, shapes):
    """Whatever the lengths: each input has the bits that it has alone."""
    rows, inputs = LearningRows(of_subspace, 0.9, rule=None), randoms(of_subspace, shapes)
    for found, reading in zip(read_all(rows, inputs), inputs, strict=True):
        (alone,) = read_all(rows, [reading])
        assert found.logits_TRV.shape == (len(reading.ids), reading.rows, 40)
        same(found, alone)


@pytest.mark.parametrize("with_deltas", [True, False])
def test_single_tokens_are_read_as_texts_are(of_subspace, with_deltas):
    """One token a row by the way for one token: the numbers of a text of one, and the bits of it alone."""
    rows = LearningRows(of_subspace, 0.9, rule=None)
    inputs = randoms(of_subspace, [(n, 1, with_deltas) for n in (1, 3, 2, 4, 1)])
    stepped, texts = own(inputs, rows.step(inputs)), read_all(rows, inputs)
    for found, text, reading in zip(stepped, texts, inputs, strict=True):
        (alone,) = own([reading], rows.step([reading]))
        same(found, alone)
        torch.testing.assert_close(found.logits_TRV, text.logits_TRV, rtol=0, atol=2e-5)
        torch.testing.assert_close(found.state, text.state, rtol=0, atol=2e-5)


@few
@given(trainings)
def test_trainings_are_those_of_the_fast_weights(fast_weights, shapes):
    """The numbers are those of learning each row without padding and without neighbours."""
    trainings = trainings_of(fast_weights, randoms(fast_weights, shapes))
    for found, ((ids, state, delta), targets, weights) in zip(
        learn_all(LearningRows(fast_weights, 0.9, rule=None), trainings), trainings, strict=True
    ):
        columns = [torch.tensor(column)[:, None] for column in (ids, targets, weights)]
        for r in range(state.batch):
            row = slice(r, r + 1)
            alone = fast_weights.learn(
                None if delta is None else delta[row], *columns, state.rows(row), temperature=0.9
            )
            torch.testing.assert_close(found.logits_TRV[:, row], alone.logits_TNV, rtol=0, atol=2e-5)
            torch.testing.assert_close(found.gradient_RP[row], alone.gradient_NP, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(found.state.rows(row), alone.state, rtol=0, atol=2e-5)


def test_passes_are_whole_tiles_and_no_longer_than_needed(wide_model, subspace):
    """Rows are padded to tiles of 8; once the short ones have ended, the long ones go on in fewer."""
    rows = PaddedRows(subspace(wide_model, 2))
    read = rows.read(randoms(rows.weights, [(1, 3, False)] * 9 + [(2, 5, False)]))
    assert [window.shape[:2] for window in read.windows] == [(3, 16), (2, 8)]
    assert read.first == [2, 3, 4, 5, 6, 7, 8, 9, 10, 0]


class KeptInHalf:
    """Fast weights that are kept in float16."""

    def __init__(self, fast_weights):
        self._fast_weights = fast_weights

    def __getattr__(self, name):
        return getattr(self._fast_weights, name)

    def zero(self, rows):
        """Zeros as they are kept."""
        return self._fast_weights.zero(rows).half()


def test_deltas_may_be_kept_in_less_precision(of_subspace):
    """They are computed with as float32; the training hands them back as they are kept."""
    rows = LearningRows(KeptInHalf(of_subspace), rule=None)
    (reading,) = randoms(of_subspace, [(2, 3, True)])
    half = reading._replace(delta_RP=reading.delta_RP.half())
    whole = half._replace(delta_RP=half.delta_RP.float())
    same(*read_all(rows, [half]), *read_all(LearningRows(of_subspace, rule=None), [whole]))
    (training,) = trainings_of(of_subspace, [half])
    learned = rows.learn([training])
    assert (learned.delta_NP.dtype, learned.gradient_NP.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_leaves_the_others_alone(fast_weights, value):
    """A broken delta or state changes no bit of its neighbours, in reading and in learning."""
    good = randoms(fast_weights, [(1, 4, True), (2, 4, True), (2, 4, True), (1, 4, True)])
    bad = [*good]
    bad[1] = good[1]._replace(delta_RP=torch.full_like(good[1].delta_RP, value))
    bad[3] = good[3]._replace(state=State(good[3].state.h, torch.full_like(good[3].state.c, value)))
    rows = LearningRows(fast_weights, rule=None)
    found = [read_all(rows, bad), learn_all(rows, trainings_of(fast_weights, bad))]
    expected = [read_all(rows, good), learn_all(rows, trainings_of(fast_weights, good))]
    for one, other in zip(found, expected, strict=True):
        same(one[0], other[0])
        same(one[2], other[2])
        assert one[1].logits_TRV.isnan().any()
        assert one[3].logits_TRV.isnan().any()


def test_weights_of_losses_keep_their_precision(tiny_model, subspace):
    """A third is a third of a float64 model's gradient."""
    fast_weights = subspace(tiny_model(dtype=torch.float64), 2)
    reading = RowInput([1, 2, 3], fast_weights.model.initial_state(1))
    gradients = []
    for weight in (1 / 3, 1.0):
        (learned,) = learn_all(
            LearningRows(fast_weights, rule=None), [TrainingInput(reading, [2, 3, 4], [weight] * 3)]
        )
        gradients.append(learned.gradient_RP)
    torch.testing.assert_close(gradients[0] * 3, gradients[1], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("hidden", [16, 338, 420])
def test_rows_without_fast_weights_have_the_bits_of_those_of_zero(tiny_model, subspace, hidden):
    """Which of them share a pass with others does not show, however long the sums are."""
    weights = subspace(tiny_model(hidden_size=hidden, vocab_size=48, scale=0.06), rank=4)
    ids = torch.randint(48, (7, weights.tile), generator=torch.Generator().manual_seed(3))
    _, state = weights.read(None, ids, weights.model.initial_state(weights.tile))
    zero = weights.zero(weights.tile).to(state.h.dtype)
    plain, after = weights.read(None, ids, state)

    for logits, then in (
        weights.read(zero, ids, state),
        weights.learn(zero, ids, ids, torch.ones(ids.shape), state)[:2],
    ):
        assert torch.equal(logits, plain)
        assert torch.equal(then.h, after.h)
        assert torch.equal(then.c, after.c)
    assert torch.equal(weights.step(zero, ids[0], state)[0], weights.step(None, ids[0], state)[0])
