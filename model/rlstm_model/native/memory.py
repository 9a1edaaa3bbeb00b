"""A memory of the newest tokens, whose n-gram counts are interpolated into given distributions."""

from collections.abc import Iterable, Sequence
from ctypes import c_void_p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.native.library import library
from rlstm_model.native.packed import Floats, padded, with_room


class Order(NamedTuple):
    """Contexts of one length, and what is taken from counts after them.

    length     tokens of a context
    discounts  d_1, d_2, d_3: from a count of one, two, or more; 0 to 1, 2 and 3
    theta      at least 0: how much the order below counts, in occurrences
    """

    length: int
    discounts: tuple[float, float, float] = (0.75, 0.75, 0.75)
    theta: float = 1.0


class Memory:
    """Exact counts of what followed contexts among the newest ``capacity`` tokens.

    ``tokens`` are all that it is made of: another memory that counts them is the same, to the last bit.
    """

    def __init__(self, vocab_size: int, orders: Sequence[Order], capacity: int = 8192) -> None:
        """Raises ValueError for orders that do not ascend, MemoryError where there is no room."""
        lengths = [order.length for order in orders]
        if lengths != sorted(set(lengths)) or not lengths or lengths[0] < 1:
            raise ValueError(f"orders must ascend from 1, not {lengths}")
        for order in orders:
            inside = all(0 <= d <= count for count, d in enumerate(order.discounts, 1))
            if not inside or not order.theta >= 0 or order.theta + order.discounts[0] <= 0:
                raise ValueError(f"discounts must lie between 0 and their count, theta above 0: {order}")
        self._vocab_size, self._stride, self.capacity = vocab_size, padded(vocab_size), capacity
        numbers = np.array([(*order.discounts, order.theta) for order in orders], np.float32)
        self._library = library()
        self._memory: int | None = self._library.rl_memory_new(
            capacity,
            vocab_size,
            len(orders),
            np.array(lengths, np.int32).ctypes.data,
            numbers.ctypes.data,
        )
        if not self._memory:
            raise MemoryError(f"a memory of {capacity} tokens does not fit")
        self._kept = lengths[-1]
        self._tokens = np.empty(0, np.int32)

    def __del__(self) -> None:
        if memory := getattr(self, "_memory", None):
            self._library.rl_memory_free(memory)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """What is remembered, and the context before it, oldest first."""
        return self._tokens

    def add(self, tokens: Iterable[int]) -> None:
        """Count tokens. Raises ValueError for one outside the vocabulary."""
        added = np.fromiter(tokens, np.int32)
        if added.size and not 0 <= added.min() <= added.max() < self._vocab_size:
            raise ValueError("a token lies outside the vocabulary")
        self._library.rl_memory_add(self._memory, added.ctypes.data, added.size)
        self._keep(added)

    def read(
        self, experts: Sequence[Floats], tokens: Sequence[int], *, count: bool = True
    ) -> tuple[list[Floats], NDArray[np.int32]]:
        """Experts' log-probabilities ``[T, V]`` of the next tokens, with the memory.

        Also how many orders had seen each token's context. Each token is counted right after it is read,
        unless ``count`` is false. Raises ValueError for one outside the vocabulary, and for other shapes.
        """
        given = np.array(tokens, np.int32)
        if any(log_probs_TV.shape != (len(given), self._vocab_size) for log_probs_TV in experts):
            raise ValueError("log-probabilities must be of as many tokens, and of the vocabulary")
        rows = [with_room(log_probs_TV, self._stride) for log_probs_TV in experts]
        mixed = [np.empty((len(given), self._stride), np.float32) for _ in experts]
        matches = np.empty(len(given), np.int32)
        code = self._library.rl_memory_read(
            self._memory,
            len(experts),
            self._stride,
            (c_void_p * len(experts))(*(log_probs_TV.ctypes.data for log_probs_TV in rows)),
            len(given),
            given.ctypes.data,
            (c_void_p * len(experts))(*(log_probs_TV.ctypes.data for log_probs_TV in mixed)),
            matches.ctypes.data,
            int(count),
        )
        if code != 0:
            raise ValueError("a token lies outside the vocabulary")
        if count:
            self._keep(given)
        return [log_probs_TV[:, : self._vocab_size] for log_probs_TV in mixed], matches

    def _keep(self, added: NDArray[np.int32]) -> None:
        self._tokens = np.concatenate((self._tokens, added))[-(self.capacity + self._kept) :]
