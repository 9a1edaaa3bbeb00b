"""PITFALLS.md names every oracle and pitfall, and only tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| (\w+) \| .+ \| (.+) \|$", (TESTS / "PITFALLS.md").read_text(), re.MULTILINE)
NAMED = [(key, *name.split("::")) for key, cell in ROWS for name in re.findall(r"`([^`]+::[^`]+)`", cell)]


@cache
def _functions(path):
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_oracle_and_pitfall_has_its_row():
    """Oracles a to l, pitfalls 1 to 38, each once and in order, each with at least one test."""
    assert [key for key, _ in ROWS] == [*"abcdefghijkl", *map(str, range(1, 39))]
    assert {key for key, *_ in NAMED} == {key for key, _ in ROWS}


@pytest.mark.parametrize(("key", "path", "name"), NAMED, ids=lambda part: part)
def test_named_tests_exist(key, path, name):
    """Under the path and the name that are written down."""
    assert (TESTS / path).is_file()
    assert name in _functions(path)


def test_tests_that_carry_a_number_are_named():
    """A test that was made for an oracle or a pitfall stands in the row of its letter or number."""
    missing = [
        f"{path}::{name}"
        for path in (file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))
        for name in _functions(path)
        if (found := re.match(r"test_(?:oracle_([a-l])|pitfall_(\d+))_", name))
        and (found[1] or found[2], path, name) not in NAMED
    ]
    assert missing == []
