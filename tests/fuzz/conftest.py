"""Shared by the fuzzers: two very small served models."""

import pytest
from tests.fuzz.worlds import make_worlds


@pytest.fixture(scope="session")
def worlds():
    """One of bytes and one of words, with exported sessions of theirs."""
    return make_worlds()
