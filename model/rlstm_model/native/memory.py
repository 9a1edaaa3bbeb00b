"""A memory of the newest tokens: what followed contexts is mixed with what experts say (`src/memory.c`).

A memory is a value: reading gives the one after. Its counts are derived from its tokens; those of the values
that were read last are at hand. Shape suffixes: T tokens, V vocabulary, K experts.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from ctypes import addressof, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from rlstm_model.native import Pool
from rlstm_model.native.library import library
from rlstm_model.native.packed import Floats, address, padded, with_room
from rlstm_model.native.structures import RecallStruct

ORDERS: Final = (1, 2, 3, 5, 8, 14)
"""Tokens of the contexts whose successors are counted, beside those of words, lines and shapes."""

CAPACITY: Final = 16_000
"""Tokens that are remembered."""

REACH: Final = 256
"""Tokens that a context reaches back at most."""


class TokenKind(IntEnum):
    """What a token is: how words, lines and shapes of text are told."""

    LOWER = 0
    UPPER = 1
    DIGIT = 2
    BLANK = 3
    NEWLINE = 4
    OTHER = 5
    FOREIGN = 6  # part of a letter beyond ASCII, as UTF-8 has it
    CONTROL = 7


@cache
def kinds_of(vocab_size: int) -> bytes:
    """The :class:`TokenKind` of each token: a vocabulary of 256 has bytes, in any other all are `OTHER`."""
    return (
        bytes(map(_kind_of_byte, range(256))) if vocab_size == 256 else bytes([TokenKind.OTHER]) * vocab_size
    )


def _kind_of_byte(byte: int) -> TokenKind:
    character = chr(byte)
    if byte >= 128:
        return TokenKind.FOREIGN
    if character.isalpha():
        return TokenKind.LOWER if character.islower() else TokenKind.UPPER
    if character.isdigit():
        return TokenKind.DIGIT
    known = {" ": TokenKind.BLANK, "\t": TokenKind.BLANK, "\n": TokenKind.NEWLINE, "\r": TokenKind.NEWLINE}
    return known.get(character, TokenKind.CONTROL if byte < 9 else TokenKind.OTHER)


class Mode(IntEnum):
    """What becomes of the tokens that are read."""

    LOOK = 0  # nothing
    CONTEXT = 1  # they are what the next ones follow
    LEARN = 2  # and they are counted, and the mixing follows them


class MemoryConfig(NamedTuple):
    """What a memory is of.

    kinds     the :class:`TokenKind` of each token of the vocabulary
    capacity  tokens that are remembered
    orders    tokens of the contexts whose successors are counted
    """

    kinds: bytes
    capacity: int = CAPACITY
    orders: tuple[int, ...] = ORDERS

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.kinds)

    @property
    def kept(self) -> int:
        """Tokens that a memory is made of, at most: those that are counted, and the context of the oldest."""
        return self.capacity + REACH

    @property
    def stored_bytes(self) -> int:
        """Of the tokens of a memory, however many they are."""
        return self.kept * _token_type(self.vocab_size).itemsize + -(-self.kept // 8)

    def check(self) -> None:
        """Raise ValueError for orders that do not ascend, for what does not fit, and for an unknown kind."""
        if list(self.orders) != sorted(set(self.orders)) or not self.orders or self.orders[0] < 1:
            raise ValueError(f"orders must ascend from 1, not {list(self.orders)}")
        if self.orders[-1] > REACH:
            raise ValueError(f"a context reaches back {REACH} tokens at most, not {self.orders[-1]}")
        if not 1 <= self.capacity < (1 << 15) - REACH:
            raise ValueError(f"a memory has 1 to {(1 << 15) - 1 - REACH} tokens, not {self.capacity}")
        if max(self.kinds, default=0) >= len(TokenKind):
            raise ValueError(f"a token's kind is 0 to {len(TokenKind) - 1}, not {max(self.kinds)}")


class Counts:
    """Where contexts occurred among the tokens of one memory: some 1.4 MB, derived from them."""

    def __init__(self, config: MemoryConfig, marked: NDArray[np.int32]) -> None:
        """Raises MemoryError, and ValueError for a token outside the vocabulary."""
        lengths = np.array(config.orders, np.int32)
        self.pointer = library().rl_memory_new(
            config.capacity, config.vocab_size, len(lengths), address(lengths), config.kinds
        )
        if not self.pointer:
            raise MemoryError(f"a memory of {config.capacity} tokens does not fit")
        line, counted = marked >> 1, np.ascontiguousarray(marked & 1, np.uint8)
        if library().rl_memory_add(self.pointer, address(line), 0, len(line), address(counted)):
            raise ValueError("a token lies outside the vocabulary")

    def __del__(self) -> None:
        if self.pointer:
            library().rl_memory_free(self.pointer)


HELD: Final = 256
"""Counts that a process holds, of the memories read last; others are made again, in milliseconds."""

_held: "OrderedDict[int, tuple[NDArray[np.int32], Counts]]" = OrderedDict()
_holding = threading.Lock()


def _take(config: MemoryConfig, marked: NDArray[np.int32]) -> Counts:
    """The counts of these very tokens, which nobody else has until they are given back."""
    with _holding:
        found = _held.pop(id(marked), None)
    return Counts(config, marked) if found is None else found[1]


def _give_back(marked: NDArray[np.int32], counts: Counts) -> None:
    with _holding:
        _held[id(marked)] = (marked, counts)  # with the array itself, so that no other has its id
        while len(_held) > HELD:
            _held.popitem(last=False)


class Recalled(NamedTuple):
    """What tokens were read with: log-probabilities ``[T, V]``, and the memory after them.

    weights_T  the tokens' log-probabilities by the experts' mixture, without the memory
    """

    log_probs_TV: Floats
    memory: "Memory"
    weights_T: Floats


class Memory(NamedTuple):
    """A memory at one moment: never written to. It may be read from by several, and go on in several ways.

    marked  the newest tokens, oldest first: twice the token, plus 1 where it is counted
    values  float32, what was learned beside the counts: shares of contexts, and weights of the mixing
    read    tokens so far
    """

    config: MemoryConfig
    marked: NDArray[np.int32]
    values: Floats
    read: int = 0

    @classmethod
    def start(cls, config: MemoryConfig, experts: int) -> "Memory":
        """Before any token. Raises ValueError as :meth:`MemoryConfig.check` does."""
        config.check()
        of_bytes = config.kinds == kinds_of(256) and config.orders == ORDERS
        learned = _learned_before().get(str(experts)) if of_bytes else None
        values = unlearned(config, experts) if learned is None else learned.copy()
        return cls(config, np.empty(0, np.int32), values)

    def mix(
        self, experts: Sequence[Floats], tokens: Sequence[int], mode: Mode, context: Sequence[int] = ()
    ) -> Recalled:
        """Log-probabilities ``[T, V]`` of the next tokens, of experts' and the memory, and the memory after.

        ``experts`` are ``[T, V]``. ``context``: tokens that were
        read since, and are not in the memory; with them tokens can only be looked at. Each token is counted
        right after it is read, so a text may be cut anywhere. Raises ValueError for a token outside the
        vocabulary, and for other shapes.
        """
        return mix_all([Recall(self, experts, tokens, mode, context)])[0]

    def follow(self, token: int) -> "Memory":
        """After a token that is context alone, such as the beginning of all text: no expert is asked."""
        return self._after([token], self.values, counted=False)

    def _after(self, tokens: Sequence[int], values: Floats, *, counted: bool) -> "Memory":
        added = np.array(tokens, np.int32) << 1 | counted
        marked = np.concatenate((self.marked, added))[-self.config.kept :]
        return Memory(self.config, marked, values, self.read + len(added))

    @property
    def nbytes(self) -> int:
        """Of what is stored of it."""
        return self.config.stored_bytes + self.values.nbytes

    def stored(self) -> NDArray[np.uint8]:
        """``marked`` in as many bytes as any memory of this vocabulary takes: tokens, and a bit for each.

        Zeros stand before the oldest token.
        """
        whole = np.zeros(self.config.kept, np.int32)
        whole[len(whole) - len(self.marked) :] = self.marked
        tokens = (whole >> 1).astype(_token_type(self.config.vocab_size)).view(np.uint8)
        return np.concatenate((tokens, np.packbits(whole & 1 == 1)))

    @classmethod
    def restore(
        cls,
        config: MemoryConfig,
        stored: NDArray[np.uint8],
        values: Floats,
        *,
        experts: int,
        remembered: int,
        read: int,
    ) -> "Memory":
        """What was stored. Raises ValueError for what no reading leads to."""
        kind, kept = _token_type(config.vocab_size), config.kept
        if remembered != min(read, kept):
            raise ValueError(f"{remembered} tokens are not what is left of {read}")
        tokens = stored[: kept * kind.itemsize].view(kind).astype(np.int64)
        if tokens.max() >= config.vocab_size:
            raise ValueError("a token lies outside the vocabulary")
        if library().rl_memory_check(
            config.vocab_size, len(config.orders), experts, address(np.ascontiguousarray(values))
        ):
            raise ValueError("what was learned has a number that is out of bounds")
        counted = np.unpackbits(stored[kept * kind.itemsize :], count=kept)
        return cls(config, (tokens << 1 | counted)[kept - remembered :].astype(np.int32), values, read)


class Recall(NamedTuple):
    """What :meth:`Memory.mix` is asked for."""

    memory: Memory
    experts: Sequence[Floats]
    tokens: Sequence[int]
    mode: Mode
    context: Sequence[int] = ()


def mix_all(recalls: Sequence[Recall], pool: Pool | None = None) -> list[Recalled]:
    """:meth:`Memory.mix` of many, by the threads of a pool where there is one. Raises as it does."""
    for memory, experts, tokens, *_ in recalls:
        shape = len(tokens), memory.config.vocab_size
        if any(log_probs_TV.shape != shape for log_probs_TV in experts):
            raise ValueError("log-probabilities must be of as many tokens, and of the vocabulary")
    structs = (RecallStruct * len(recalls))()
    buffers = [_fill(*each) for each in zip(structs, recalls, strict=True)]
    if pool is None:
        library().rl_recall_all(None, len(structs), structs)
    else:
        pool.recall(structs)
    recalled: list[Recalled] = []
    for recall, struct, (counts, values, mixed_TV, weights_T, *_) in zip(
        recalls, structs, buffers, strict=True
    ):
        after = recall.memory
        if recall.mode is not Mode.LOOK and not struct.code:
            after = after._after(recall.tokens, values, counted=recall.mode is Mode.LEARN)
        _give_back(after.marked, counts)
        recalled.append(Recalled(mixed_TV[:, : after.config.vocab_size], after, weights_T))
    if any(struct.code for struct in structs):
        raise ValueError("a token lies outside the vocabulary")
    return recalled


def _fill(struct: RecallStruct, recall: Recall) -> tuple[Any, ...]:
    """Tell the core what it reads of one recall and where it writes; give all that, which must live on."""
    memory, experts, tokens, mode, context = recall
    added = np.array((*context, *tokens), np.int32)
    known = min(len(memory.marked) + len(context), REACH)
    line = np.concatenate((memory.marked[-REACH:] >> 1, added))[-known - len(tokens) :]
    stride = padded(memory.config.vocab_size)
    given = [with_room(log_probs_TV, stride) for log_probs_TV in experts]
    rows = (c_void_p * len(given))(*map(address, given))
    values = memory.values.copy()
    mixed_TV, weights_T = np.empty((len(tokens), stride), np.float32), np.empty(len(tokens), np.float32)
    counts = _take(memory.config, memory.marked)
    struct.memory, struct.log_probs, struct.line = counts.pointer, addressof(rows), address(line)
    struct.values, struct.out = address(values), address(mixed_TV)
    struct.weights_only, struct.experts, struct.length = address(weights_T), len(given), len(tokens)
    struct.known, struct.ahead, struct.mode = known, len(context), mode
    return counts, values, mixed_TV, weights_T, line, given, rows


START: Final = Path(__file__).with_name("start.safetensors")
"""What memories of bytes begin with, by their number of experts: written by `training/memory_start.py`."""


@cache
def _learned_before() -> dict[str, Floats]:
    return load_file(START)


def unlearned(config: MemoryConfig, experts: int) -> Floats:
    """What any other memory begins with: that of another vocabulary, other orders or more experts."""
    values = np.empty(size_of(config.vocab_size, experts, config.orders), np.float32)
    library().rl_memory_begin(config.vocab_size, len(config.orders), experts, address(values))
    return values


def _token_type(vocab_size: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def size_of(vocab_size: int, experts: int, orders: Sequence[int] = ORDERS) -> int:
    """How many numbers a memory learns beside its counts."""
    return int(library().rl_memory_learned(vocab_size, len(orders), experts))
