"""Many readings in few passes: each as if it were alone."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.adaptation.rows import Lesson, Reading, Rows
from rlstm_model.state import State

few = settings(max_examples=6, deadline=None)
shapes = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.booleans()), min_size=1, max_size=6)


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


def kept(taught):
    """A copy of what lives until the next result only."""
    return taught._replace(gradient_RP=taught.gradient_RP.clone())


def same(one, other):
    assert torch.equal(one.logits_TRV, other.logits_TRV)
    assert torch.equal(one.state.h, other.state.h)
    assert torch.equal(one.state.c, other.state.c)


@pytest.mark.parametrize("seed", range(4))
def test_many_readings_equal_one_by_one_to_the_last_bit(of_subspace, seed):
    """Sixteen readings of up to 3 rows and 20 tokens: windows end anywhere in them."""
    draw = random.Random(seed)
    shapes = [(draw.randint(1, 3), draw.randint(1, 20), draw.random() < 0.5) for _ in range(16)]
    rows, readings = Rows(of_subspace), randoms(of_subspace, shapes, seed)
    for found, reading in zip(rows.read(readings), readings, strict=True):
        (alone,) = rows.read([reading])
        same(found, alone)


@few
@given(shapes)
def test_readings_equal_one_by_one_to_the_last_bit(fast_weights, shapes):
    """Whatever the lengths, and whoever has deltas: each reading has the bits that it has alone."""
    rows, readings = Rows(fast_weights, 0.9), randoms(fast_weights, shapes)
    for found, reading in zip(rows.read(readings), readings, strict=True):
        (alone,) = rows.read([reading])
        assert found.logits_TRV.shape == (len(reading.ids), reading.rows, 40)
        same(found, alone)


@few
@given(shapes)
def test_readings_are_those_of_the_fast_weights(fast_weights, shapes):
    """The numbers are those of reading each row without padding and without neighbours."""
    readings = randoms(fast_weights, shapes)
    for found, (ids, state, delta) in zip(Rows(fast_weights, 0.9).read(readings), readings, strict=True):
        for r in range(state.batch):
            own = slice(r, r + 1)
            logits, after = fast_weights.read(
                None if delta is None else delta[own],
                torch.tensor(ids)[:, None],
                state.rows(own),
                temperature=0.9,
            )
            torch.testing.assert_close(found.logits_TRV[:, own], logits, rtol=0, atol=2e-5)
            torch.testing.assert_close(found.state.rows(own), after, rtol=0, atol=2e-5)


@few
@given(shapes)
def test_lessons_equal_one_by_one_to_the_last_bit(fast_weights, shapes):
    """Gradients too: of segments of unequal length, with and without deltas."""
    rows = Rows(fast_weights, 0.9)
    lessons = lessons_of(fast_weights, randoms(fast_weights, shapes))
    found = {place: kept(taught) for place, taught in rows.learn(lessons)}
    assert sorted(found) == list(range(len(lessons)))
    for place, lesson in enumerate(lessons):
        ((_, alone),) = rows.learn([lesson])
        same(found[place], alone)
        assert torch.equal(found[place].gradient_RP, alone.gradient_RP)


@few
@given(shapes)
def test_lessons_are_those_of_the_fast_weights(fast_weights, shapes):
    """The numbers are those of learning each row without padding and without neighbours."""
    lessons = lessons_of(fast_weights, randoms(fast_weights, shapes))
    for place, taught in Rows(fast_weights, 0.9).learn(lessons):
        found, ((ids, state, delta), targets, weights) = kept(taught), lessons[place]
        columns = [torch.tensor(column)[:, None] for column in (ids, targets, weights)]
        for r in range(state.batch):
            own = slice(r, r + 1)
            alone = fast_weights.learn(
                None if delta is None else delta[own], *columns, state.rows(own), temperature=0.9
            )
            torch.testing.assert_close(found.logits_TRV[:, own], alone.logits_TNV, rtol=0, atol=2e-5)
            torch.testing.assert_close(found.gradient_RP[own], alone.gradient_NP, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(found.state.rows(own), alone.state, rtol=0, atol=2e-5)


class Watched:
    """Fast weights that write down the rows and the length of every pass."""

    def __init__(self, fast_weights, at_once):
        self._fast_weights, self.at_once, self.passes = fast_weights, at_once, []

    def __getattr__(self, name):
        return getattr(self._fast_weights, name)

    def read(self, delta_NP, ids_TN, state, **options):
        """Note and read."""
        self.passes.append(("own" if delta_NP is not None else "shared", *ids_TN.shape))
        return self._fast_weights.read(delta_NP, ids_TN, state, **options)

    def learn(self, delta_NP, ids_TN, *arguments, **options):
        """Note and learn."""
        self.passes.append(("learn", *ids_TN.shape))
        return self._fast_weights.learn(delta_NP, ids_TN, *arguments, **options)


def test_passes_are_whole_tiles_and_no_longer_than_needed(wide_model, subspace):
    """Rows are padded to tiles of 8; once the short ones have ended, the long ones go on in fewer."""
    watched = Watched(subspace(wide_model, 2), 256)
    readings = randoms(watched, [(1, 3, False)] * 9 + [(2, 5, False)] + [(3, 5, True)])
    Rows(watched).read(readings)
    assert watched.passes == [("shared", 3, 16), ("shared", 2, 8), ("own", 5, 8)]


def test_a_pass_has_no_more_rows_than_are_worth_it(wide_model, subspace):
    """Beyond ``at_once`` rows there are more passes, of at least one reading each; results stay in order."""
    watched = Watched(subspace(wide_model, 2), 8)
    readings = randoms(watched, [(3, 4, True)] * 5 + [(9, 4, True)])
    found = Rows(watched).read(readings)
    learned = list(Rows(watched).learn(lessons_of(watched, readings)))
    sizes = [8, 8, 8, 16]
    assert watched.passes == [("own", 4, n) for n in sizes] + [("learn", 4, n) for n in sizes]
    assert [place for place, _ in learned] == [0, 1, 2, 3, 4, 5]
    for read, reading in zip(found, readings, strict=True):
        (alone,) = Rows(watched).read([reading])
        same(read, alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_leaves_the_others_alone(fast_weights, value):
    """A broken delta or state changes no bit of its neighbours, in reading and in learning."""
    shapes = [(1, 4, True), (2, 4, True), (2, 6, False), (1, 4, False)]
    good = randoms(fast_weights, shapes)
    bad = [*good]
    bad[1] = good[1]._replace(delta_RP=torch.full_like(good[1].delta_RP, value))
    bad[3] = good[3]._replace(state=State(good[3].state.h, torch.full_like(good[3].state.c, value)))
    rows = Rows(fast_weights)
    for i, (one, other) in enumerate(zip(rows.read(bad), rows.read(good), strict=True)):
        if i in (0, 2):
            same(one, other)
        else:
            assert one.logits_TRV.isnan().any()
    expected = {i: kept(taught) for i, taught in rows.learn(lessons_of(fast_weights, good))}
    for i, taught in rows.learn(lessons_of(fast_weights, bad)):
        if i in (0, 2):
            assert torch.equal(taught.gradient_RP, expected[i].gradient_RP)


def test_weights_of_losses_keep_their_precision(tiny_model, subspace):
    """A third is a third of a float64 model's gradient."""
    fast_weights = subspace(tiny_model(dtype=torch.float64), 2)
    reading = Reading([1, 2, 3], fast_weights.model.initial_state(1))
    gradients = []
    for weight in (1 / 3, 1.0):
        ((_, taught),) = Rows(fast_weights).learn([Lesson(reading, [2, 3, 4], [weight] * 3)])
        gradients.append(taught.gradient_RP.clone())
    torch.testing.assert_close(gradients[0] * 3, gradients[1], rtol=1e-14, atol=1e-15)


def test_states_do_not_keep_their_neighbours_alive(fast_weights):
    """A state that a stream keeps for hours owns no more memory than its own rows."""
    readings = randoms(fast_weights, [(2, 3, True), (1, 3, False)] * 4)
    for result in Rows(fast_weights).read(readings):
        for tensor in result.state:
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_nothing_to_read(fast_weights):
    """No readings and no lessons give nothing."""
    assert Rows(fast_weights).read([]) == []
    assert list(Rows(fast_weights).learn([])) == []
