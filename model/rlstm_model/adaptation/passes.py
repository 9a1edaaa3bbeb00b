"""The passes of a batch: all rows without fast weights, all with, and all that learn; and the learning step.

Shape suffixes: T tokens, N rows of a pass, K rows of a stream that learn, V vocabulary, P fast weights.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlstm_model.adaptation.batch_items import BatchItem, DecodeStep, ObserveChunk
from rlstm_model.adaptation.padded_rows import (
    ForwardPass,
    LearningPass,
    LearningRows,
    PaddedRows,
    RowInput,
    TrainingInput,
)
from rlstm_model.adaptation.predictions import Place, Predictions
from rlstm_model.adaptation.rules import Steps
from rlstm_model.state import State

PassKind: TypeAlias = Literal["read", "decode", "learn"]
"""A pass reads texts, or one token each to go on from, or learns."""

MAX_BAD_STEPS = 3


class Stepped(NamedTuple):
    """What a step made of a stream.

    delta_KP        after it; the value that there was where no row took it
    bad_steps       for each row, steps skipped in a row
    lost            which rows have skipped too many, and must restart
    updates, guards, gradient_norms, norm_ratio   see
                    :class:`~rlstm_model.adaptation.batch_items.ObservedChunk`
    """

    delta_KP: Tensor | None
    bad_steps: tuple[int, ...]
    lost: tuple[bool, ...]
    updates: int
    guards: tuple[str, ...]
    gradient_norms: tuple[float, ...]
    norm_ratio: float | None


@dataclass(eq=False)
class ReadRows:
    """What the rows of one item gave, in their order.

    places   where the predictions of each row are
    states   of some rows after others, views of a whole pass
    stepped  what a step made of the stream, if there was one
    """

    places: list[Place] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    stepped: Stepped | None = None

    @property
    def state(self) -> State:
        """The state of all rows, copied: a view would keep the states of a whole pass alive."""
        if len(self.states) == 1:
            return State(self.states[0].h.clone(), self.states[0].c.clone())
        return State(*(torch.cat(parts, 1) for parts in zip(*self.states, strict=True)))


class Passes:
    """The passes of a batch of items, which are done when it is made.

    done         for each item
    predictions  of all passes
    padding      tokens that were computed for rows that are none, by the kind of pass
    """

    def __init__(self, rows: PaddedRows, items: Sequence[BatchItem]) -> None:
        """Items that are read by the same rows: all of them decode steps, or none."""
        self.done = [ReadRows() for _ in items]
        self.padding: Counter[PassKind] = Counter()
        self._windows: list[Sequence[Tensor]] = []
        inputs = [item.inputs for item in items]
        chunks = _by_length(items)
        guests = [_guests(rows.weights.tile, own) for own in chunks]
        invited = {i for each in guests for i in each}
        frozen = {
            i: one.frozen for i, one in enumerate(inputs) if one.frozen is not None and i not in invited
        }
        own = {i: one.own for i, one in enumerate(inputs) if one.own is not None}
        riders = _riders(rows.weights.tile, own, frozen)
        decode = isinstance(items[0], DecodeStep)
        kind: PassKind = "decode" if decode else "read"
        read = rows.step if decode else rows.read
        self._read(kind, read, {i: one for i, one in frozen.items() if i not in riders}, {})
        self._read(kind, read, own, riders)
        for some, visitors in zip(chunks, guests, strict=True):
            self._learn(some, visitors)
        self.predictions = Predictions.of(self._windows)
        self._windows.clear()

    def _read(
        self,
        kind: PassKind,
        read: Callable[[Sequence[RowInput]], ForwardPass],
        inputs: Mapping[int, RowInput],
        riders: Mapping[int, RowInput],
    ) -> None:
        """One pass. Riders come after the rows that they share it with, and before them in their items."""
        if not inputs:
            return
        whole = [*inputs.items(), *riders.items()]
        done = read([one for _, one in whole])
        for place in (*range(len(inputs), len(whole)), *range(len(inputs))):
            i, one = whole[place]
            self._add(i, done, place, one.rows)
        self._windows.append(done.windows)
        self.padding[kind] += done.padding

    def _learn(self, chunks: Mapping[int, ObserveChunk], guests: Mapping[int, TrainingInput]) -> None:
        """One pass and its step; the guests' rows come after those that learn."""
        parts = list(chunks.values())
        training = [part.inputs.training for part in parts]
        rows = parts[0].rows
        learned = rows.learn([*(one for one in training if one is not None), *guests.values()])
        for place, i in enumerate(guests, start=len(parts)):
            self._add(i, learned.read, place, guests[i].read.rows)
        for place, (i, stepped) in enumerate(zip(chunks, _step(rows, parts, learned), strict=True)):
            self._add(i, learned.read, place, len(chunks[i].rates), len(chunks[i].state.pending))
            self.done[i].stepped = stepped
        self._windows.append(learned.read.windows)
        self.padding["learn"] += learned.read.padding

    def _add(self, i: int, done: ForwardPass, place: int, rows: int, skipped: int = 0) -> None:
        """The rows of an input, by its place in the pass that is at work."""
        first, number = done.first[place], len(self._windows)
        self.done[i].places += [Place(number, row, skipped) for row in range(first, first + rows)]
        self.done[i].states.append(done.states[place])


def _by_length(items: Sequence[BatchItem]) -> list[dict[int, ObserveChunk]]:
    """The chunks that learn, those of as many tokens together: after a reset there are shorter segments."""
    alike: dict[int, dict[int, ObserveChunk]] = {}
    for i, item in enumerate(items):
        if isinstance(item, ObserveChunk) and item.inputs.training is not None:
            alike.setdefault(len(item.inputs.training.targets), {})[i] = item
    return list(alike.values())


# A row with fast weights of zero has the bits of one without any, so it does not show which pass it was in.


def _riders(tile: int, own: Mapping[int, RowInput], frozen: Mapping[int, RowInput]) -> dict[int, RowInput]:
    """Frozen baselines that are read beside the own rows of their item, as many as there is padding for."""
    free = -sum(one.rows for one in own.values()) % tile
    riders: dict[int, RowInput] = {}
    for i in own:
        one = frozen.get(i)
        if one is not None and one.rows <= free:
            riders[i] = one
            free -= one.rows
    return riders


def _guests(tile: int, chunks: Mapping[int, ObserveChunk]) -> dict[int, TrainingInput]:
    """Frozen baselines that read the segment of their own chunk, as many as there is padding for."""
    free = -sum(chunk.inputs.rows[2] for chunk in chunks.values()) % tile
    guests: dict[int, TrainingInput] = {}
    for i, chunk in chunks.items():
        frozen, training = chunk.inputs.frozen, chunk.inputs.training
        if free > 0 and frozen is not None and training is not None and frozen.ids == training.read.ids:
            guests[i] = TrainingInput(frozen, training.targets, [0.0] * len(training.targets))
            free -= frozen.rows
    return guests


def _step(rows: LearningRows, chunks: Sequence[ObserveChunk], learned: LearningPass) -> Iterator[Stepped]:
    """The step of each chunk's stream, all at once: their rows lie one after the other."""
    # Padding takes the step too: how many rows a norm is taken of may change its last bits.
    gradient_NP, delta_NP = learned.gradient_NP, learned.delta_NP
    if delta_NP is None:
        delta_NP = rows.weights.zero(len(gradient_NP))
    rates = [min(part.state.rate_scale * rate, sys.float_info.max) for part in chunks for rate in part.rates]
    more = len(gradient_NP) - len(rates)
    steps = rows.rule.step(delta_NP, gradient_NP, [*rates, *more * [0.0]])
    first = 0
    for chunk in chunks:
        own = slice(first, first + len(chunk.rates))
        yield _stepped(chunk, steps.of(own))
        first = own.stop


def _stepped(chunk: ObserveChunk, steps: Steps) -> Stepped:
    bad_steps = [0 if ok else bad + 1 for ok, bad in zip(steps.taken, chunk.state.bad_steps, strict=True)]
    lost = tuple(bad == MAX_BAD_STEPS for bad in bad_steps)
    cut = [taken and scale != 1 for taken, scale in zip(steps.taken, steps.scales, strict=True)]
    skipped = len(steps.taken) - sum(steps.taken)
    ratios = [ratio for ratio, taken in zip(steps.norm_ratios, steps.taken, strict=True) if taken]
    guards = ("step_skipped",) * skipped + ("projected",) * sum(cut) + ("restarted",) * sum(lost)
    return Stepped(
        delta_KP=_own(steps.delta_NP) if any(steps.taken) else chunk.state.delta_KP,
        bad_steps=tuple(bad_steps),
        lost=lost,
        updates=int(any(steps.taken)),
        guards=guards,
        gradient_norms=tuple(norm for norm in steps.gradient_norms if math.isfinite(norm)),
        norm_ratio=max(ratios, default=None),
    )


def _own(delta_KP: Tensor) -> Tensor:
    """A value that keeps nothing else alive: a copy, unless it is all there is."""
    whole = delta_KP.untyped_storage().nbytes() == delta_KP.nbytes
    return delta_KP if whole else delta_KP.clone()
