"""The models that the settings name, each read and verified."""

from __future__ import annotations

import ctypes

from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.checkpoint import CheckpointError, load
from rlstm_model.native.library import NativeUnavailable
from rlstm_server.engine.models import Device, Models, ServedModel, finds_gpu
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings


def load_models(settings: Settings) -> Models:
    """Load them. It takes as long as they are large. Raises StartupError, which names the model."""
    device = find_device(settings)
    try:
        return Models(
            *(ServedModel.of(load(setting.place), setting.name, device) for setting in settings.models)
        )
    except (NativeUnavailable, CheckpointError, CalibrationError, ValueError) as error:
        raise StartupError(str(error)) from None


def find_device(settings: Settings) -> Device:
    """What computes: a GPU that torch (the extra `gpu`) finds, unless the CPU is asked for.

    Raises StartupError.
    """
    present = settings.device != "cpu" and _driver_is_here() and finds_gpu()
    if settings.device == "cuda" and not present:
        raise StartupError(
            "RLSTM_DEVICE: cuda was asked for, but there is no CUDA device, or no torch (the extra `gpu`)"
        )
    return "cuda" if present else "cpu"


def _driver_is_here() -> bool:
    """Whether a GPU's driver is here: without one torch, which takes seconds to import, need not be asked."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False
