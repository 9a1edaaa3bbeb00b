"""Shared by the tests of the benchmarks: an untrained model, a served one, and typing a command."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from benchmarks.models import Subject
from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.calibration_file import save_calibration
from rlstm_model.checkpoint import ADAPTATION, load, save
from rlstm_model.config import ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.models import ServedModel
from rlstm_training.evaluation.measurements import Form, Measurements, Setting, Statistics

TEXT = b"the sea was calm and cold; the ship sailed.\n" * 20


@pytest.fixture(scope="session")
def network():
    """A small model in torch."""
    model = LanguageModel(ModelConfig(vocab_size=256, hidden_size=8, num_layers=2, mogrifier_rank=3))
    initialise(model, chrono_max=None, generator=torch.Generator().manual_seed(0))
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def subject(network):
    """The same with three rules: a subspace of 300, full, and the output bias."""
    text, statistics = np.frombuffer(TEXT, dtype=np.uint8), Statistics(heads=2, segments=4, rank=4)
    bos_id = ByteVocab().bos_id
    measured = Measurements(network, [(text, 1)], bos_id=bos_id, statistics=statistics)
    setting = Setting(rate=1e-2, decay=0.01, segment=6)
    forms = Form(kind="subspace", num_fast_weights=300), Form(kind="full"), Form(kind="output_bias")
    choices = tuple(measured.config(setting, form) for form in forms)
    calibrated = CalibrationSet(statistics=measured.of(setting.segment), choices=choices)
    return Subject("tiny", network.parameter_arrays, calibrated, bos_id)


@pytest.fixture(scope="session")
def served(tiny_checkpoint):
    """The tiny model, whose rules are full fast weights and the output's bias."""
    return ServedModel.of(load(tiny_checkpoint))


@pytest.fixture
def checkpoint(subject, tmp_path):
    """The small model as a folder."""
    save(tmp_path / "tiny", subject.parameters, ByteVocab())
    save_calibration(tmp_path / "tiny" / ADAPTATION, subject.calibrated)
    return tmp_path / "tiny"


@pytest.fixture
def own_folder(tmp_path):
    """A corpus of the user's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_bytes(TEXT)
    return folder


@pytest.fixture
def type_command():
    """Types a command; the answer has exit_code, stdout and stderr."""

    def call(function, *words):
        return CliRunner().invoke(function, [str(word) for word in words])

    return call
