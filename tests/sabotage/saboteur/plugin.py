"""A plugin of pytest that lets tests run on a server with one fault.

It is on no path that tests are run with, so no fault gets into a run that did not ask for it:

    PYTHONPATH=tests/sabotage:tests/simulation pytest -p saboteur.plugin --sabotage NAME TEST
"""

from contextlib import ExitStack

import pytest

from saboteur.acts import ACTS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask which."""
    parser.addoption("--sabotage", required=True, choices=sorted(ACTS))


def pytest_configure(config: pytest.Config) -> None:
    """Put the fault in before any test is imported."""
    stack = ExitStack()
    stack.enter_context(ACTS[config.getoption("sabotage")].patch())
    config.add_cleanup(stack.close)
