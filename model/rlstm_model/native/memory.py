"""A memory of the newest tokens: n-gram counts that are mixed with what experts say (`src/memory.c`).

A memory is a value: reading gives the one after. Its counts are derived from its tokens; the
newest value has it at hand, and an older one counts again. Shape suffixes: T tokens, V vocabulary, K experts.
"""

from collections.abc import Sequence
from ctypes import c_void_p
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.native.library import library
from rlstm_model.native.packed import Floats, padded

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
    """Counts of what followed contexts among the newest tokens. Not thread-safe."""

    def __init__(self, vocab_size: int, capacity: int, orders: Sequence[int]) -> None:
        """Raises ValueError for orders that do not ascend, MemoryError where there is no room."""
        if list(orders) != sorted(set(orders)) or not orders or orders[0] < 1:
            raise ValueError(f"orders must ascend from 1, not {list(orders)}")
        self.vocab_size, self.capacity, self.orders = vocab_size, capacity, tuple(orders)
        self.read = 0
        """Tokens so far: a value whose number is another is not of this moment."""
        self._library = library()
        lengths = np.array(orders, np.int32)
        self.pointer: int | None = self._library.rl_memory_new(
            capacity, vocab_size, len(orders), lengths.ctypes.data
        )
        if not self.pointer:
            raise MemoryError(f"a memory of {capacity} tokens does not fit")

    def __del__(self) -> None:
        if pointer := getattr(self, "pointer", None):
            self._library.rl_memory_free(pointer)

    @property
    def kept(self) -> int:
        """Tokens that it is made of, at most: those that are counted, and the context of the oldest."""
        return self.capacity + self.orders[-1]

    def add(self, marked: NDArray[np.int32]) -> None:
        """Count the tokens of a value again."""
        ids, counted = np.ascontiguousarray(marked >> 1), np.ascontiguousarray(marked & 1, np.uint8)
        if self._library.rl_memory_add(self.pointer, ids.ctypes.data, len(ids), counted.ctypes.data):
            raise ValueError("a token lies outside the vocabulary")


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

        ``experts`` are ``[T, V]``, with room for padding (:meth:`Pool.window`). ``context``: tokens that were
        read since, and are not in the memory; with them tokens can only be looked at. Each token is counted
        right after it is read, so a text may be cut anywhere. Raises ValueError for a token outside the
        vocabulary.
        """
        counts = self._opened()
        newest = [*(self.marked[-counts.orders[-1] :] >> 1), *context][-counts.orders[-1] :]
        line = np.array([*newest, *tokens], np.int32)
        values, stride = self.values.copy(), padded(counts.vocab_size)
        mixed = np.empty((len(tokens), stride), np.float32)
        code = library().rl_memory_read(
            counts.pointer,
            len(experts),
            stride,
            (c_void_p * len(experts))(*(rows.ctypes.data for rows in experts)),
            len(tokens),
            line.ctypes.data,
            len(newest),
            values.ctypes.data,
            mixed.ctypes.data,
            mode,
        )
        if code != 0:
            raise ValueError("a token lies outside the vocabulary")
        rows = mixed[:, : counts.vocab_size]
        if mode is Mode.LOOK:
            return rows, self
        counts.read += len(tokens)
        added = np.array(tokens, np.int32) << 1 | (mode is Mode.LEARN)
        marked = np.concatenate((self.marked, added))[-counts.kept :]
        return rows, Memory(marked, values, counts.read, counts)

    def follow(self, token: int) -> "Memory":
        """After a token that is context alone, such as the beginning of all text: no expert is asked."""
        counts = self._opened()
        marked = np.array([token << 1], np.int32)
        counts.add(marked)
        counts.read += 1
        whole = np.concatenate((self.marked, marked))[-counts.kept :]
        return Memory(whole, self.values, counts.read, counts)

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
        # Counted when it is first read: the counts have read nothing yet, and this value has.
        return cls(marked, values, read, empty.counts) if read else empty

    def _opened(self) -> Counts:
        """The counts of this very moment."""
        if self.counts.read == self.read:
            return self.counts
        counts = Counts(self.counts.vocab_size, self.counts.capacity, self.counts.orders)
        counts.add(self.marked)
        counts.read = self.read
        return counts


def stored_type(vocab_size: int) -> type:
    """What holds marked tokens."""
    return np.uint16 if vocab_size <= 1 << 15 else np.uint32


def size_of(experts: int, orders: Sequence[int] = ORDERS) -> int:
    """How many numbers a memory learns beside its counts."""
    return int(library().rl_memory_learned(len(orders), experts))
