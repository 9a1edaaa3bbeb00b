"""Several processes that train one model: each has a share of the batch's rows, all have equal weights.

``torchrun`` starts them and says who is who; gloo carries tensors between CPUs, NCCL between GPUs. What is
drawn at random is drawn whole by every rank, so a run's numbers do not depend on how many there are, but
for the order of sums. Rank 0 alone writes. Shape suffixes: B batch rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which process this is, among ``size``."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is none of {self.size}")

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Which of ``rows`` rows are this rank's. Raises ValueError unless all ranks get as many."""
        if rows % self.size:
            raise ValueError(f"{rows} rows cannot be shared equally by {self.size} processes")
        each = rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.size
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def gather_rows(self, mine: Tensor, dim: int) -> Tensor:
        """All ranks' rows, joined along ``dim`` in order, for every rank."""
        if self.size == 1:
            return mine
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(parts, mine.contiguous())
        return torch.cat(parts, dim)

    def told_by_first(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """Rank 0's ``numbers``, for every rank (each passes as many)."""
        if self.size == 1:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64, device=device)
        distributed.broadcast(message, src=0)
        said: list[float] = message.tolist()
        return said

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            distributed.barrier()


ALONE = Ranks()


@contextmanager
def launched_ranks(device: torch.device) -> Iterator[Ranks]:
    """The ranks that ``torchrun`` started, connected while the context lasts; alone without ``torchrun``."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield ALONE
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(rank=distributed.get_rank(), size=distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
