"""A model small enough for any test, as a checkpoint folder."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings

from rlstm_model import checkpoint as checkpoints
from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.calibration_file import save_calibration
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import ByteVocab

SEGMENT = 8

# A first call can take longer than a deadline; examples are not kept between runs.
settings.register_profile("quick", max_examples=25, deadline=None, database=None)
settings.register_profile("long", max_examples=200, deadline=None, database=None)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A checkpoint of two small random layers over bytes; all weights may be fast, or the output's biases."""
    config = ModelConfig(vocab_size=256, hidden_size=12, num_layers=2, mogrifier_rounds=2)
    generator = np.random.default_rng(1)
    arrays = {
        name: (generator.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes(config).items()
    }
    path = tmp_path_factory.mktemp("checkpoints") / "tiny"
    checkpoints.save(path, Parameters(config, arrays), ByteVocab())
    rms = {
        name: generator.uniform(0.002, 0.02, array.shape).astype(np.float32) for name, array in arrays.items()
    }
    rule = AdaptationConfig(
        kind="full",
        num_fast_weights=config.num_parameters,
        rule="rms",
        rate=0.003,
        segment=SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=20,
    )
    calibrated = CalibrationSet(
        statistics=GradientStatistics(rms=rms, axes={}, cores={}),
        choices=(rule, replace(rule, kind="output_bias", num_fast_weights=256)),
    )
    save_calibration(path / checkpoints.ADAPTATION, calibrated)
    return path
