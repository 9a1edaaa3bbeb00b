"""Many readings in few passes: each as if it were alone."""

import random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.adaptation.rows import LearningRows, Lesson, Reading
from rlstm_model.network.state import State

few = settings(max_examples=6, deadline=None)
counts = st.lists(st.integers(1, 3), min_size=1, max_size=6)
texts = st.tuples(counts, st.lists(st.integers(1, 6), min_size=6, max_size=6), st.booleans())
shapes = texts.map(lambda text: [(rows, length, text[2]) for rows, length in zip(*text[:2], strict=False)])
lessons = st.tuples(counts, st.integers(1, 6), st.booleans()).map(
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
    config, readings = fast_weights.model.config, []
    for rows, length, own in shapes:
        h, c = torch.randn(2, config.num_layers, rows, config.hidden_size, generator=generator).tanh()
        ids = torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        delta = 0.1 * torch.randn(rows, fast_weights.size, generator=generator) if own else None
        readings.append(Reading(ids, State(h, c), delta))
    return readings


def lessons_of(fast_weights, readings, seed=2):
    generator = torch.Generator().manual_seed(seed)
    vocab = fast_weights.model.config.vocab_size
    return [
        Lesson(
            reading,
            torch.randint(vocab, (len(reading.ids),), generator=generator).tolist(),
            torch.rand(len(reading.ids), generator=generator).tolist(),
        )
        for reading in readings
    ]


class Own(NamedTuple):
    """What is one reading's own of a pass."""

    logits_TRV: torch.Tensor
    state: State
    gradient_RP: torch.Tensor | None = None


def own(readings, read, gradient_NP=None):
    """Each reading's own, apart."""
    found = []
    for reading, first, state in zip(readings, read.first, read.states, strict=True):
        rows, windows, total = slice(first, first + reading.rows), [], 0
        for window in read.windows:
            if total < len(reading.ids):
                windows.append(window[:, rows])
                total += len(window)
        gradient_RP = None if gradient_NP is None else gradient_NP[rows].clone()
        found.append(Own(torch.cat(windows), state, gradient_RP))
    return found


def read_all(rows, readings):
    return own(readings, rows.read(readings))


def learn_all(rows, lessons):
    taught = rows.learn(lessons)
    return own([lesson.reading for lesson in lessons], taught.read, taught.gradient_NP)


def same(one, other):
    assert torch.equal(one.logits_TRV, other.logits_TRV)
    assert torch.equal(one.state.h, other.state.h)
    assert torch.equal(one.state.c, other.state.c)
    if one.gradient_RP is not None:
        assert torch.equal(one.gradient_RP, other.gradient_RP)


@pytest.mark.parametrize("with_deltas", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_many_readings_equal_one_by_one_to_the_last_bit(of_subspace, seed, with_deltas):
    """Sixteen readings of up to 3 rows and 20 tokens: windows end anywhere in them."""
    draw = random.Random(seed)
    shapes = [(draw.randint(1, 3), draw.randint(1, 20), with_deltas) for _ in range(16)]
    rows, readings = LearningRows(of_subspace), randoms(of_subspace, shapes, seed)
    for found, reading in zip(read_all(rows, readings), readings, strict=True):
        (alone,) = read_all(rows, [reading])
        same(found, alone)


@few
@given(shapes)
def test_readings_equal_one_by_one_to_the_last_bit(of_subspace, shapes):
    """Whatever the lengths: each reading has the bits that it has alone."""
    rows, readings = LearningRows(of_subspace, 0.9), randoms(of_subspace, shapes)
    for found, reading in zip(read_all(rows, readings), readings, strict=True):
        (alone,) = read_all(rows, [reading])
        assert found.logits_TRV.shape == (len(reading.ids), reading.rows, 40)
        same(found, alone)


@few
@given(shapes)
def test_readings_are_those_of_the_fast_weights(fast_weights, shapes):
    """The numbers are those of reading each row without padding and without neighbours."""
    readings = randoms(fast_weights, shapes)
    for found, (ids, state, delta) in zip(
        read_all(LearningRows(fast_weights, 0.9), readings), readings, strict=True
    ):
        for r in range(state.batch):
            row = slice(r, r + 1)
            logits, after = fast_weights.read(
                None if delta is None else delta[row],
                torch.tensor(ids)[:, None],
                state.rows(row),
                temperature=0.9,
            )
            torch.testing.assert_close(found.logits_TRV[:, row], logits, rtol=0, atol=2e-5)
            torch.testing.assert_close(found.state.rows(row), after, rtol=0, atol=2e-5)


@pytest.mark.parametrize("with_deltas", [True, False])
def test_single_tokens_are_read_as_texts_are(of_subspace, with_deltas):
    """One token a row by the way for one token: the numbers of a text of one, and the bits of it alone."""
    rows = LearningRows(of_subspace, 0.9)
    readings = randoms(of_subspace, [(n, 1, with_deltas) for n in (1, 3, 2, 4, 1)])
    stepped, texts = own(readings, rows.step(readings)), read_all(rows, readings)
    for found, text, reading in zip(stepped, texts, readings, strict=True):
        (alone,) = own([reading], rows.step([reading]))
        same(found, alone)
        torch.testing.assert_close(found.logits_TRV, text.logits_TRV, rtol=0, atol=2e-5)
        torch.testing.assert_close(found.state, text.state, rtol=0, atol=2e-5)


@few
@given(lessons)
def test_lessons_equal_one_by_one_to_the_last_bit(fast_weights, shapes):
    """Gradients too, with deltas and without."""
    rows = LearningRows(fast_weights, 0.9)
    lessons = lessons_of(fast_weights, randoms(fast_weights, shapes))
    for found, lesson in zip(learn_all(rows, lessons), lessons, strict=True):
        (alone,) = learn_all(rows, [lesson])
        same(found, alone)


@few
@given(lessons)
def test_lessons_are_those_of_the_fast_weights(fast_weights, shapes):
    """The numbers are those of learning each row without padding and without neighbours."""
    lessons = lessons_of(fast_weights, randoms(fast_weights, shapes))
    for found, ((ids, state, delta), targets, weights) in zip(
        learn_all(LearningRows(fast_weights, 0.9), lessons), lessons, strict=True
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
    rows = LearningRows(subspace(wide_model, 2))
    read = rows.read(randoms(rows.weights, [(1, 3, False)] * 9 + [(2, 5, False)]))
    assert [window.shape[:2] for window in read.windows] == [(3, 16), (2, 8)]
    assert read.first == [2, 3, 4, 5, 6, 7, 8, 9, 10, 0]


class Counting:
    """Fast weights that count the tokens they compute."""

    def __init__(self, fast_weights):
        self._fast_weights, self.tokens = fast_weights, 0

    def __getattr__(self, name):
        return getattr(self._fast_weights, name)

    def read(self, delta_NP, ids_TN, *arguments, **options):
        """Read them."""
        self.tokens += ids_TN.numel()
        return self._fast_weights.read(delta_NP, ids_TN, *arguments, **options)

    def step(self, delta_NP, ids_N, *arguments, **options):
        """Read one token a row."""
        self.tokens += ids_N.numel()
        return self._fast_weights.step(delta_NP, ids_N, *arguments, **options)

    def learn(self, delta_NP, ids_TN, *arguments, **options):
        """Learn from them."""
        self.tokens += ids_TN.numel()
        return self._fast_weights.learn(delta_NP, ids_TN, *arguments, **options)


def tokens_of(readings):
    return sum(reading.rows * len(reading.ids) for reading in readings)


@few
@given(shapes)
def test_padding_is_all_that_is_computed_beyond_the_readings(of_subspace, shapes):
    """Whatever the lengths: tokens of readings and of padding are the tokens that were computed."""
    weights = Counting(of_subspace)
    readings = randoms(of_subspace, shapes)
    read = LearningRows(weights).read(readings)
    assert read.padding == weights.tokens - tokens_of(readings)


@pytest.mark.parametrize("count", [1, 8, 11])
def test_padding_of_single_tokens_and_of_lessons(of_subspace, count):
    """One token a row that goes on, and whole segments that are learned from."""
    weights, readings = Counting(of_subspace), randoms(of_subspace, [(1, 1, True)] * count)
    assert LearningRows(weights).step(readings).padding == weights.tokens - count
    weights, readings = Counting(of_subspace), randoms(of_subspace, [(1, 4, True)] * count)
    taught = LearningRows(weights).learn(lessons_of(of_subspace, readings))
    assert taught.read.padding == weights.tokens - 4 * count


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
    """They are computed with as float32; the lesson hands them back as they are kept."""
    rows = LearningRows(KeptInHalf(of_subspace))
    (reading,) = randoms(of_subspace, [(2, 3, True)])
    half = reading._replace(delta_RP=reading.delta_RP.half())
    whole = half._replace(delta_RP=half.delta_RP.float())
    same(*read_all(rows, [half]), *read_all(LearningRows(of_subspace), [whole]))
    (lesson,) = lessons_of(of_subspace, [half])
    taught = rows.learn([lesson])
    assert (taught.delta_NP.dtype, taught.gradient_NP.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_leaves_the_others_alone(fast_weights, value):
    """A broken delta or state changes no bit of its neighbours, in reading and in learning."""
    good = randoms(fast_weights, [(1, 4, True), (2, 4, True), (2, 4, True), (1, 4, True)])
    bad = [*good]
    bad[1] = good[1]._replace(delta_RP=torch.full_like(good[1].delta_RP, value))
    bad[3] = good[3]._replace(state=State(good[3].state.h, torch.full_like(good[3].state.c, value)))
    rows = LearningRows(fast_weights)
    found = [read_all(rows, bad), learn_all(rows, lessons_of(fast_weights, bad))]
    expected = [read_all(rows, good), learn_all(rows, lessons_of(fast_weights, good))]
    for one, other in zip(found, expected, strict=True):
        same(one[0], other[0])
        same(one[2], other[2])
        assert one[1].logits_TRV.isnan().any()
        assert one[3].logits_TRV.isnan().any()


def test_weights_of_losses_keep_their_precision(tiny_model, subspace):
    """A third is a third of a float64 model's gradient."""
    fast_weights = subspace(tiny_model(dtype=torch.float64), 2)
    reading = Reading([1, 2, 3], fast_weights.model.initial_state(1))
    gradients = []
    for weight in (1 / 3, 1.0):
        (taught,) = learn_all(LearningRows(fast_weights), [Lesson(reading, [2, 3, 4], [weight] * 3)])
        gradients.append(taught.gradient_RP)
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
