"""The identity of the numbers: what two machines must share to compute the same bits."""

import torch

from rlstm_model.language_model import LanguageModel

ROW_TILE = 1
"""Rows that are computed in one call. Sessions of different tiles agree to about 1e-6 only."""


def numerics_id(model: LanguageModel) -> str:
    """The libraries, the device, the dtype and the tile, such as ``torch2.11.0-cpu-AVX2-float32-tile1``.

    Two servers with the same id give a session the same scores to the last bit; others agree to about
    1e-4 nats a token.
    """
    weight = model.embedding.input
    dtype = str(weight.dtype).removeprefix("torch.")
    parts = (f"torch{torch.__version__}", weight.device.type, _unit(weight.device), dtype, f"tile{ROW_TILE}")
    return "-".join(part.replace(" ", "_") for part in parts)


def _unit(device: torch.device) -> str:
    """What within the device decides the order of additions: its model, or the CPU's vector units."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    algebra = "mkl" if torch._C.has_mkl else "blas"
    return f"{torch.backends.cpu.get_cpu_capability()}-{algebra}"
