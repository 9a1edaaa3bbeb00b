"""Many inputs in one pass: rows of unequal length, padded so that no row depends on its neighbours.

A row's last bits depend on how many rows a matrix product has, but not beyond a multiple of the tile. So rows
are padded to whole tiles. They are sorted by length, and a window ends where some of them do: what is left
goes on in fewer tiles, and no finished row costs more than its tile does.
Shape suffixes: T tokens, N rows of a pass, R rows of one input, V vocabulary, P fast weights, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from rlstm_model.adaptation.fast_weights import FastWeights, Weights, send
from rlstm_model.adaptation.rules import LearningRule
from rlstm_model.state import State


class RowInput(NamedTuple):
    """R rows that read the same ids from states of their own; ``delta_RP`` None is zero for all of them."""

    ids: Sequence[int]
    state: State
    delta_RP: Tensor | None = None

    @property
    def rows(self) -> int:
        """R."""
        return self.state.batch


class TrainingInput(NamedTuple):
    """R rows to learn from a segment: what they read, the targets, and the weights of the losses."""

    read: RowInput
    targets: Sequence[int]
    weights: Sequence[float]


class ForwardPass(NamedTuple):
    """What a pass over inputs gave.

    windows  logits ``[T, N, V]`` after each token, window after window of ever fewer rows
    first    of each input the number of its first row
    states   of each input after all its ids: views, of which each keeps those of all rows
    padding  tokens that were computed for rows that are none
    """

    windows: Sequence[Tensor]
    first: Sequence[int]
    states: Sequence[State]
    padding: int


class LearningPass(NamedTuple):
    """What a pass over training inputs gave: padding is in all of it.

    ``gradient_NP`` lives until the next pass. ``delta_NP`` are the rows' deltas as they were, in the
    precision they are kept in; None is zero for all.
    """

    read: ForwardPass
    delta_NP: Tensor | None
    gradient_NP: Tensor


@dataclass(frozen=True)
class PaddedRows:
    """Reads for many rows at once."""

    weights: Weights
    temperature: float = 1.0

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.weights.model.config.vocab_size

    def read(self, inputs: Sequence[RowInput]) -> ForwardPass:
        """Read each, at least one. If one has fast weights, all are read as if they had."""
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i].ids))
        ordered = [inputs[i] for i in order]
        ids_TN, state, delta_NP = self._padded(ordered)
        own_NP = _computed(delta_NP, state)
        ends = list(accumulate(each.rows for each in ordered))
        windows: list[Tensor] = []
        states: list[State] = []
        start, going_on, padding = 0, len(ordered), 0
        for stop in sorted({len(each.ids) for each in ordered}):
            rows = self._tiles(ends[going_on - 1])
            logits_TNV, state = self.weights.read(
                None if own_NP is None else own_NP[:rows],
                ids_TN[start:stop, :rows],
                state.rows(slice(rows)),
                temperature=self.temperature,
            )
            windows.append(logits_TNV)
            padding += self._padding(ends[going_on - 1], stop - start)
            left = sum(len(each.ids) > stop for each in ordered)
            states = [*_split(state, ordered[left:going_on], ends[left - 1] if left else 0), *states]
            start, going_on = stop, left
        return _in_order(order, windows, ordered, states, padding)

    def step(self, inputs: Sequence[RowInput]) -> ForwardPass:
        """The same where each has a single id, by the weights' own way to read one token."""
        ids_TN, state, delta_NP = self._padded(inputs)
        logits_NV, state = self.weights.step(
            _computed(delta_NP, state), ids_TN[0], state, temperature=self.temperature
        )
        padding = self._padding(sum(each.rows for each in inputs), 1)
        states = _split(state, inputs, 0)
        return _in_order(range(len(inputs)), [logits_NV.unsqueeze(0)], inputs, states, padding)

    def _padded(self, inputs: Sequence[RowInput]) -> tuple[Tensor, State, Tensor | None]:
        """Ids, states and deltas of whole tiles. Rows that are no row read token 0 from a state of zero."""
        rows = sum(each.rows for each in inputs)
        more = self._tiles(rows) - rows
        ids_TN = self._columns([each.ids for each in inputs], inputs, torch.int64)
        like = inputs[0].state.h
        nothing = like.new_zeros(like.shape[0], more, like.shape[2])
        h, c = (_cat([*(each.state[part] for each in inputs), nothing], 1) for part in range(2))
        if all(each.delta_RP is None for each in inputs):
            return ids_TN, State(h, c), None
        zero = self.weights.zero
        deltas = [zero(each.rows) if each.delta_RP is None else each.delta_RP for each in inputs]
        return ids_TN, State(h, c), _cat([*deltas, zero(more)], 0)

    def _columns(
        self, values: Sequence[Sequence[float]], inputs: Sequence[RowInput], dtype: torch.dtype
    ) -> Tensor:
        """``[T, N]`` from a list an input, repeated for its rows; zeros where there is nothing."""
        length = max(map(len, values))
        rows = [
            [*column, *(length - len(column)) * [0]]
            for column, each in zip(values, inputs, strict=True)
            for _ in range(each.rows)
        ]
        nothing = (self._tiles(len(rows)) - len(rows)) * [[0] * length]
        return send([*rows, *nothing], dtype, inputs[0].state.h.device).t()

    def _tiles(self, rows: int) -> int:
        tile = self.weights.tile
        return -(-rows // tile) * tile

    def _padding(self, rows: int, tokens: int) -> int:
        """Tokens that are computed for nobody where so many rows read so many each."""
        return (self.weights.computed(self._tiles(rows)) - rows) * tokens


@dataclass(frozen=True)
class LearningRows(PaddedRows):
    """Reads and learns for many rows at once, by one rule.

    ``logprobs_only``: scores have no ranks and entropies, which take longer than all else over a large
    vocabulary.
    """

    weights: FastWeights
    rule: LearningRule = field(kw_only=True)
    logprobs_only: bool = False

    def learn(self, inputs: Sequence[TrainingInput]) -> LearningPass:
        """Gradients of each: at least one, and all of the same length."""
        read = [each.read for each in inputs]
        ids_TN, state, delta_NP = self._padded(read)
        learned = self.weights.learn(
            _computed(delta_NP, state),
            ids_TN,
            self._columns([each.targets for each in inputs], read, torch.int64),
            self._columns([each.weights for each in inputs], read, state.h.dtype),
            state,
            temperature=self.temperature,
        )
        states = _split(learned.state, read, 0)
        padding = self._padding(sum(each.rows for each in read), len(inputs[0].targets))
        done = _in_order(range(len(read)), [learned.logits_TNV], read, states, padding)
        return LearningPass(done, delta_NP, learned.gradient_NP)


def _computed(delta_NP: Tensor | None, state: State) -> Tensor | None:
    """Deltas in the precision that is computed in: they may be kept in less."""
    return None if delta_NP is None else delta_NP.to(state.h.dtype)


def _in_order(
    order: Sequence[int],
    windows: Sequence[Tensor],
    ordered: Sequence[RowInput],
    states: Sequence[State],
    padding: int,
) -> ForwardPass:
    """A pass with firsts and states in the order of the inputs, which were read in ``order``."""
    firsts = accumulate((each.rows for each in ordered[:-1]), initial=0)
    placed = sorted(zip(order, firsts, states, strict=True), key=lambda place: place[0])
    return ForwardPass(windows, [first for _, first, _ in placed], [state for *_, state in placed], padding)


def _split(state: State, inputs: Sequence[RowInput], first: int) -> list[State]:
    """Each input's rows, of which the first is numbered."""
    sizes = [each.rows for each in inputs]
    own = slice(first, first + sum(sizes))
    pairs = zip(torch.split(state.h[:, own], sizes, 1), torch.split(state.c[:, own], sizes, 1), strict=True)
    return [State(h, c) for h, c in pairs]


def _cat(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors side by side, without a copy where only one has anything: it may be all weights of a model."""
    present = [tensor for tensor in tensors if tensor.shape[dim]]
    return present[0] if len(present) == 1 else torch.cat(present, dim)
