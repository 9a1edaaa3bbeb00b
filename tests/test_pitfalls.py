"""PITFALLS.md names every oracle and pitfall, and only tests that exist."""

import re

import pytest
from tests.pages import TESTS, functions, keys, named

PAGE = "PITFALLS.md"


def test_every_oracle_and_pitfall_has_its_row():
    """Oracles a to l, pitfalls 1 to 38, each once and in order, each with at least one test."""
    assert keys(PAGE) == [*"abcdefghijkl", *map(str, range(1, 39))]
    assert {key for key, *_ in named(PAGE)} == set(keys(PAGE))


@pytest.mark.parametrize(("key", "path", "name"), named(PAGE), ids=lambda part: part)
def test_named_tests_exist(key, path, name):
    """Under the path and the name that are written down."""
    assert (TESTS / path).is_file()
    assert name in functions(path)


def test_tests_that_carry_a_number_are_named():
    """A test that was made for an oracle or a pitfall stands in the row of its letter or number."""
    known = named(PAGE)
    missing = [
        f"{path}::{name}"
        for path in (file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))
        for name in functions(path)
        if (found := re.match(r"test_(?:oracle_([a-l])|pitfall_(\d+))_", name))
        and (found[1] or found[2], path, name) not in known
    ]
    assert missing == []
