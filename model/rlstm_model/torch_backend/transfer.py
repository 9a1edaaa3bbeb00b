"""Numbers between Python and a device: as few waits as there can be.

A copy to a GPU from ordinary memory waits until the GPU has done everything before it, and nothing new is
launched meanwhile; from pinned memory nobody waits. A copy back waits always, so figures go together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def send(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, or nested lists of them, as a tensor on a device."""
    pinned = device.type == "cuda"
    return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)


def fetch(*figures_N: Tensor) -> list[list[float]]:
    """The values of vectors of one length: one copy for all of them."""
    return torch.stack([figure_N.double() for figure_N in figures_N]).tolist()


def needed(flags_N: Tensor) -> bool:
    """Whether any flag is set. On a GPU always: to know would take a wait, to do what is not needed less."""
    return flags_N.is_cuda or bool(flags_N.any())
