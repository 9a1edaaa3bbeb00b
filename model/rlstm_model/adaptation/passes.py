"""The passes of a batch of tasks: all rows without fast weights, all with, and all that learn.

Shape suffixes: T tokens, N rows of a pass, V vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor

from rlstm_model.adaptation.batch_items import BatchItem, ObserveChunk
from rlstm_model.adaptation.experts import Place, Predictions
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.rows import LearningRows, Lesson, Pass, Reading, Rows
from rlstm_model.adaptation.steps import Stepped, step
from rlstm_model.adaptation.tasks import Task
from rlstm_model.state import State

PassKind: TypeAlias = Literal["read", "turn", "learn"]
"""A pass reads texts, or one token each to go on from, or learns."""


@dataclass(eq=False)
class Done:
    """What the rows of one task gave, in their order.

    places   where the predictions of each row are
    states   of some rows after others, views of a whole pass
    stepped  what a step made of the stream, if there was one
    """

    places: list[Place] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    stepped: Stepped | None = None

    def add(self, number: int, read: Pass, place: int, rows: int, skipped: int = 0) -> None:
        """The rows of a reading, by its place in the pass of a number."""
        first = read.first[place]
        self.places += [Place(number, row, skipped) for row in range(first, first + rows)]
        self.states.append(read.states[place])


class Passes:
    """The passes of a batch of works, which are done when it is made.

    done         for each work
    predictions  of all passes
    padding      tokens that were computed for rows that are none, by the kind of pass
    """

    def __init__(self, rows: Rows, works: Sequence[BatchItem], tasks: Sequence[Task], *, turns: bool) -> None:
        """``turns``: every reading is of a single token."""
        self.done = [Done() for _ in tasks]
        self.padding: Counter[PassKind] = Counter()
        self._kind: PassKind = "turn" if turns else "read"
        self._windows: list[Sequence[Tensor]] = []
        lessons = _alike(works, tasks)
        guests = [_guests(learner.rows, parts, tasks) for (learner, _), parts in lessons.items()]
        plain = {i: task.plain for i, task in enumerate(tasks) if task.plain is not None}
        for invited in guests:
            plain = {i: reading for i, reading in plain.items() if i not in invited}
        own = {i: task.own for i, task in enumerate(tasks) if task.own is not None}
        riders = _riders(rows, own, plain)
        way = rows.step if turns else rows.read
        self._read(way, {i: reading for i, reading in plain.items() if i not in riders})
        self._read(way, own, riders)
        for ((learner, _), parts), invited in zip(lessons.items(), guests, strict=True):
            self._learn(learner, parts, invited)
        self.predictions = Predictions.of(self._windows)
        self._windows.clear()

    def _read(
        self,
        way: Callable[[Sequence[Reading]], Pass],
        readings: Mapping[int, Reading],
        riders: Mapping[int, Reading] | None = None,
    ) -> None:
        """One pass. Riders come after the rows that they share it with, and before them in their works."""
        if not readings:
            return
        whole = [*readings.items(), *(riders or {}).items()]
        read = way([reading for _, reading in whole])
        for place in (*range(len(readings), len(whole)), *range(len(readings))):
            i, reading = whole[place]
            self.done[i].add(len(self._windows), read, place, reading.rows)
        self._windows.append(read.windows)
        self.padding[self._kind] += read.padding

    def _learn(self, learner: Learner, parts: "_Parts", guests: dict[int, Lesson]) -> None:
        """One pass; the guests' rows come after those that learn."""
        lessons = [lesson for _, lesson in parts.values()]
        taught = learner.rows.learn([*lessons, *guests.values()])
        number = len(self._windows)
        for place, i in enumerate(guests, start=len(lessons)):
            self.done[i].add(number, taught.read, place, guests[i].reading.rows)
        steps = step(learner, [part for part, _ in parts.values()], taught)
        for place, ((i, (part, _)), stepped) in enumerate(zip(parts.items(), steps, strict=True)):
            self.done[i].add(number, taught.read, place, len(part.rates), len(part.state.pending))
            self.done[i].stepped = stepped
        self._windows.append(taught.read.windows)
        self.padding["learn"] += taught.read.padding


_Parts: TypeAlias = dict[int, tuple[ObserveChunk, Lesson]]


def _alike(works: Sequence[BatchItem], tasks: Sequence[Task]) -> dict[tuple[Learner, int], _Parts]:
    """The parts that learn by one learner from as many tokens: after a reset there are shorter segments."""
    alike: dict[tuple[Learner, int], _Parts] = {}
    for i, (work, task) in enumerate(zip(works, tasks, strict=True)):
        if isinstance(work, ObserveChunk) and task.lesson is not None:
            alike.setdefault((work.evaluator, len(task.lesson.targets)), {})[i] = (work, task.lesson)
    return alike


# A row with fast weights of zero has the bits of one without any, so it does not show which pass it was in.


def _riders(rows: Rows, own: Mapping[int, Reading], plain: Mapping[int, Reading]) -> dict[int, Reading]:
    """Static rows that are read beside the own rows of their work, as many as there is padding for."""
    free = -sum(reading.rows for reading in own.values()) % rows.weights.tile
    riders: dict[int, Reading] = {}
    for i in own:
        reading = plain.get(i)
        if reading is not None and reading.rows <= free:
            riders[i] = reading
            free -= reading.rows
    return riders


def _guests(rows: LearningRows, parts: _Parts, tasks: Sequence[Task]) -> dict[int, Lesson]:
    """Static rows that read the segment of the same part, as many as there is padding to be them instead."""
    free = -sum(lesson.reading.rows for _, lesson in parts.values()) % rows.weights.tile
    guests: dict[int, Lesson] = {}
    for i, (_, lesson) in parts.items():
        plain = tasks[i].plain
        if free > 0 and plain is not None and plain.ids == lesson.reading.ids:
            guests[i] = Lesson(plain, lesson.targets, [0.0] * len(lesson.targets))
            free -= plain.rows
    return guests
