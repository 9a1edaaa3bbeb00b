"""The models that the settings name, each read, verified and put onto the device."""

from __future__ import annotations

import torch

from rlstm_model.adaptation.calibration import CalibrationError
from rlstm_model.checkpoint import Checkpoint, CheckpointError, load
from rlstm_server.engine.guarded import guard_weights
from rlstm_server.engine.models import Models
from rlstm_server.engine.served import ServedModel
from rlstm_server.errors import StartupError
from rlstm_server.settings import ModelSetting, Settings


def load_models(settings: Settings) -> Models:
    """Load them. It takes as long as they are large. Raises StartupError, which names the setting."""
    device = _device(settings)
    try:
        return Models(*(_served(setting, device) for setting in settings.models))
    except (CheckpointError, CalibrationError, ValueError) as error:
        raise StartupError(f"RLSTM_MODEL: {error}") from None


def _device(settings: Settings) -> torch.device:
    present = torch.cuda.is_available()
    if settings.device == "cuda" and not present:
        raise StartupError("RLSTM_DEVICE: cuda was asked for, but this machine has no CUDA device")
    return torch.device("cuda" if settings.device != "cpu" and present else "cpu")


def _served(setting: ModelSetting, device: torch.device) -> ServedModel:
    return ServedModel.of(_guarded(load(setting.place, device), device), setting.name)


def _guarded(checkpoint: Checkpoint, device: torch.device) -> Checkpoint:
    if device.type == "cpu":
        guard_weights(checkpoint.model)
    return checkpoint
