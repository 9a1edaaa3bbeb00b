"""Base weights in memory that nobody can write.

A stray in-place operation ends the process, at once and at its place, instead of changing what everybody's
texts are scored by.
"""

import ctypes
import mmap
import os
from typing import Final

import torch
from torch import nn

ALIGNMENT: Final = 64
"""Bytes at whose multiples torch lays its own tensors."""


def guard_weights(model: nn.Module) -> None:
    """Move all weights and buffers of a model on the CPU to one piece of memory, and make that read-only."""
    tensors = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.numel()]
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    memory = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start, offset = 0, 0
    for tensor, size in zip(tensors, sizes, strict=True):
        moved = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        start = start or moved.data_ptr()
        with torch.no_grad():
            tensor.data = moved.view(tensor.shape).copy_(tensor)
        offset += size
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), ctypes.c_int(mmap.PROT_READ)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
