"""A plugin of pytest that lets tests run on a server with one fault.

It is on no path that tests are run with, so no fault gets into a run that did not ask for it:

    PYTHONPATH=tests/mutation pytest -p mutants.plugin --mutant NAME TEST
"""

from contextlib import ExitStack

import pytest

from mutants.table import MUTANTS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask which."""
    parser.addoption("--mutant", required=True, choices=sorted(MUTANTS))


def pytest_configure(config: pytest.Config) -> None:
    """Put the fault in before any test is imported."""
    stack = ExitStack()
    stack.enter_context(MUTANTS[config.getoption("mutant")].patch())
    config.add_cleanup(stack.close)
