"""KNOWN_FAULTS.md names every kind of fault, and only tests that exist."""

import pytest
from tests.pages import TESTS, functions, keys, named

PAGE = "KNOWN_FAULTS.md"
KINDS = {"A": 19, "B": 16, "C": 11, "D": 16, "E": 6}


def test_every_known_fault_has_its_row():
    """A1 to E6, each once and in order, each with at least one test."""
    assert keys(PAGE) == [f"{letter}{n}" for letter, last in KINDS.items() for n in range(1, last + 1)]
    assert {key for key, *_ in named(PAGE)} == set(keys(PAGE))


@pytest.mark.parametrize(("key", "path", "name"), named(PAGE), ids=lambda part: part)
def test_named_tests_exist(key, path, name):
    """Under the path and the name that are written down."""
    assert (TESTS / path).is_file()
    assert name in functions(path)
