"""The passes of a batch of tasks: all rows without fast weights, all with, and all that learn.

Shape suffixes: T tokens, N rows of a pass, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rlstm_model.adaptation.experts import Place, Predictions
from rlstm_model.adaptation.learner import Learner
from rlstm_model.adaptation.rows import Pass, Reading, Rows
from rlstm_model.adaptation.steps import Stepped, step
from rlstm_model.adaptation.tasks import Task
from rlstm_model.adaptation.works import Part, Work
from rlstm_model.state import State


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
    """

    def __init__(self, rows: Rows, works: Sequence[Work], tasks: Sequence[Task], *, turns: bool) -> None:
        """``turns``: every reading is of a single token."""
        self.done = [Done() for _ in tasks]
        self._windows: list[Sequence[Tensor]] = []
        way = rows.step if turns else rows.read
        self._read(way, {i: task.plain for i, task in enumerate(tasks) if task.plain is not None})
        self._read(way, {i: task.own for i, task in enumerate(tasks) if task.own is not None})
        self._learn(works, tasks)
        self.predictions = Predictions.of(self._windows)
        self._windows.clear()

    def _read(self, way: Callable[[Sequence[Reading]], Pass], readings: dict[int, Reading]) -> None:
        if not readings:
            return
        read = way([*readings.values()])
        for place, (i, reading) in enumerate(readings.items()):
            self.done[i].add(len(self._windows), read, place, reading.rows)
        self._windows.append(read.windows)

    def _learn(self, works: Sequence[Work], tasks: Sequence[Task]) -> None:
        """A pass for each length: after a reset there are shorter segments."""
        alike: dict[tuple[Learner, int], dict[int, Part]] = {}
        for i, (work, task) in enumerate(zip(works, tasks, strict=True)):
            if isinstance(work, Part) and task.lesson is not None:
                alike.setdefault((work.adapter, len(task.lesson.targets)), {})[i] = work
        for (learner, _), parts in alike.items():
            self._learn_alike(learner, parts, tasks)

    def _learn_alike(self, learner: Learner, parts: dict[int, Part], tasks: Sequence[Task]) -> None:
        taught = learner.rows.learn([lesson for i in parts if (lesson := tasks[i].lesson) is not None])
        steps = step(learner, [*parts.values()], taught)
        for place, ((i, part), stepped) in enumerate(zip(parts.items(), steps, strict=True)):
            self.done[i].add(len(self._windows), taught.read, place, len(part.rates), len(part.state.pending))
            self.done[i].stepped = stepped
        self._windows.append(taught.read.windows)
