"""The native core: windows of text through a model on a CPU, forward and backward, without padding of rows.

`src/` is C, built when the distribution is installed (`hatch_build.py`); this is its face. Bits of a row do
not depend on other rows, on their order, or on the number of threads.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int64, c_void_p
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.native.library import NativeUnavailable, library
from rlstm_model.native.packed import Floats, PackedModel, address, padded, with_room
from rlstm_model.native.structures import RecallStruct, RowStruct, StepStruct

__all__ = [
    "Mixed",
    "NativeUnavailable",
    "PackedModel",
    "Pool",
    "Row",
    "Step",
    "Window",
    "identity",
    "instructions",
    "mix",
    "pool",
    "set_threads",
]


REVISION: Final = 4
"""Of what is computed, by the last bit: it grows when a change of ours changes one."""


class Row(NamedTuple):
    """One row of a window.

    ids        inputs, each an id of the vocabulary
    states_2U  h and c of all layers before them
    delta_P    its fast weights, in the model's dtype of them; None is zero
    targets    to be learned from, with the ``loss_weights`` of each; empty learns nothing
    rate       of the step that is taken after the window; None takes none
    gradient   whether it is wanted
    into_P     where its fast weights after the step are put; None: an array of their own
    """

    ids: Sequence[int]
    states_2U: Floats
    delta_P: NDArray[Any] | None = None
    targets: Sequence[int] = ()
    loss_weights: Sequence[float] = ()
    rate: float | None = None
    gradient: bool = False
    into_P: NDArray[Any] | None = None


class Step(NamedTuple):
    """What became of a step.

    delta_P        the fast weights after it; those before where it was not ``taken``
    taken          whether it was finite
    scale          what they were cut back by to the greatest norm; 1 where they were not
    norm           before that
    gradient_norm  of what was learned from
    """

    delta_P: NDArray[Any]
    taken: bool
    scale: float
    norm: float
    gradient_norm: float


class Window(NamedTuple):
    """What a row gave.

    log_probs_TV  natural log-probabilities of the next token after each input
    states_2U     h and c after all of them
    step          None where none was taken
    gradient_P    of the sum of weighted losses at the fast weights; None where it was not wanted
    """

    log_probs_TV: Floats
    states_2U: Floats
    step: Step | None
    gradient_P: Floats | None = None


class Pool:
    """Threads that share windows: one window at a time, so calls of several threads take turns."""

    def __init__(self, threads: int) -> None:
        """Raises ValueError below one thread, MemoryError where threads cannot be started."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.threads = threads
        self._library = library()
        self._lock = threading.Lock()
        self._pool: int | None = self._library.rl_pool_new(threads)
        if not self._pool:
            raise MemoryError(f"{threads} threads cannot be started")

    def close(self) -> None:
        """End the threads. Twice is once."""
        with self._lock:
            pool, self._pool = self._pool, None
            if pool:
                self._library.rl_pool_free(pool)

    def __del__(self) -> None:
        if getattr(self, "_pool", None):
            self.close()

    def window(self, model: PackedModel, rows: Sequence[Row], *, temperature: float = 1.0) -> list[Window]:
        """Read a window in every row, at least one, and learn where a row has targets.

        ``temperature``, between 1e-12 and 1e12, multiplies the logits. Rows that learn have one length, and
        no other is longer. Raises ValueError for rows that do not fit, or for ids outside the vocabulary.
        """
        if not rows:
            raise ValueError("rows do not fit: there are none")
        if any(row.states_2U.shape != (2, model.units) for row in rows):
            raise ValueError(f"an array must be states [2, {model.units}]")
        # those that learn come first, then longer ones, then those with fast weights
        keys = [(not len(row.targets), -len(row.ids), row.delta_P is None) for row in rows]
        order = sorted(range(len(rows)), key=keys.__getitem__)
        buffers = _Buffers(model, [rows[i] for i in order])
        with self._lock:
            if self._pool is None:
                raise ValueError("the pool is closed")
            code = self._library.rl_window(
                self._pool, byref(model.struct), len(rows), buffers.structs, temperature
            )
        if code == -1:
            raise MemoryError("a window needs more memory than there is")
        if code != 0:
            raise ValueError("rows do not fit the model, or each other, or the temperature is none")
        windows = dict(zip(order, buffers.windows(), strict=True))
        return [windows[i] for i in range(len(rows))]

    def recall(self, recalls: "ctypes.Array[RecallStruct]") -> None:
        """Read on in memories, of which none is the same, by all threads: each takes whole ones."""
        with self._lock:
            if self._pool is None:
                raise ValueError("the pool is closed")
            self._library.rl_recall_all(self._pool, len(recalls), recalls)


class _Buffers:
    """What the core reads of rows, small things in one piece for all, and where it writes what that gives."""

    def __init__(self, model: PackedModel, rows: Sequence[Row]) -> None:
        self._vocab_size, self._rows = model.config.vocab_size, rows
        self.structs = (RowStruct * len(rows))()
        self._steps = (StepStruct * len(rows))()
        self._states_N2U = np.array([row.states_2U for row in rows], np.float32)
        self._log_probs: list[Floats] = []
        self._gradients: list[Floats | None] = []
        self._after: list[NDArray[Any] | None] = []
        self._joined = [
            _join([row.ids for row in rows], np.int32),
            _join([row.targets for row in rows], np.int32),
            _join([row.loss_weights for row in rows], np.float32),
        ]
        state, step = address(self._states_N2U), ctypes.addressof(self._steps)
        small = zip(*(places for _, places in self._joined), strict=True)
        for struct, row, (ids, targets, loss) in zip(self.structs, rows, small, strict=True):
            self._fill(struct, model, row)
            struct.ids, struct.state, struct.step = ids, state, step
            if len(row.targets):
                struct.targets, struct.loss = targets, loss
            state, step = state + self._states_N2U.strides[0], step + ctypes.sizeof(StepStruct)

    def _fill(self, struct: RowStruct, model: PackedModel, row: Row) -> None:
        length, learned = len(row.ids), len(row.targets)
        if (row.gradient or row.rate is not None) and not learned:
            raise ValueError("a row without targets has no gradient, and takes no step")
        if learned not in (0, length) or len(row.loss_weights) != learned:
            raise ValueError(f"rows do not fit: {length} inputs, {learned} targets to be learned from")
        log_probs = np.empty((length, model.padded_vocab), np.float32)
        gradient = np.empty(model.fast_weights, np.float32) if row.gradient else None
        after = None
        if row.rate is not None:
            after = np.empty(model.fast_weights, model.dtype) if row.into_P is None else row.into_P
        self._log_probs.append(log_probs)
        self._gradients.append(gradient)
        self._after.append(after)
        struct.length, struct.rate = length, row.rate or 0.0
        struct.log_probs = address(log_probs)
        struct.delta = _address(row.delta_P, model.dtype, model.fast_weights)
        struct.delta_after = _address(after, model.dtype, model.fast_weights)
        struct.gradient = None if gradient is None else address(gradient)

    def windows(self) -> Iterator[Window]:
        """What the rows gave."""
        given = zip(self._log_probs, self._states_N2U, self._gradients, self._after, self._steps, strict=True)
        for log_probs, states_2U, gradient, after, done in given:
            step = None
            if after is not None:
                step = Step(after, bool(done.taken), done.scale, done.norm, done.gradient_norm)
            yield Window(log_probs[:, : self._vocab_size], states_2U, step, gradient)


def _join(parts: Sequence[Sequence[float]], dtype: type) -> tuple[NDArray[Any], list[int]]:
    """Parts of 4-byte values side by side, and the address of each."""
    joined: NDArray[Any] = np.array([value for part in parts for value in part], dtype)
    places = accumulate((4 * len(part) for part in parts[:-1]), initial=address(joined))
    return joined, list(places)


def _address(array: NDArray[Any] | None, dtype: type, size: int) -> int | None:
    if array is None:
        return None
    if array.dtype != dtype or array.size != size or not array.flags.c_contiguous:
        raise ValueError(
            f"an array must be {size} contiguous {np.dtype(dtype)}, not {array.shape} {array.dtype}"
        )
    return address(array)


_threads: list[int] = []
MAX_THREADS: Final = 1_024


def set_threads(threads: int) -> None:
    """How many threads :func:`pool` has from now on where nothing else is said."""
    _threads[:] = [threads]


def pool(threads: int | None = None) -> Pool:
    """The pool of so many threads that this process shares.

    None is what :func:`set_threads` said, or RLSTM_THREADS, or one for each core. Raises NativeUnavailable.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = next(iter(_threads), 0) or _asked() or cores
    return _pool(threads)


def _asked() -> int:
    said = os.environ.get("RLSTM_THREADS") or "0"
    if not said.isdecimal() or int(said) > MAX_THREADS:
        raise NativeUnavailable(f"RLSTM_THREADS: 1 to {MAX_THREADS:,}, not {said!r}")
    return int(said)


@cache
def _pool(threads: int) -> Pool:
    return Pool(threads)


def identity() -> str:
    """What tells builds apart whose bits differ: machines of one identity compute the same bits.

    Such as ``fma-r1``: whether products and sums are rounded once, and the revision of what is computed.
    """
    return f"{library().rl_identity().decode()}-r{REVISION}"


def instructions() -> str:
    """The instruction set in use: "avx512", "avx2", "neon" or "portable"; RLSTM_INSTRUCTIONS asks for one."""
    return str(library().rl_instructions().decode())


class Mixed(NamedTuple):
    """What a mixture made of T tokens; see :mod:`rlstm_model.adaptation.mixture` for the arithmetic.

    logprobs_T        of the targets, float64
    ranks_T           1 is the most probable token; ties go to the lower id. None where they were not wanted
    entropies_T       of the distributions, in nats; None likewise
    log_probs_TV      the mixture's distributions; None likewise
    weights_K, tokens the mixture after the tokens that were read
    broken_K          experts that computed no distribution of some token
    read              tokens before the first that no expert computed a distribution of
    """

    logprobs_T: NDArray[np.float64]
    ranks_T: NDArray[np.int32] | None
    entropies_T: Floats | None
    log_probs_TV: Floats | None
    weights_K: NDArray[np.float64]
    tokens: int
    broken_K: NDArray[np.bool_]
    read: int

    @property
    def whole(self) -> bool:
        """Whether some expert was heard at each token."""
        return self.read == len(self.logprobs_T)


def mix(
    experts: Sequence[Floats],
    targets_T: NDArray[np.int32],
    weights_K: NDArray[np.float64],
    tokens: int,
    *,
    scores: bool = True,
    whole: bool = False,
) -> Mixed:
    """Mix experts' log-probabilities ``[T, V]`` of the next tokens, and let their weights follow the targets.

    ``experts`` as :meth:`Pool.window` gave them have room for padding, and others are copied. ``scores``:
    ranks and entropies are wanted; ``whole``: distributions too. Raises ValueError for experts of different
    shapes, more than 64 of them, or targets outside the vocabulary.
    """
    length, vocabulary = experts[0].shape
    if any(log_probs_TV.shape != (length, vocabulary) for log_probs_TV in experts):
        raise ValueError("experts' log-probabilities must have one shape")
    stride = padded(vocabulary)
    rows = [with_room(log_probs_TV, stride) for log_probs_TV in experts]
    logprobs, weights, count = np.empty(length), weights_K.astype(np.float64), c_int64(tokens)
    ranks = np.empty(length, np.int32) if scores or whole else None
    entropies = np.empty(length, np.float32) if scores or whole else None
    mixed = np.empty((length, stride), np.float32) if whole else None
    broken = np.zeros(len(experts), np.uint8)
    read = library().rl_mix(
        len(experts),
        vocabulary,
        stride,
        (c_void_p * len(rows))(*(address(log_probs_TV) for log_probs_TV in rows)),
        length,
        _address(targets_T, np.int32, length),
        address(weights),
        byref(count),
        address(logprobs),
        None if ranks is None else address(ranks),
        None if entropies is None else address(entropies),
        None if mixed is None else address(mixed),
        address(broken),
    )
    if read < 0:
        raise ValueError("targets must be of the vocabulary, and experts 64 at most")
    distributions = None if mixed is None else mixed[:, :vocabulary]
    return Mixed(logprobs, ranks, entropies, distributions, weights, count.value, broken.view(np.bool_), read)
