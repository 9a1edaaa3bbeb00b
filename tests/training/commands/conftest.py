"""Shared by the tests of the commands: typing them, and a small model that was trained by one."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from rlstm_model.adaptation.calibration import CalibrationSet, save_calibration
from rlstm_model.checkpoint import ADAPTATION, save
from rlstm_model.vocab import ByteVocab
from rlstm_training.cli import calibrate, evaluate, train
from rlstm_training.evaluation.measurements import Form, Measurements, Setting, Statistics


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
    forms = [*kinds, "--fast-weights", 300, "--rank", 4]
    done = rlstm("calibrate", trained, "--corpus", own_folder, "--on", "three", *quick, *forms, "--json")
    assert done.exit_code == 0, done.output
    return trained, json.loads(done.stdout)


@pytest.fixture
def with_rules(random_model, words, tmp_path):
    """A checkpoint of no training with three rules: full, a subspace of 300, and the output bias."""
    model, folder = random_model(), tmp_path / "tiny"
    save(folder, model, ByteVocab())
    text = np.frombuffer(words(100, 1), dtype=np.uint8)
    statistics = Statistics(heads=2, segments=4, rank=4)
    measured = Measurements(model, [(text, 1)], bos_id=ByteVocab().bos_id, statistics=statistics)
    setting = Setting(rate=1e-2, segment=10)
    forms = Form(kind="full"), Form(kind="subspace", num_fast_weights=300), Form(kind="output_bias")
    choices = tuple(measured.config(setting, form) for form in forms)
    calibrated = CalibrationSet(model=model, statistics=measured.of(setting.segment), choices=choices)
    save_calibration(folder / ADAPTATION, calibrated)
    return folder
