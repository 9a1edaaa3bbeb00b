"""The crash matrix is written down, and what counts its rows knows no others."""

import re
from pathlib import Path

import pytest
from simulated.matrix import MATRIX, ROWS, Watch


def test_each_row_is_written_down_once_with_what_is_expected():
    lines = [line for line in MATRIX.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 3 and all(row) for row in cells)
    assert len(set(ROWS)) == len(ROWS) == len(lines) >= 24


def test_a_row_that_is_not_written_down_is_refused():
    with pytest.raises(ValueError, match="no row"):
        Watch(world=None).row("crash-of-the-moon")


def test_every_row_that_is_named_by_its_watch_is_written_down():
    source = (Path(__file__).parent / "simulated" / "matrix.py").read_text()
    named = set(re.findall(r'self\.row\("([a-z-]+)"', source))
    assert named <= set(ROWS)
