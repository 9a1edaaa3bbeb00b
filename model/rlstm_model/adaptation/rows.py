"""Many readings in few passes: rows of unequal length, padded so that no row depends on its neighbours.

A row's last bits depend on how many rows a matrix product has, but not beyond a multiple of the tile
(sessions: §4). So rows are padded to whole tiles. They are sorted by length, and a window ends where some of
them do: what is left goes on in fewer tiles, and no finished row costs more than its tile does.
Shape suffixes: T tokens, N rows, R rows of one reading, V vocabulary, P fast weights, H hidden units.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.fast_weights import FastWeights
from rlstm_model.state import State


class Reading(NamedTuple):
    """R rows that read the same ids from states of their own; ``delta_RP`` None is zero for all of them."""

    ids: Sequence[int]
    state: State
    delta_RP: Tensor | None = None

    @property
    def rows(self) -> int:
        """R."""
        return self.state.batch


class Read(NamedTuple):
    """What a reading gave: logits ``[T, R, V]`` after each of its ids, and the state after them all."""

    logits_TRV: Tensor
    state: State


class Lesson(NamedTuple):
    """R rows to learn from a segment: ``reading`` its inputs, the targets, and the weights of the losses."""

    reading: Reading
    targets: Sequence[int]
    weights: Sequence[float]


class Taught(NamedTuple):
    """What a lesson gave: as :class:`Read`, and the gradients of each row's loss."""

    logits_TRV: Tensor
    state: State
    gradient_RP: Tensor


@dataclass(frozen=True)
class Rows:
    """Reads and learns for many rows at once."""

    fast_weights: FastWeights
    temperature: float = 1.0

    def read(self, readings: Sequence[Reading]) -> list[Read]:
        """Read each. Rows with fast weights and rows without are read apart."""
        results: list[Read | None] = [None] * len(readings)
        for own in (False, True):
            chosen = [i for i, reading in enumerate(readings) if (reading.delta_RP is not None) is own]
            chosen.sort(key=lambda i: -len(readings[i].ids))
            for part in self._in_parts(chosen, readings):
                for i, result in zip(part, self._read([readings[i] for i in part]), strict=True):
                    results[i] = result
        return [result for result in results if result is not None]

    def learn(self, lessons: Sequence[Lesson]) -> Iterator[tuple[int, Taught]]:
        """Learn from each; yields its place in ``lessons`` as well. Each result lives until the next."""
        lengths = sorted({len(lesson.targets) for lesson in lessons})
        for length in lengths:
            chosen = [i for i, lesson in enumerate(lessons) if len(lesson.targets) == length]
            for part in self._in_parts(chosen, [lesson.reading for lesson in lessons]):
                yield from zip(part, self._learn([lessons[i] for i in part]), strict=True)

    def _read(self, readings: Sequence[Reading]) -> list[Read]:
        ends = _ends(readings)
        ids_TN, state, delta_NP = self._padded(readings)
        windows: list[Tensor] = []
        states: list[State] = [reading.state for reading in readings]
        start, going_on = 0, len(readings)
        for stop in sorted({len(reading.ids) for reading in readings}):
            rows = self._tiles(ends[going_on - 1])
            own = None if delta_NP is None else delta_NP[:rows]
            logits_TNV, state = self.fast_weights.read(
                own, ids_TN[start:stop, :rows], state.rows(slice(rows)), temperature=self.temperature
            )
            windows.append(logits_TNV)
            while going_on and len(readings[going_on - 1].ids) == stop:
                going_on -= 1
                states[going_on] = _copy(state, _own(ends, going_on))
            start = stop
        return [
            Read(_joined(windows, len(reading.ids), _own(ends, i)), states[i])
            for i, reading in enumerate(readings)
        ]

    def _learn(self, lessons: Sequence[Lesson]) -> Iterator[Taught]:
        readings = [lesson.reading for lesson in lessons]
        ids_TN, state, delta_NP = self._padded(readings)
        targets_TN = self._columns([lesson.targets for lesson in lessons], readings, torch.int64)
        weights_TN = self._columns([lesson.weights for lesson in lessons], readings, state.h.dtype)
        learned = self.fast_weights.learn(
            delta_NP, ids_TN, targets_TN, weights_TN, state, temperature=self.temperature
        )
        ends = _ends(readings)
        for i in range(len(lessons)):
            own = _own(ends, i)
            yield Taught(learned.logits_TNV[:, own], _copy(learned.state, own), learned.gradient_NP[own])

    def _padded(self, readings: Sequence[Reading]) -> tuple[Tensor, State, Tensor | None]:
        """Ids, states and deltas of whole tiles. Rows that are no row read token 0 from a state of zero."""
        rows = sum(reading.rows for reading in readings)
        more = self._tiles(rows) - rows
        ids_TN = self._columns([reading.ids for reading in readings], readings, torch.int64)
        like = readings[0].state.h
        nothing = like.new_zeros(like.shape[0], more, like.shape[2])
        h, c = (_cat([*(reading.state[part] for reading in readings), nothing], 1) for part in range(2))
        if all(reading.delta_RP is None for reading in readings):
            return ids_TN, State(h, c), None
        deltas = [self._delta(reading) for reading in readings]
        return ids_TN, State(h, c), _cat([*deltas, self.fast_weights.zero(more)], 0)

    def _delta(self, reading: Reading) -> Tensor:
        return self.fast_weights.zero(reading.rows) if reading.delta_RP is None else reading.delta_RP

    def _columns(
        self, values: Sequence[Sequence[float]], readings: Sequence[Reading], dtype: torch.dtype
    ) -> Tensor:
        """``[T, N]`` from a list a reading, repeated for its rows; zeros where there is nothing."""
        length = max(map(len, values))
        rows = [
            [*column, *(length - len(column)) * [0]]
            for column, reading in zip(values, readings, strict=True)
            for _ in range(reading.rows)
        ]
        nothing = (self._tiles(len(rows)) - len(rows)) * [[0] * length]
        return torch.tensor([*rows, *nothing], dtype=dtype, device=readings[0].state.h.device).t()

    def _tiles(self, rows: int) -> int:
        tile = self.fast_weights.tile
        return -(-rows // tile) * tile

    def _in_parts(self, places: Sequence[int], readings: Sequence[Reading]) -> Iterator[list[int]]:
        """The places of readings in parts of at most so many rows, but at least one place each."""
        part: list[int] = []
        rows = 0
        for place in places:
            if part and rows + readings[place].rows > self.fast_weights.at_once:
                yield part
                part, rows = [], 0
            part.append(place)
            rows += readings[place].rows
        if part:
            yield part


def _ends(readings: Sequence[Reading]) -> list[int]:
    ends, total = [], 0
    for reading in readings:
        total += reading.rows
        ends.append(total)
    return ends


def _own(ends: Sequence[int], index: int) -> slice:
    return slice(ends[index - 1] if index else 0, ends[index])


def _cat(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors side by side, without a copy where only one has anything: it may be all weights of a model."""
    present = [tensor for tensor in tensors if tensor.shape[dim]]
    return present[0] if len(present) == 1 else torch.cat(present, dim)


def _copy(state: State, rows: slice) -> State:
    """A copy: a view would keep the states of all rows alive."""
    return State(state.h[:, rows].clone(), state.c[:, rows].clone())


def _joined(windows: Sequence[Tensor], length: int, rows: slice) -> Tensor:
    parts, total = [], 0
    for window in windows:
        if total == length:
            break
        parts.append(window[:, rows])
        total += len(window)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
