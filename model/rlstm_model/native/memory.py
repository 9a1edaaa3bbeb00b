"""A memory of the newest tokens: n-gram counts that are mixed with what experts say (`src/memory.c`).

A memory is a value: reading gives the one after. Its counts are derived from its tokens; the newest value has
them at hand, and an older one counts again. Shape suffixes: T tokens, V vocabulary, K experts.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from ctypes import c_void_p
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.native.library import library
from rlstm_model.native.packed import Floats, padded, with_room

ORDERS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 20)
"""Tokens of the contexts whose successors are counted."""

CAPACITY: Final = 8_192
"""Tokens that are remembered."""


class Mode(IntEnum):
    """What becomes of the tokens that are read."""

    LOOK = 0  # nothing
    CONTEXT = 1  # they are what the next ones follow
    LEARN = 2  # and they are counted, and the mixing follows them


class Counts:
    """Where contexts occurred among the newest tokens: some 700 kB, made when they are first asked for.

    Those that were used last are held, `HELD` in a process; others are made again, in milliseconds.
    """

    def __init__(self, vocab_size: int, capacity: int, orders: Sequence[int]) -> None:
        """Raises ValueError for orders that do not ascend, or that do not fit."""
        if list(orders) != sorted(set(orders)) or not orders or orders[0] < 1:
            raise ValueError(f"orders must ascend from 1, not {list(orders)}")
        if not 1 <= capacity < (1 << 15) - orders[-1]:
            raise ValueError(f"a memory has 1 to {(1 << 15) - 1 - orders[-1]} tokens, not {capacity}")
        self.vocab_size, self.capacity, self.orders = vocab_size, capacity, tuple(orders)
        self.lock = threading.Lock()
        self.read = 0
        """Tokens so far: a value whose number is another is not of this moment."""
        self._pointer: int | None = None

    def __del__(self) -> None:
        self._free()

    @property
    def kept(self) -> int:
        """Tokens that it is made of, at most: those that are counted, and the context of the oldest."""
        return self.capacity + self.orders[-1]

    def opened(self, memory: "Memory") -> int:
        """What the core knows them by, at the moment of a value. Raises MemoryError. With the lock held."""
        if self._pointer is None or self.read != memory.read:
            self._free()
            lengths = np.array(self.orders, np.int32)
            self._pointer = library().rl_memory_new(
                self.capacity, self.vocab_size, len(self.orders), lengths.ctypes.data
            )
            if not self._pointer:
                raise MemoryError(f"a memory of {self.capacity} tokens does not fit")
            self.add(memory.marked)
            self.read = memory.read
        _hold(self)
        return self._pointer

    def add(self, marked: NDArray[np.int32], context: Sequence[int] = ()) -> None:
        """Read on, after a context, and count what is marked so. Raises ValueError."""
        line = np.array([*context, *(marked >> 1)], np.int32)
        counted = np.ascontiguousarray(marked & 1, np.uint8)
        code = library().rl_memory_add(
            self._pointer, line.ctypes.data, len(context), len(marked), counted.ctypes.data
        )
        if code != 0:
            raise ValueError("a token lies outside the vocabulary")

    def let_go(self) -> bool:
        """Free what it takes, unless it is in use."""
        if not self.lock.acquire(blocking=False):
            return False
        self._free()
        self.lock.release()
        return True

    def _free(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            library().rl_memory_free(pointer)


HELD: Final = 256
"""Counts that a process holds."""

_held: "OrderedDict[int, weakref.ref[Counts]]" = OrderedDict()
_holding = threading.Lock()


def _hold(counts: Counts) -> None:
    """These were used last; of too many those go that were not used for longest."""
    with _holding:
        _held[id(counts)] = weakref.ref(counts)
        _held.move_to_end(id(counts))
        for key in [*_held][: max(0, len(_held) - HELD)]:
            old = _held.pop(key)()
            if old is not None and not old.let_go():
                _held[key] = weakref.ref(old)


class Memory(NamedTuple):
    """A memory at one moment: never written to.

    marked  the newest tokens, oldest first: twice the token, plus 1 where it is counted
    values  float32, what was learned beside the counts: shares of orders, and weights of the mixing
    read    tokens so far
    counts  of the newest value that came of this one
    """

    marked: NDArray[np.int32]
    values: Floats
    read: int
    counts: Counts

    @classmethod
    def start(
        cls, vocab_size: int, experts: int, capacity: int = CAPACITY, orders: Sequence[int] = ORDERS
    ) -> "Memory":
        """Before any token. Raises ValueError for orders that do not ascend."""
        values = np.empty(size_of(experts, orders), np.float32)
        library().rl_memory_begin(len(orders), experts, values.ctypes.data)
        return cls(np.empty(0, np.int32), values, 0, Counts(vocab_size, capacity, orders))

    def mix(
        self, experts: Sequence[Floats], tokens: Sequence[int], mode: Mode, context: Sequence[int] = ()
    ) -> tuple[Floats, "Memory"]:
        """Log-probabilities ``[T, V]`` of the next tokens, of experts' and the memory, and the memory after.

        ``experts`` are ``[T, V]``. ``context``: tokens that were
        read since, and are not in the memory; with them tokens can only be looked at. Each token is counted
        right after it is read, so a text may be cut anywhere. Raises ValueError for a token outside the
        vocabulary, and for other shapes.
        """
        counts = self.counts
        if any(log_probs_TV.shape != (len(tokens), counts.vocab_size) for log_probs_TV in experts):
            raise ValueError("log-probabilities must be of as many tokens, and of the vocabulary")
        newest = [*(self.marked[-counts.orders[-1] :] >> 1), *context][-counts.orders[-1] :]
        line = np.array([*newest, *tokens], np.int32)
        values, stride = self.values.copy(), padded(counts.vocab_size)
        given = [with_room(log_probs_TV, stride) for log_probs_TV in experts]
        mixed = np.empty((len(tokens), stride), np.float32)
        with counts.lock:
            code = library().rl_memory_read(
                counts.opened(self),
                len(experts),
                stride,
                (c_void_p * len(given))(*(rows.ctypes.data for rows in given)),
                len(tokens),
                line.ctypes.data,
                len(newest),
                values.ctypes.data,
                mixed.ctypes.data,
                mode,
            )
            counts.read += len(tokens) if code == 0 and mode is not Mode.LOOK else 0
        if code != 0:
            raise ValueError("a token lies outside the vocabulary")
        rows = mixed[:, : counts.vocab_size]
        if mode is Mode.LOOK:
            return rows, self
        added = np.array(tokens, np.int32) << 1 | (mode is Mode.LEARN)
        return rows, self._after(added, values)

    def follow(self, token: int) -> "Memory":
        """After a token that is context alone, such as the beginning of all text: no expert is asked."""
        return self._after(np.array([token << 1], np.int32), self.values)

    def _after(self, added: NDArray[np.int32], values: Floats) -> "Memory":
        marked = np.concatenate((self.marked, added))[-self.counts.kept :]
        return Memory(marked, values, self.read + len(added), self.counts)

    def stored(self) -> NDArray[Any]:
        """``marked`` in the type and the length of all memories: zeros stand before the oldest token."""
        whole: NDArray[Any] = np.zeros(self.counts.kept, stored_type(self.counts.vocab_size))
        whole[len(whole) - len(self.marked) :] = self.marked
        return whole

    @classmethod
    def restore(
        cls,
        vocab_size: int,
        experts: int,
        stored: NDArray[Any],
        values: Floats,
        *,
        remembered: int,
        read: int,
    ) -> "Memory":
        """What was stored. Raises ValueError for what no reading leads to."""
        empty = cls.start(vocab_size, experts)
        if remembered != min(read, empty.counts.kept):
            raise ValueError(f"{remembered} tokens are not what is left of {read}")
        marked = stored[len(stored) - remembered :].astype(np.int32)
        if marked.size and marked.max() >> 1 >= vocab_size:
            raise ValueError("a token lies outside the vocabulary")
        if not np.isfinite(values).all():
            raise ValueError("a number is not finite")
        return cls(marked, values, read, empty.counts)


def stored_type(vocab_size: int) -> type:
    """What holds marked tokens."""
    return np.uint16 if vocab_size <= 1 << 15 else np.uint32


def size_of(experts: int, orders: Sequence[int] = ORDERS) -> int:
    """How many numbers a memory learns beside its counts."""
    return int(library().rl_memory_learned(len(orders), experts))
