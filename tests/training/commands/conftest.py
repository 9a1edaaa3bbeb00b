"""Shared by the tests of the commands: a small model, trained and calibrated once."""

import json
import shutil

import pytest

from rlstm_training.corpora import ENVIRONMENT

QUICK = ["--heads", 2, "--segments", 2, "--length", 100, "--rate", 1e-3, "--rate", 1e-2, "--decay", 0]
KINDS = ["--kind", "full", "--kind", "subspace", "--kind", "output_bias", "--rank", 4, "--fast-weights", 300]


@pytest.fixture(scope="session")
def own_folder(shared_own):
    """A corpus of the user's own, to be read only."""
    return shared_own


@pytest.fixture(scope="session")
def once(rlstm, own_folder, shared_corpora, tmp_path_factory):
    """A run of the tiny recipe after a few steps, the same calibrated, and what that said."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT, str(shared_corpora))
        words = ["--corpus", own_folder, "--run", folder / "run", "--steps", 6, "--threads", 1]
        done = rlstm("train", "tiny", *words)
        assert done.exit_code == 0, done.output
        shutil.copytree(folder / "run", folder / "calibrated")
        model = folder / "calibrated" / "tiny"
        done = rlstm("calibrate", model, "--corpus", own_folder, "--on", "three", *QUICK, *KINDS, "--json")
        assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


@pytest.fixture
def trained(once, corpora, tmp_path):
    """A copy of the trained model, in its run directory."""
    shutil.copytree(once[0] / "run", tmp_path / "run")
    return tmp_path / "run" / "tiny"


@pytest.fixture
def calibrated(once, corpora, tmp_path):
    """A copy of the calibrated one, and what calibration said."""
    shutil.copytree(once[0] / "calibrated", tmp_path / "run")
    return tmp_path / "run" / "tiny", once[1]
