"""An untrained model of any size, with rules to learn by: no speed depends on what was learned."""

import numpy as np
import torch

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.config import ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import ByteVocab
from rlstm_training.evaluation.measurements import (
    Form,
    Measurements,
    Setting,
    Statistics,
    cores_of,
    most_fast_weights,
)

RANK, AXES = 32, 128

# Of a cell no axis is used, but one is measured: without any there would be no subspace.
_STATISTICS = Statistics(heads=8, segments=4, rank=1, embedding_rank=AXES)
_SETTING = Setting(rate=1e-3, decay=1e-3, epsilon=1.0, segment=20)


def untrained(hidden: int, device: torch.device) -> CalibrationSet:
    """Two layers of so many units, over bytes, with statistics of random text.

    Its rules are as those of a served checkpoint: the embedding and the softmax within 128 axes, and all
    biases, which is the default; and full weights.
    """
    config = ModelConfig(vocab_size=ByteVocab().size, hidden_size=hidden, num_layers=2, mogrifier_rank=RANK)
    model = LanguageModel(config).to(device)
    initialise(model, chrono_max=None, generator=torch.Generator(device).manual_seed(0))
    model.requires_grad_(False)
    text = np.random.default_rng(0).integers(config.vocab_size, size=10_000, dtype=np.uint8)
    measured = Measurements(model, [(text, 1)], bos_id=ByteVocab().bos_id, statistics=_STATISTICS)
    num_fast_weights = most_fast_weights(cores_of(model, _STATISTICS), AXES, cells=False)
    forms = Form("subspace", num_fast_weights, AXES), Form("full")
    return CalibrationSet(
        model=model,
        statistics=measured.of(_SETTING.segment),
        choices=tuple(measured.config(_SETTING, form) for form in forms),
    )
