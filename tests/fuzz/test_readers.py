"""Whatever is read: what it says, or the reader's named errors, and no others."""

import collections
import os
import random

import pytest
from tests.fuzz.readers import of_a_store, of_requests

QUICK = 100
LONG = int(os.environ.get("RLSTM_READ", "40000"))


@pytest.fixture(scope="module")
def readers(worlds):
    return of_requests() + of_a_store(worlds[1])


def fuzz(readers, count):
    """So many inputs to each reader; gives the outcomes, and what was raised that is not named."""
    came, other = collections.Counter(), []
    for reader in readers:
        draw = random.Random(3)
        for _ in range(count):
            data = reader.draw(draw)
            try:
                reader.read(data)
                came[reader.name, "read"] += 1
            except reader.refusals:
                came[reader.name, "refused"] += 1
            except Exception as error:
                other.append((reader.name, repr(error)[:200], data[:500]))
    return came, other


def distinct(other):
    """One input for each kind of error that is not named."""
    return {(name, error[:60]): data for name, error, data in other}


def test_each_reader_reads_what_is_right(worlds):
    """What is changed is right to begin with: of requests the first, of a store everything."""
    for reader in of_requests():
        reader.read(reader.seeds[0])
    for reader in of_a_store(worlds[1]):
        for seed in reader.seeds:
            reader.read(seed)


def test_readers_raise_what_is_named_quick(readers):
    """Some inputs to each; each both reads and refuses."""
    came, other = fuzz(readers, QUICK)
    assert not other, distinct(other)
    assert {name for name, outcome in came if outcome == "refused"} == {reader.name for reader in readers}


@pytest.mark.faults
def test_readers_raise_what_is_named(readers, capsys):
    """Very many inputs to each."""
    came, other = fuzz(readers, LONG)
    with capsys.disabled():
        print(
            f"\nreaders: {came.total() + len(other):,} inputs to {len(readers)} readers:"
            f" {len(other)} exceptions but the named ones"
        )
    assert not other, distinct(other)
    assert set(came) == {(reader.name, outcome) for reader in readers for outcome in ("read", "refused")}
