import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.batches import Batches


def _columns(batches, windows):
    """The text that each row reads in so many windows: inputs and, at the end, the last target."""
    pairs = [batches.next() for _ in range(windows)]
    inputs_TB = torch.cat([inputs for inputs, _ in pairs])
    return torch.cat((inputs_TB, pairs[-1][1][-1:])).T.tolist()


@given(length=st.integers(6, 40), rows=st.integers(1, 4), window=st.integers(1, 5))
def test_rows_run_on_through_the_whole_source(length, rows, window):
    """Each row is the source in order, from its own start, round and round; all of it is read."""
    ids = np.arange(length)
    windows = -(-length // window)
    for row, column in enumerate(_columns(Batches([(ids, rows)], window), windows)):
        start = row * length // rows
        assert column == [(start + place) % length for place in range(len(column))]
        assert set(column) == set(range(length))


def test_targets_follow_inputs():
    """A target is the token after its input, within a window and over its end."""
    batches = Batches([(np.arange(50), 2)], 7)
    for _ in range(10):
        inputs_TB, targets_TB = batches.next()
        assert inputs_TB.shape == targets_TB.shape == (7, 2)
        assert torch.equal((inputs_TB + 1) % 50, targets_TB)


def test_sources_keep_to_their_rows():
    """Rows of one source never read from another, also of another length and type."""
    few, many = np.arange(10, dtype=np.uint8), np.arange(100, 140)
    batches = Batches([(few, 1), (many, 2)], 4)
    assert batches.rows == 3
    for column, (least, most) in zip(_columns(batches, 12), [(0, 9), (100, 139), (100, 139)], strict=True):
        assert least <= min(column)
        assert max(column) <= most


def test_positions_are_all_that_is_needed_to_resume():
    """A new object with the saved positions goes on where the old one would."""
    sources = [(np.arange(23), 2), (np.arange(30), 1)]
    first, second = Batches(sources, 4), Batches(sources, 4)
    for _ in range(5):
        first.next()
    second.positions = first.positions.copy()
    for _ in range(5):
        for ours, theirs in zip(first.next(), second.next(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_short_source_is_refused():
    """A source that cannot fill a window is an error that says so."""
    with pytest.raises(ValueError, match="5 tokens cannot fill a window of 5"):
        Batches([(np.arange(5), 1)], 5)
