"""A model small enough for any test, as a checkpoint folder."""

from dataclasses import replace

import pytest
import torch

from rlstm_model import checkpoint as checkpoints
from rlstm_model.adaptation.calibration import (
    CalibrationSet,
    GradientStatistics,
    measure_rms,
    save_calibration,
)
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.initialisation import initialise
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import ByteVocab

SEGMENT = 8


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A checkpoint of two small random layers over bytes; all weights may be fast, or the output's biases."""
    model = LanguageModel(ModelConfig(vocab_size=256, hidden_size=12, num_layers=2, mogrifier_rounds=2))
    initialise(model, chrono_max=20.0, generator=torch.Generator().manual_seed(1))
    path = tmp_path_factory.mktemp("checkpoints") / "tiny"
    checkpoints.save(path, model, ByteVocab())
    texts = [list(b"the quick brown fox jumps over the lazy dog " * 4)]
    rms, count = measure_rms(model, texts, segment=SEGMENT, reduction="mean", bos_id=10)
    config = AdaptationConfig(
        kind="full",
        num_fast_weights=model.config.num_parameters,
        rule="rms",
        rate=0.003,
        segment=SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=count,
    )
    calibrated = CalibrationSet(
        model=model,
        statistics=GradientStatistics(full_P=rms),
        choices=(config, replace(config, kind="output_bias", num_fast_weights=256)),
    )
    save_calibration(path / checkpoints.ADAPTATION, calibrated)
    return path
