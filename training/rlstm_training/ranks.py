"""Several processes that train one model: each has a share of the batch's rows, all have equal weights.

``torchrun`` starts them and says who is who; gloo carries tensors between CPUs, NCCL between GPUs. What is
drawn at random is drawn whole by every rank, so a run's numbers do not depend on how many there are, but
for the order of sums. Rank 0 alone writes. Shape suffixes: B batch rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

# Longer than rank 0 ever evaluates or writes while the others wait for it.
PATIENCE = timedelta(minutes=30)


class RankError(Exception):
    """Processes that cannot train together, or have lost one of them."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which process this is, among ``size``.

    Whatever they do together raises RankError when one of them is lost.
    """

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
        """Which of ``rows`` rows are this rank's. Raises RankError unless all ranks get as many."""
        if rows % self.size:
            raise RankError(f"{rows} rows cannot be shared equally by {self.size} processes")
        each = rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _together():
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
        mine = mine.contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        with _together():
            distributed.all_gather(parts, mine)
        return torch.cat(parts, dim)

    def told_by_first(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """Rank 0's ``numbers``, for every rank (each passes as many)."""
        if self.size == 1:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64, device=device)
        with _together():
            distributed.broadcast(message, src=0)
        said: list[float] = message.tolist()
        return said

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            with _together():
                distributed.barrier()

    @contextmanager
    def first_ahead(self) -> Iterator[None]:
        """What is inside is done by rank 0 before the others begin it: they find the files that it makes."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()


ALONE = Ranks()


@contextmanager
def launched_ranks(device: torch.device) -> Iterator[Ranks]:
    """The ranks that ``torchrun`` started, connected while the context lasts; alone without ``torchrun``.

    ``device`` is this rank's (:func:`own_device`). Raises RankError when the others do not come.
    """
    if not _launched():
        yield ALONE
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with _together():
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo", timeout=PATIENCE, device_id=device if on_gpu else None
        )
    yield Ranks(rank=distributed.get_rank(), size=distributed.get_world_size())
    # Not after an error: NCCL would wait for answers that nobody gives, and the process ends anyway.
    distributed.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """``device``, or, for "cuda" under ``torchrun``, the GPU with the rank's number on its machine.

    Raises RankError when there is no such GPU, or when one GPU is named for several ranks.
    """
    if device.type != "cuda" or not _launched():
        return device
    local, on_machine = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device != torch.device("cuda"):
        if on_machine > 1:
            raise RankError(f"{device} for {on_machine} processes: say cuda, and each takes a GPU of its own")
        return device
    if local >= torch.cuda.device_count():
        raise RankError(
            f"{on_machine} processes need as many GPUs; this machine has {torch.cuda.device_count()}"
        )
    return torch.device("cuda", local)


def _launched() -> bool:
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def _together() -> Iterator[None]:
    """One exchange with the other ranks."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RankError(f"another process of this run has ended or does not answer ({reason})") from error
