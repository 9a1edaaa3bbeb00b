"""Batches against the streams of tokens that each row should read, written out token by token."""

from itertools import count, islice

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rlstm_training.batches import Batches


def _columns(batches, windows):
    """The text that each row reads in so many windows; targets are the next inputs, over windows too."""
    pairs = [batches.next() for _ in range(windows)]
    inputs_TB, targets_TB = (torch.cat(part) for part in zip(*pairs, strict=True))
    assert torch.equal(inputs_TB[1:], targets_TB[:-1])
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


def test_sources_keep_to_their_rows():
    """Rows of one source never read from another, also of another length and type."""
    few, many = np.arange(10, dtype=np.uint8), np.arange(100, 140)
    batches = Batches([(few, 1), (many, 2)], 4)
    assert batches.rows == 3
    for column, (least, most) in zip(_columns(batches, 12), [(0, 9), (100, 139), (100, 139)], strict=True):
        assert least <= min(column)
        assert max(column) <= most


EOS = 7


def _lines(lengths):
    """A text of lines of so many different tokens, each with its end; every token but the end is unique."""
    tokens = iter(count(100))
    return np.array([token for length in lengths for token in (*islice(tokens, length), EOS)])


def _rounds(stream, size):
    """The targets of a head's rounds, whole ones only."""
    targets = stream[1:]
    return [targets[start : start + size] for start in range(0, len(targets) - size + 1, size)]


_TEXTS = st.lists(st.integers(0, 5), min_size=3, max_size=12).map(_lines)
_JITTER = st.integers(1, 4)


@given(ids=_TEXTS, rows=st.integers(1, 4), window=st.integers(1, 6), jitter=_JITTER, seed=st.integers(0, 99))
def test_a_jittered_head_reads_whole_rounds_of_whole_lines(ids, rows, window, jitter, seed):
    """The first input ends a line; each round has every token of the source once, by whole lines."""
    assume(window < len(ids))
    batches = Batches([(ids, rows)], window, jitter_lines=jitter, eos_id=EOS, seed=seed)
    for column in _columns(batches, 4 * len(ids) // window + 1):
        assert column[0] == EOS
        for targets in _rounds(column, len(ids)):
            assert sorted(targets) == sorted(ids)
            assert targets[-1] == EOS
            ring = [*ids.tolist(), *ids.tolist()]
            assert any(ring[start : start + len(ids)] == targets for start in range(len(ids)))


@given(lines=st.integers(5, 40), rows=st.integers(1, 5), jitter=_JITTER, seed=st.integers(0, 99))
def test_rounds_begin_within_the_jitter_of_equal_distances(lines, rows, jitter, seed):
    """Less one common offset, each round of a head begins at most ``jitter`` lines from its place."""
    ids = _lines([1] * lines)
    batches = Batches([(ids, rows)], 1, jitter_lines=jitter, eos_id=EOS, seed=seed)
    firsts = [
        [(targets[0] - 100) for targets in _rounds(column, len(ids))]
        for column in _columns(batches, 5 * len(ids))
    ]

    def within(offset):
        return all(
            (first - offset - row * lines // rows - 1 + jitter) % lines <= 2 * jitter
            for row, rounds in enumerate(firsts)
            for first in rounds
        )

    assert any(within(offset) for offset in range(lines))


def test_heads_and_rounds_are_jittered_apart():
    """Beginnings differ from head to head and from round to round, and with the seed."""
    ids = _lines([1] * 1000)
    streams = [
        _columns(Batches([(ids, 2)], 1000, jitter_lines=100, eos_id=EOS, seed=seed), 9) for seed in (1, 2)
    ]
    off = [
        [(targets[0] - streams[seed][row][1]) % 1000 for targets in _rounds(streams[seed][row], len(ids))]
        for seed in (0, 1)
        for row in (0, 1)
    ]
    assert len({tuple(rounds) for rounds in off}) == 4
    assert all(len(set(rounds)) > 2 for rounds in off)
    assert streams[0][0][1] != streams[1][0][1]


@given(length=st.integers(8, 40), rows=st.integers(1, 4), window=st.integers(1, 3))
def test_contiguous_rows_keep_to_their_pieces(length, rows, window):
    """Each row reads its piece of the source round and round; the pieces join to the source."""
    pieces = np.array_split(np.arange(length), rows)
    assume(min(map(len, pieces)) > window)
    batches = Batches([(np.arange(length), rows)], window, batching="contiguous")
    seen = []
    for column in _columns(batches, length // window + 1):
        piece = sorted(set(column))
        assert column == [piece[place % len(piece)] for place in range(len(column))]
        seen += piece
    assert seen == list(range(length))


_WAYS = st.sampled_from(
    [{}, {"batching": "contiguous"}, {"jitter_lines": 2, "eos_id": EOS}, {"jitter_lines": 9, "eos_id": EOS}]
)


@given(way=_WAYS, before=st.integers(0, 60), window=st.integers(1, 5), seed=st.integers(0, 9))
def test_positions_and_rounds_are_all_that_is_needed_to_resume(way, before, window, seed):
    """Wherever it is cut, a new object with the saved arrays goes on as the old one does."""
    sources = [(_lines([3, 1, 4, 1, 5]), 2), (_lines([2, 7, 1, 8]), 1)]
    first, second = (Batches(sources, window, seed=seed, **way) for _ in range(2))
    for _ in range(before):
        first.next()
    second.positions, second.rounds = first.positions.copy(), first.rounds.copy()
    for _ in range(20):
        for ours, theirs in zip(first.next(), second.next(), strict=True):
            assert torch.equal(ours, theirs)


@given(way=_WAYS, cut=st.integers(1, 3))
def test_processes_that_share_the_rows_read_what_one_would(way, cut):
    """Slices of the rows, joined, are the whole batch, and every process has all rows' positions."""
    sources = [(_lines([3, 1, 4, 1, 5]), 3), (_lines([2, 7, 1, 8]), 1)]
    whole, left, right = (Batches(sources, 3, **way) for _ in range(3))
    for _ in range(12):
        pairs = zip(left.next(slice(0, cut)), right.next(slice(cut, 4)), strict=True)
        for all_TB, (left_TB, right_TB) in zip(whole.next(), pairs, strict=True):
            assert torch.equal(all_TB, torch.cat((left_TB, right_TB), 1))
        assert np.array_equal(whole.positions, left.positions)
        assert np.array_equal(whole.rounds, right.rounds)


def test_rounds_count_the_times_through_the_source():
    """An epoch of a head is as many inputs as its source has tokens, with and without jitter."""
    ids = _lines([3, 1, 4, 1, 5])
    for way in ({}, {"jitter_lines": 2, "eos_id": EOS}):
        batches = Batches([(ids, 2)], 4, **way)
        for windows in range(1, 30):
            batches.next()
            assert batches.rounds.tolist() == [4 * windows // len(ids)] * 2


def test_what_has_no_lines_has_no_jitter():
    """Jitter of a text without line ends is an error that says so."""
    ids = np.arange(100, 120)
    for eos_id in (EOS, None):
        with pytest.raises(ValueError, match="a source has no line ends"):
            Batches([(ids, 1)], 5, jitter_lines=1, eos_id=eos_id)
    with pytest.raises(ValueError, match="5 tokens cannot fill a window of 5"):
        Batches([(ids, 4)], 5, batching="contiguous")
