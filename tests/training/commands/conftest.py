"""Shared by the tests of the commands: typing them, and a small model that was trained by one."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.cli import calibrate, evaluate, train


@pytest.fixture
def rlstm():
    """Types a command; the answer has exit_code, stdout and stderr."""
    app = typer.Typer()
    for function in (train, calibrate, evaluate):
        app.command()(function)

    def call(*words, stdin=None):
        return CliRunner().invoke(app, [str(word) for word in words], input=stdin)

    return call


@pytest.fixture
def trained(rlstm, corpora, own_folder, tmp_path):
    """A model of the tiny recipe after a few steps on a folder of the user's own, calibrated."""
    done = rlstm(
        "train", "tiny", "--corpus", own_folder, "--run", tmp_path / "run", "--steps", 6, "--threads", 1
    )
    assert done.exit_code == 0, done.output
    return tmp_path / "run" / "tiny"


@pytest.fixture
def calibrated(rlstm, trained, own_folder):
    quick = ["--heads", 2, "--segments", 2, "--length", 100, "--rate", 1e-3, "--rate", 1e-2, "--decay", 0]
    kinds = ["--kind", "full", "--kind", "subspace", "--kind", "output_bias"]
    forms = [*kinds, "--coordinates", 300, "--rank", 4]
    done = rlstm("calibrate", trained, "--corpus", own_folder, "--on", "three", *quick, *forms, "--json")
    assert done.exit_code == 0, done.output
    return trained, json.loads(done.stdout)
