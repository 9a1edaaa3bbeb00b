"""A memory of the newest tokens: n-gram counts that are mixed with what experts say (`src/memory.c`).

A memory is a value: reading gives the one after. Its counts are an index that is derived from its tokens; the
newest value has it at hand, and an older one counts again. Shape suffixes: T tokens, V vocabulary, K experts.
"""

from collections.abc import Sequence
from ctypes import c_void_p
from enum import IntEnum
from typing import Final, NamedTuple

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


class Index:
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
    index   of the newest value that came of this one
    """

    marked: NDArray[np.int32]
    values: Floats
    read: int
    index: Index

    @classmethod
    def start(
        cls, vocab_size: int, experts: int, capacity: int = CAPACITY, orders: Sequence[int] = ORDERS
    ) -> "Memory":
        """Before any token. Raises ValueError for orders that do not ascend."""
        values = np.empty(size_of(experts, orders), np.float32)
        library().rl_memory_begin(len(orders), experts, values.ctypes.data)
        return cls(np.empty(0, np.int32), values, 0, Index(vocab_size, capacity, orders))

    def mix(
        self, experts: Sequence[Floats], tokens: Sequence[int], mode: Mode, context: Sequence[int] = ()
    ) -> tuple[Floats, "Memory"]:
        """Log-probabilities ``[T, V]`` of the next tokens, of experts' and the memory, and the memory after.

        ``experts`` are ``[T, V]``, with room for padding (:meth:`Pool.window`). ``context``: tokens that were
        read since, and are not in the memory; with them tokens can only be looked at. Each token is counted
        right after it is read: a text may be cut anywhere. Raises ValueError for a token outside the vocabulary.
        """
        index = self._opened()
        newest = [*(self.marked[-index.orders[-1] :] >> 1), *context][-index.orders[-1] :]
        line = np.array([*newest, *tokens], np.int32)
        values, stride = self.values.copy(), padded(index.vocab_size)
        mixed = np.empty((len(tokens), stride), np.float32)
        code = library().rl_memory_read(
            index.pointer,
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
        rows = mixed[:, : index.vocab_size]
        if mode is Mode.LOOK:
            return rows, self
        index.read += len(tokens)
        added = np.array(tokens, np.int32) << 1 | (mode is Mode.LEARN)
        marked = np.concatenate((self.marked, added))[-index.kept :]
        return rows, Memory(marked, values, index.read, index)

    def _opened(self) -> Index:
        """The index of this very moment."""
        if self.index.read == self.read:
            return self.index
        index = Index(self.index.vocab_size, self.index.capacity, self.index.orders)
        index.add(self.marked)
        index.read = self.read
        return index


def size_of(experts: int, orders: Sequence[int] = ORDERS) -> int:
    """How many numbers a memory learns beside its counts."""
    return int(library().rl_memory_learned(len(orders), experts))
