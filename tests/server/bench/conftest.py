"""Shared by the tests of the benchmarks: a small served model, and targets that only keep time."""

import pytest

from rlstm_model.checkpoint import load
from rlstm_server.engine.models import ServedModel


@pytest.fixture(scope="session")
def served(tiny_checkpoint):
    """The tiny model, whose rules are full fast weights and the output's bias."""
    return ServedModel.of(load(str(tiny_checkpoint), "cpu"))
