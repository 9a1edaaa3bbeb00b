"""Batches: rows that each read a text on and on, a window at a time.

"heads" (docs/mathematics.md §2.10): each row is a read head that runs through its source again and again.
Heads start at equal distances. With jitter the source is taken as lines: all heads are moved by one common
random number of lines, and each begins each of its rounds up to ``jitter_lines`` lines off its place. A
round is as long as the source wherever it begins, and it begins and ends at a line's end; so a head's first
input is the token that ends a line, and later the last target is always the next input.
"contiguous": each row has an equal piece of its source for ever, and begins it again at its end.

Without jitter a row's first input is the first token of its own place: the model never has to predict
that one before the head comes round to it.
Shape suffixes: T time, B batch rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstm_training.config import Batching

Ids = NDArray[np.int64] | NDArray[np.uint8]

ALL = slice(None)

VOCABULARY: Final = "vocabulary"
"""Its name among digests."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """What a run reads: (ids, rows) for each source, named validation texts, and the token that ends a line.

    ``eos_id`` is only needed for jitter. ``digests`` tell each text, and the vocabulary, from any other.
    """

    train: Sequence[tuple[Ids, int]]
    valid: Mapping[str, Ids]
    eos_id: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


class Batches:
    """Windows of T tokens for B rows. A row's next window continues its last one.

    All that changes is ``positions``, where each row's next input lies in what it reads, and ``rounds``, how
    often it has been through: int64 arrays of all B rows. Save and set both to resume.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Ids, int]],
        window: int,
        *,
        batching: Batching = "heads",
        jitter_lines: int = 0,
        eos_id: int | None = None,
        seed: int = 1,
    ) -> None:
        """``sources``: (ids, rows) pairs. ``seed`` is of offset and jitter.

        Raises ValueError when a row's text is shorter than a window, or has no lines to jitter.
        """
        self._heads = _heads(sources, batching, jitter_lines, eos_id, seed)
        for head in self._heads:
            if len(head.ids) <= window:
                raise ValueError(f"a source of {len(head.ids)} tokens cannot fill a window of {window}")
        self._window = window
        self.rounds = np.zeros(self.rows, dtype=np.int64)
        self.positions = np.array([head.beginning(0) for head in self._heads], dtype=np.int64)

    @property
    def rows(self) -> int:
        """B."""
        return len(self._heads)

    def next(self, rows: slice = ALL) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``rows``, ``[T, B]`` each: a target is the token after its input.

        All rows move on, whichever are asked for: so every process that shares the rows knows all positions.
        """
        places = list(zip(self._heads, self.positions.tolist(), self.rounds.tolist(), strict=True))
        columns = [head.read(at, round_, self._window + 1) for head, at, round_ in places[rows]]
        text = torch.from_numpy(np.stack(columns, 1).astype(np.int64))
        self._advance()
        return text[:-1], text[1:]

    def _advance(self) -> None:
        for row, head in enumerate(self._heads):
            position, round_ = int(self.positions[row]), int(self.rounds[row])
            over = self._window - head.left(position, round_)
            if over >= 0:
                self.rounds[row] = round_ + 1
                self.positions[row] = (head.beginning(round_ + 1) + over) % len(head.ids)
            else:
                self.positions[row] = (position + self._window) % len(head.ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Head:
    """A row's text, a ring, and where in it each round begins.

    Without ``line_ends`` always at ``home``; with them at the end of another line near line ``home``.
    ``number`` tells this head's draws from those of others.
    """

    ids: Ids
    home: int = 0
    line_ends: NDArray[np.int64] | None = None
    jitter: int = 0
    seed: int = 0
    number: int = 0

    def beginning(self, round_: int) -> int:
        """The position of the first input of a round."""
        if self.line_ends is None:
            return self.home
        off = _draw(self.seed, "jitter", self.number, round_, 2 * self.jitter + 1) - self.jitter
        return int(self.line_ends[(self.home + off) % len(self.line_ends)])

    def left(self, position: int, round_: int) -> int:
        """Inputs of a round from ``position`` on; at least one."""
        length = len(self.ids)
        return length - (position - self.beginning(round_)) % length

    def read(self, position: int, round_: int, count: int) -> Ids:
        """``count`` tokens from ``position`` on, at most a round, and over the round's end."""
        steps = np.arange(count)
        places = position + steps
        left = self.left(position, round_)
        if left < count:
            places[left:] = self.beginning(round_ + 1) + steps[: count - left]
        return self.ids[places % len(self.ids)]


def _heads(
    sources: Sequence[tuple[Ids, int]], batching: Batching, jitter: int, eos_id: int | None, seed: int
) -> list[_Head]:
    heads: list[_Head] = []
    for ids, rows in sources:
        # One piece a row and an end, in order: their lengths differ by one at most.
        starts = [row * len(ids) // rows for row in range(rows + 1)]
        if batching == "contiguous":
            heads += [_Head(ids=ids[start:end]) for start, end in pairwise(starts)]
        elif not jitter:
            heads += [_Head(ids=ids, home=start) for start in starts[:-1]]
        else:
            line_ends = np.flatnonzero(ids == eos_id) if eos_id is not None else np.empty(0, dtype=np.int64)
            lines = len(line_ends)
            if not lines:
                raise ValueError("jitter_lines: a source has no line ends")
            offset, more = _draw(seed, "offset", len(heads), 0, lines), {"jitter": jitter, "seed": seed}
            heads += [
                _Head(ids=ids, home=offset + row * lines // rows, line_ends=line_ends, number=number, **more)
                for row, number in enumerate(range(len(heads), len(heads) + rows))
            ]
    return heads


@lru_cache(maxsize=4096)
def _draw(seed: int, what: Literal["offset", "jitter"], number: int, round_: int, choices: int) -> int:
    """One of 0 .. choices - 1, the same for the same arguments: a counter-based generator needs no state.

    Raw bits, since NumPy promises that those never change, unlike what its distributions make of them.
    """
    key = np.array([seed % 2**64, ("offset", "jitter").index(what)], dtype=np.uint64)
    counter = np.array([0, 0, number, round_], dtype=np.uint64)
    return int(np.random.Philox(key=key, counter=counter).random_raw()) % choices
