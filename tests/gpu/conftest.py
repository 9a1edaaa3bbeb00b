"""The machines that the suite compares a plain CPU with: a GPU, and what stands for it where there is none.

In miniature a smaller model is read by recordings in place of graphs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from rlstm_model.adaptation.batch_items import Reader
from rlstm_model.adaptation.padded_rows import PaddedRows
from torch.utils._python_dispatch import TorchDispatchMode

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.evaluator import DynamicEvaluator, frozen_reader
from rlstm_model.config import ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.torch_backend.graphs import (
    Capture,
    CudaGraphs,
    GraphedReading,
    GraphedWeights,
    Graphs,
    Recorded,
    Run,
)
from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

BOS, SEGMENT = 1, 6
RATE = 0.01


@dataclass(frozen=True)
class Machine:
    """Where the tested way computes, and how large everything is.

    unwaiting   a context in which nothing may wait for the device
    """

    device: torch.device
    capture: Callable[[], Capture]
    unwaiting: Callable[[], AbstractContextManager[None]]
    hidden: int
    streams: int

    def model(self, dtype: torch.dtype, device: torch.device | None = None) -> LanguageModel:
        """A model with every kind of weight, the same on each device."""
        config = ModelConfig(
            vocab_size=64, hidden_size=self.hidden, num_layers=2, mogrifier_rounds=4, mogrifier_rank=8
        )
        model = LanguageModel(config)
        initialise(model, chrono_max=20.0, generator=torch.Generator().manual_seed(1))
        return model.to(device or self.device, dtype).requires_grad_(False)

    def calibration(self, model: LanguageModel, kind: str) -> Calibration:
        """See :func:`calibration`."""
        return calibration(model, kind)

    def evaluator(self, kind: str, dtype: torch.dtype, *, plain: bool = False) -> DynamicEvaluator:
        """One that learns: on this machine by graphs, or (``plain``) on the CPU without."""
        model = self.model(dtype, torch.device("cpu") if plain else None)
        evaluator = DynamicEvaluator(model, calibration(model, kind), bos_id=BOS)
        weights = evaluator.fast_weights
        weights = weights.weights if isinstance(weights, GraphedWeights) else weights
        if not plain and isinstance(weights, SubspaceFastWeights):
            evaluator.fast_weights = GraphedWeights(weights, Graphs(self.capture(), spared=0))
            evaluator.rows = replace(evaluator.rows, weights=evaluator.fast_weights)
        return evaluator

    def reader(self, dtype: torch.dtype, *, plain: bool = False) -> Reader:
        """One that reads with the weights as loaded."""
        model = self.model(dtype, torch.device("cpu") if plain else None)
        reader = frozen_reader(model, BOS)
        if plain:
            return reader
        return replace(
            reader, rows=PaddedRows(GraphedReading(FrozenWeights(model), Graphs(self.capture(), spared=0)))
        )


def calibration(model: LanguageModel, kind: str) -> Calibration:
    """A rule of that kind with random axes and statistics, by which a few segments move the model."""
    # Drawn on the CPU, so that all devices have the same.
    generator, like = torch.Generator().manual_seed(5), model.embedding.input
    space = spaces(model, generator).get(kind)
    size = model.config.num_parameters if space is None else space.size
    config = AdaptationConfig(
        kind=kind,
        num_fast_weights=size,
        rule="rms",
        rate=RATE,
        decay=0.02,
        segment=SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=7,
    )
    return Calibration(
        config=config, rms_P=torch.empty(size).uniform_(0.1, 1.0, generator=generator).to(like), space=space
    )


def spaces(model, generator):
    """Kinds by name."""
    like, bases = model.embedding.input, {}
    names = [name for name, _ in model.named_parameters() if not name.endswith("bias")]
    for name in names:
        *rounds, rows, columns = dict(model.named_parameters())[name].shape
        rank = 3 if name == "stack.layers.1.h" else 4
        left, right = (
            torch.linalg.qr(torch.randn(*rounds, side, min(side, rank), generator=generator))[0].to(like)
            for side in (rows, columns)
        )
        bases[name] = Basis(left, right.mT.contiguous())
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    half = torch.float16 if like.dtype == torch.float32 else None
    return {
        "subspace": SubspaceFastWeights(model, bases, biases, storage=half),
        "output_bias": SubspaceFastWeights(model, {}, ["embedding.bias"]),
    }


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
    device = torch.device("cuda")
    return Machine(device, lambda: CudaGraphs(device), _no_waits, 192, 40)


def _run_again(run: Run) -> Recorded:
    """A recording by name only: a replay runs the function once more."""
    results = run()

    def replay() -> None:
        for kept, computed in zip(results, run(), strict=True):
            kept.copy_(computed)

    return Recorded(replay, results)


def _miniature() -> Machine:
    return Machine(torch.device("cpu"), lambda: _run_again, _NoValues, 16, 9)


@pytest.fixture(params=["miniature", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    """A GPU, by name; else its miniature."""
    if request.param == "gpu":
        return _gpu()
    return _miniature()
