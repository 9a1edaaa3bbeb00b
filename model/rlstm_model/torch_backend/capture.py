"""Capturing: a function of static buffers, recorded once and then run at the price of one launch.

A segment is thousands of small operations, and a GPU is done with each before the next one is launched. A
recording holds their addresses: whoever replays it first puts its values where the recorded ones were.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

# The first runs of an operation choose and load its kernels, which cannot be recorded.
_WARM_UPS = 2

Run: TypeAlias = Callable[[], tuple[Tensor, ...]]
"""Computes from static buffers alone. Nothing in it may ask for a value, or depend on one in Python."""


class Recorded(NamedTuple):
    """``replay`` computes ``results`` anew, in their place, from what is in the buffers now."""

    replay: Callable[[], None]
    results: tuple[Tensor, ...]


class Capture(Protocol):
    """How a function is recorded."""

    def __call__(self, run: Run) -> Recorded:
        """Record ``run``. What its results are before the first replay is not said."""


class CudaGraphs:
    """Records CUDA graphs.

    All share a pool of memory. That is safe in any order of replays as long as no two run at once, inputs lie
    outside the pool, and results are kept by their graph: what else it holds lives no longer than a replay.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Recorded:
        """See :class:`Capture`. Waits for the device."""
        with torch.cuda.device(self._device):
            self._warm_up(run)
            graph = torch.cuda.CUDAGraph()
            # What other threads ask of the device meanwhile is no part of the recording, and no error.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                results = run()
        return Recorded(graph.replay, results)

    def _warm_up(self, run: Run) -> None:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
        current.wait_stream(self._stream)
