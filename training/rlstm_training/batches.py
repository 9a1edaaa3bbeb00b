"""Batches: read heads that each travel through their whole source.

Shape suffixes: T time, B batch rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64] | NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """What a run reads: (ids, rows) for each source, and named validation texts."""

    train: Sequence[tuple[Ids, int]]
    valid: Mapping[str, Ids]


class Batches:
    """Windows of T tokens for B rows. A row's next window continues its last one.

    The rows of a source start at equal distances and each runs through all of it, again and again
    (mathematics: §2.10). ``positions`` is all that changes: save and set it to resume.
    """

    def __init__(self, sources: Sequence[tuple[Ids, int]], window: int) -> None:
        """``sources``: (ids, rows) pairs. Raises ValueError when a source is shorter than a window."""
        for ids, _ in sources:
            if len(ids) <= window:
                raise ValueError(f"a source of {len(ids)} tokens cannot fill a window of {window}")
        self._ids = [ids for ids, rows in sources for _ in range(rows)]
        self._window = np.arange(window + 1)
        self.positions = np.array(
            [row * len(ids) // rows for ids, rows in sources for row in range(rows)], dtype=np.int64
        )

    @property
    def rows(self) -> int:
        """B."""
        return len(self._ids)

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, ``[T, B]`` each: a target is the token after its input."""
        columns = [
            ids[(position + self._window) % len(ids)]
            for ids, position in zip(self._ids, self.positions, strict=True)
        ]
        text = torch.from_numpy(np.stack(columns, 1).astype(np.int64))
        lengths = np.array([len(ids) for ids in self._ids])
        self.positions = (self.positions + len(self._window) - 1) % lengths
        return text[:-1], text[1:]
