"""Fast weights on a GPU: what is done with a segment is a recorded graph, one for each bucket of rows.

A segment is thousands of small operations, and a GPU is done with each before the next one is launched. So
they are recorded once, and run at the price of one launch. A recording holds addresses: whoever replays it
first puts its values where the recorded ones were. What reads and learns is any other kind of weights.
Rows are padded to a power of two times the tile, so that there are few graphs, by rows that are none: token 0
from a state of zero, of weight zero. A graph is only made for what comes again, and the one that was used
longest ago makes room.
Without one the same is launched on the same buffers: bits depend on the bucket, not on what was there before.
Shape suffixes: T tokens of a segment, N rows, V vocabulary, P fast weights of a row.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlstm_model.network.state import State
from rlstm_model.torch_backend.fast_weights import FastWeights, FullFastWeights, Learned

# The first runs of an operation choose and load its kernels, which cannot be recorded.
_WARM_UPS = 2

Run: TypeAlias = Callable[[], tuple[Tensor, ...]]
"""Computes from static buffers alone. Nothing in it may ask for a value, or depend on one in Python."""

Capture: TypeAlias = "Callable[[Run], Recorded]"
"""How a function is recorded: :class:`CudaGraphs`, or what the tests put in its place."""


class Recorded(NamedTuple):
    """``replay`` computes ``results`` anew, in their place, from what is in the buffers now."""

    replay: Callable[[], None]
    results: tuple[Tensor, ...]


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
        """Record ``run``; what its results are before the first replay is not said. Waits for the device."""
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


class Given(NamedTuple):
    """What is worked on: deltas ``[N, P]`` (None: all are zero), ids, states, targets and weights."""

    delta: Tensor | None
    ids: Tensor
    h: Tensor
    c: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None

    @property
    def state(self) -> State:
        """Of all rows."""
        return State(self.h, self.c)


# A GPU waits for launches, not for sums: so many rows take hardly longer than a tile.
_LEAST_ROWS = 256

Operation = Callable[[Given, float], tuple[Tensor, ...]]


class _Key(NamedTuple):
    """What two operations must share to be one graph; ``own``: whether rows have deltas."""

    name: str
    tokens: int
    rows: int
    own: bool
    temperature: float


class StaticBuffer:
    """A static buffer, some of whose rows hold values, and the others zeros.

    Rows are counted along ``dim``.
    """

    def __init__(self, like: Tensor, dim: int, rows: int) -> None:
        shape = list(like.shape)
        shape[dim] = rows
        self.buffer = like.new_zeros(shape)
        self._dim = dim
        self._filled = 0

    def fill(self, value: Tensor) -> Tensor:
        """Copy ``value`` into the first rows: the whole buffer, in which nothing else is left."""
        rows = value.shape[self._dim]
        self.buffer.narrow(self._dim, 0, rows).copy_(value, non_blocking=True)
        if rows < self._filled:
            self.buffer.narrow(self._dim, rows, self._filled - rows).zero_()
        self._filled = rows
        return self.buffer


class Graphs:
    """Recorded operations, ``limit`` at most, and the buffers that they share: no two are replayed at once.

    One is recorded when it has come ``spared`` times before: a text's odd end may never come again.
    """

    def __init__(self, capture: Capture, *, limit: int = 64, spared: int = 2) -> None:
        self._capture = capture
        self._limit = limit
        self._spared = spared
        self._recorded: OrderedDict[_Key, Recorded] = OrderedDict()
        self._times: OrderedDict[_Key, int] = OrderedDict()
        self._buffers: dict[tuple[str, torch.Size, torch.dtype], StaticBuffer] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def run(
        self, operation: Operation, name: str, given: Given, rows: int, temperature: float
    ) -> tuple[Tensor, ...]:
        """Results of ``rows`` rows, the given ones first; they last until the next run."""
        key = _Key(name, len(given.ids), rows, given.delta is not None, temperature)
        static = self._laid(given, rows)
        if key not in self._recorded:
            if not self._worth_it(key):
                return operation(static, temperature)
            self._recorded[key] = self._capture(partial(operation, static, temperature))
            # Only now: recording has waited for every replay, so that none is taken away from under way.
            if len(self._recorded) > self._limit:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        self._recorded[key].replay()
        return self._recorded[key].results

    def _worth_it(self, key: _Key) -> bool:
        times = self._times.pop(key, 0)
        if times >= self._spared:
            return True
        self._times[key] = times + 1
        if len(self._times) > 4 * self._limit:
            self._times.popitem(last=False)
        return False

    def _laid(self, given: Given, rows: int) -> Given:
        """The same in static buffers."""
        named = given._asdict().items()
        return given._replace(
            **{
                name: self._buffer(name, value, rows).fill(value)
                for name, value in named
                if value is not None
            }
        )

    def _buffer(self, name: str, like: Tensor, rows: int) -> StaticBuffer:
        dim = 0 if name == "delta" else 1
        shape = torch.Size((*like.shape[:dim], rows, *like.shape[dim + 1 :]))
        key = (name, shape, like.dtype)
        if key not in self._buffers:
            self._buffers[key] = StaticBuffer(like, dim, rows)
        return self._buffers[key]


class GraphedWeights(FastWeights):
    """Other weights by graphs; ``least``: rows that a bucket has at least."""

    def __init__(self, weights: FastWeights, graphs: Graphs, least: int = 1, at_once: int = 1024) -> None:
        super().__init__(weights.model)
        self.weights, self.graphs = weights, graphs
        self.size, self.tile, self.at_once, self._least = weights.size, weights.tile, at_once, least

    def logits(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, temperature: float
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`."""
        return self.weights.logits(delta_NP, ids_TN, state, temperature)

    @torch.no_grad()
    def read(
        self, delta_NP: Tensor | None, ids_TN: Tensor, state: State, *, temperature: float = 1.0
    ) -> tuple[Tensor, State]:
        """See :class:`FastWeights`."""
        logits_TNV, h, c = self._run(self._read, "read", Given(delta_NP, ids_TN, *state), temperature)
        return logits_TNV, State(h, c)

    @torch.no_grad()
    def learn(
        self,
        delta_NP: Tensor | None,
        ids_TN: Tensor,
        targets_TN: Tensor,
        weights_TN: Tensor,
        state: State,
        *,
        temperature: float = 1.0,
    ) -> Learned:
        """See :class:`FastWeights`."""
        if delta_NP is None:  # spares a graph: zeros learn the same
            delta_NP = state.h.new_zeros(ids_TN.shape[1], self.size)
        given = Given(delta_NP, ids_TN, *state, targets_TN, weights_TN)
        logits_TNV, h, c, gradient_NP = self._run(self._learn, "learn", given, temperature)
        return Learned(logits_TNV, State(h, c), gradient_NP)

    def _run(self, operation: Operation, name: str, given: Given, temperature: float) -> list[Tensor]:
        """Results of the given rows: logits and states, to be kept, and what else there is as it lies."""
        rows = given.ids.shape[1]
        padded = bucket(max(rows, self._least), self.tile)
        if padded > self.at_once:
            return [*operation(given, temperature)]
        logits_TNV, h, c, *own = self.graphs.run(operation, name, given, padded, temperature)
        return [*(kept[:, :rows].clone() for kept in (logits_TNV, h, c)), *(part_N[:rows] for part_N in own)]

    def _read(self, given: Given, temperature: float) -> tuple[Tensor, ...]:
        logits_TNV, after = self.weights.read(given.delta, given.ids, given.state, temperature=temperature)
        return logits_TNV, *after

    def _learn(self, given: Given, temperature: float) -> tuple[Tensor, ...]:
        assert given.targets is not None
        assert given.weights is not None
        learned = self.weights.learn(
            given.delta, given.ids, given.targets, given.weights, given.state, temperature=temperature
        )
        return learned.logits_TNV, *learned.state, learned.gradient_NP


def bucket(rows: int, tile: int) -> int:
    """The least power of two times the tile that holds so many rows."""
    return tile << max(0, (-(-rows // tile) - 1).bit_length())


def graphed(weights: FastWeights) -> FastWeights:
    """The same by graphs, where the model lies on a CUDA device and all rows are done at once.

    The kind ``full`` stays as it is: its rows are done one by one.
    """
    device = weights.model.embedding.input.device
    if device.type != "cuda" or isinstance(weights, FullFastWeights):
        return weights
    return GraphedWeights(weights, Graphs(CudaGraphs(device)), _LEAST_ROWS)
