"""Many readings in one pass: rows of unequal length, padded so that no row depends on its neighbours.

A row's last bits depend on how many rows a matrix product has, but not beyond a multiple of the tile
(sessions: §4). So rows are padded to whole tiles. They are sorted by length, and a window ends where some of
them do: what is left goes on in fewer tiles, and no finished row costs more than its tile does.
Shape suffixes: T tokens, N rows of a pass, R rows of one reading, V vocabulary, P fast weights, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.fast_weights import FastWeights, Weights
from rlstm_model.adaptation.transfer import send
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


class Lesson(NamedTuple):
    """R rows to learn from a segment: ``reading`` its inputs, the targets, and the weights of the losses."""

    reading: Reading
    targets: Sequence[int]
    weights: Sequence[float]


class Pass(NamedTuple):
    """What a pass over readings gave.

    windows  logits ``[T, N, V]`` after each token, window after window of ever fewer rows
    first    of each reading the number of its first row
    states   of each reading after all its ids: views, of which each keeps those of all rows
    padding  tokens that were computed for rows that are none
    """

    windows: Sequence[Tensor]
    first: Sequence[int]
    states: Sequence[State]
    padding: int


class Taught(NamedTuple):
    """What a pass over lessons gave: padding is in all of it, and ``gradient_NP`` lives until the next.

    ``delta_NP`` are the rows' deltas as they were, in the precision they are kept in; None is zero for all.
    """

    read: Pass
    delta_NP: Tensor | None
    gradient_NP: Tensor


@dataclass(frozen=True)
class Rows:
    """Reads for many rows at once."""

    weights: Weights
    temperature: float = 1.0

    def read(self, readings: Sequence[Reading]) -> Pass:
        """Read each, at least one. If one has fast weights, all are read as if they had."""
        order = sorted(range(len(readings)), key=lambda i: -len(readings[i].ids))
        ordered = [readings[i] for i in order]
        ids_TN, state, delta_NP = self._padded(ordered)
        own_NP = self._computed(delta_NP, state)
        ends = list(accumulate(reading.rows for reading in ordered))
        windows: list[Tensor] = []
        states: list[State] = []
        start, going_on, padding = 0, len(ordered), 0
        for stop in sorted({len(reading.ids) for reading in ordered}):
            rows = self._tiles(ends[going_on - 1])
            logits_TNV, state = self.weights.read(
                None if own_NP is None else own_NP[:rows],
                ids_TN[start:stop, :rows],
                state.rows(slice(rows)),
                temperature=self.temperature,
            )
            windows.append(logits_TNV)
            padding += self._padding(ends[going_on - 1], stop - start)
            left = sum(len(reading.ids) > stop for reading in ordered)
            states = [*_split(state, ordered[left:going_on], ends[left - 1] if left else 0), *states]
            start, going_on = stop, left
        return _in_order(order, windows, ordered, states, padding)

    def step(self, readings: Sequence[Reading]) -> Pass:
        """The same where each has a single id, by the weights' own way to read one token."""
        ids_TN, state, delta_NP = self._padded(readings)
        logits_NV, state = self.weights.step(
            self._computed(delta_NP, state), ids_TN[0], state, temperature=self.temperature
        )
        padding = self._padding(sum(reading.rows for reading in readings), 1)
        states = _split(state, readings, 0)
        return _in_order(range(len(readings)), [logits_NV.unsqueeze(0)], readings, states, padding)

    def _computed(self, delta_NP: Tensor | None, state: State) -> Tensor | None:
        """Deltas in the precision that is computed in: they may be kept in less."""
        return None if delta_NP is None else delta_NP.to(state.h.dtype)

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
        return ids_TN, State(h, c), _cat([*deltas, self.weights.zero(more)], 0)

    def _delta(self, reading: Reading) -> Tensor:
        return self.weights.zero(reading.rows) if reading.delta_RP is None else reading.delta_RP

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
        return send([*rows, *nothing], dtype, readings[0].state.h.device).t()

    def _tiles(self, rows: int) -> int:
        tile = self.weights.tile
        return -(-rows // tile) * tile

    def _padding(self, rows: int, tokens: int) -> int:
        """Tokens that are computed for nobody where so many rows read so many each."""
        return (self.weights.computed(self._tiles(rows)) - rows) * tokens


@dataclass(frozen=True)
class LearningRows(Rows):
    """Reads and learns for many rows at once."""

    weights: FastWeights

    def learn(self, lessons: Sequence[Lesson]) -> Taught:
        """Learn from each: at least one, and all of the same length."""
        readings = [lesson.reading for lesson in lessons]
        ids_TN, state, delta_NP = self._padded(readings)
        targets_TN = self._columns([lesson.targets for lesson in lessons], readings, torch.int64)
        weights_TN = self._columns([lesson.weights for lesson in lessons], readings, state.h.dtype)
        learned = self.weights.learn(
            self._computed(delta_NP, state),
            ids_TN,
            targets_TN,
            weights_TN,
            state,
            temperature=self.temperature,
        )
        states = _split(learned.state, readings, 0)
        padding = self._padding(sum(reading.rows for reading in readings), len(lessons[0].targets))
        read = _in_order(range(len(readings)), [learned.logits_TNV], readings, states, padding)
        return Taught(read, delta_NP, learned.gradient_NP)


def _in_order(
    order: Sequence[int],
    windows: Sequence[Tensor],
    ordered: Sequence[Reading],
    states: Sequence[State],
    padding: int,
) -> Pass:
    """A pass with firsts and states in the order of the readings, which were read in ``order``."""
    firsts = accumulate((reading.rows for reading in ordered[:-1]), initial=0)
    placed = sorted(zip(order, firsts, states, strict=True), key=lambda place: place[0])
    return Pass(windows, [first for _, first, _ in placed], [state for _, _, state in placed], padding)


def _split(state: State, readings: Sequence[Reading], first: int) -> list[State]:
    """Each reading's rows, of which the first is numbered."""
    sizes = [reading.rows for reading in readings]
    own = slice(first, first + sum(sizes))
    pairs = zip(torch.split(state.h[:, own], sizes, 1), torch.split(state.c[:, own], sizes, 1), strict=True)
    return [State(h, c) for h, c in pairs]


def _cat(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors side by side, without a copy where only one has anything: it may be all weights of a model."""
    present = [tensor for tensor in tensors if tensor.shape[dim]]
    return present[0] if len(present) == 1 else torch.cat(present, dim)
