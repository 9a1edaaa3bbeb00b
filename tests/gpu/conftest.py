"""The machines that are compared with the native core: a GPU, and what stands for it where there is none.

In miniature a smaller model is read by recordings in place of graphs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.gpu.recording import record
from tests.model import drawn
from torch.utils._python_dispatch import TorchDispatchMode

from rlstm_model.adaptation.backend import Backend, NativeBackend
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.native.packed import Space
from rlstm_model.parameters import Parameters
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_model.torch_backend.graphs import (
    Capture,
    CudaGraphs,
    GraphedWeights,
    Graphs,
)

BOS, SEGMENT, VOCAB = 1, 6, 64


@dataclass(frozen=True)
class Machine:
    """Where the tested way computes, and how large everything is.

    unwaiting   a context in which nothing may wait for the device
    """

    device: str
    capture: Callable[[], Capture]
    unwaiting: Callable[[], AbstractContextManager[None]]
    hidden: int
    streams: int

    @property
    def parameters(self) -> Parameters:
        """A model with every kind of weight."""
        return drawn.parameters_of(
            1, scale=0.7, vocab_size=VOCAB, hidden_size=self.hidden, mogrifier_rank=8, num_layers=2
        )

    def calibration(self, kind: str) -> Calibration:
        """A rule of that kind with random axes and statistics, by which a few segments move the model."""
        parameters = self.parameters
        space = drawn.draw_space(parameters.arrays, np.random.default_rng(5), (4, 3))._replace(
            dtype=np.float16
        )
        space = {"output_bias": Space({}, ("embedding.bias",)), "full": Space({}, (), whole=True)}.get(
            kind, space
        )
        return drawn.calibration_of(
            parameters, space=space, kind=kind, rate=0.01, decay=0.02, segment=SEGMENT
        )

    def backend(self, kind: str | None, *, plain: bool = False) -> Backend:
        """One that learns, or (None) reads: on this machine by graphs, or (``plain``) the native core."""
        calibration = None if kind is None else self.calibration(kind)
        if plain:
            return NativeBackend(self.parameters, calibration)
        backend = TorchBackend.of(self.parameters, calibration, device=self.device)
        if self.device == "cpu" and kind != "full":
            backend._weights = GraphedWeights(backend._weights, Graphs(self.capture(), spared=0))
        return backend

    def evaluator(self, kind: str, *, plain: bool = False) -> DynamicEvaluator:
        """The same with streams."""
        backend = self.backend(kind, plain=plain)
        return DynamicEvaluator(backend, self.calibration(kind), self.parameters.norm, BOS)


class _NoValues(TorchDispatchMode):
    """What a wait for a device looks like where there is none: a tensor is asked for its value."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ != "_local_scalar_dense", "a tensor was asked for its value"
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _gpu() -> Machine:
    return Machine("cuda", lambda: CudaGraphs(torch.device("cuda")), _no_waits, 192, 40)


def _miniature() -> Machine:
    return Machine("cpu", lambda: record, _NoValues, 16, 9)


@pytest.fixture(params=["miniature", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    """A GPU, by name; else its miniature."""
    if request.param == "gpu":
        return _gpu()
    return _miniature()
