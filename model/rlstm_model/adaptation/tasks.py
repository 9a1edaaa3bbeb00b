"""Which rows a work reads with, from where, and how many works make a pass.

Shape suffixes: V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlstm_model.adaptation.batch_items import BatchItem, DecodeStep, ObserveChunk, ScoreChunk
from rlstm_model.adaptation.rows import Lesson, Reading, Rows

# Logits of one pass: learning holds them twice, and scoring once more.
ELEMENTS_AT_ONCE = 1 << 24
_COST_OF_LEARNING = 3


class Task(NamedTuple):
    """The rows of a work: first those that read without fast weights, then those with or those that learn."""

    plain: Reading | None
    own: Reading | None
    lesson: Lesson | None

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many there are of each."""
        taught = 0 if self.lesson is None else self.lesson.reading.rows
        return (
            0 if self.plain is None else self.plain.rows,
            0 if self.own is None else self.own.rows,
            taught,
        )

    @property
    def cost(self) -> int:
        """The tokens that all rows read; one that is learned from counts three times."""
        plain, own, taught = self.rows
        return (plain + own + _COST_OF_LEARNING * taught) * self.length

    @property
    def length(self) -> int:
        """The most tokens that a row reads."""
        readings = (self.plain, self.own, None if self.lesson is None else self.lesson.reading)
        return max(len(reading.ids) for reading in readings if reading is not None)


def task_of(work: BatchItem) -> Task:
    """The rows that read a work's tokens."""
    if isinstance(work, ObserveChunk):
        return _of_part(work)
    last = work.cursor.last
    return _frozen((last, *work.ids[:-1]) if isinstance(work, ScoreChunk) else (last,), work)


def _of_part(part: ObserveChunk) -> Task:
    state, expert_config = part.state, part.state.expert_config
    ids = (state.now.last, *part.ids[:-1])
    if part.learns:
        plain = Reading(ids, state.now.state.rows(slice(1))) if expert_config.static else None
        return Task(plain, None, _lesson(part))
    if state.delta_KP is None:
        return Task(Reading(ids, state.now.state), None, None)
    own = Reading(ids, state.now.state.rows(expert_config.learning), state.delta_KP)
    return Task(Reading(ids, state.now.state.rows(slice(1))) if expert_config.static else None, own, None)


def _lesson(part: ObserveChunk) -> Lesson:
    """The whole segment from its start.

    The loss is the sum over the tokens that may be learned from, divided by S where the reduction is the
    mean: a segment of which a part does not learn takes a smaller step, not a stronger one.
    """
    state, config = part.state, part.evaluator.config
    whole = (*state.pending, *part.ids)
    scale = 1 / config.segment if config.reduction == "mean" else 1.0
    rows = state.start.state.rows(state.expert_config.learning)
    reading = Reading((state.start.last, *whole[:-1]), rows, state.delta_KP)
    return Lesson(reading, whole, [scale * flag for flag in part.flags])


def _frozen(ids: Sequence[int], work: ScoreChunk | DecodeStep) -> Task:
    """Rows that read ``ids`` after the work's cursor and learn nothing: of several, the first is static."""
    state, delta_KP = work.cursor.state, work.reader.delta_KP
    if delta_KP is None:
        return Task(Reading(ids, state), None, None)
    static = state.batch - len(delta_KP)
    own = Reading(ids, state.rows(slice(static, None)), delta_KP)
    return Task(Reading(ids, state.rows(slice(static))) if static else None, own, None)


def batches(rows: Rows, tasks: Sequence[Task], threads: int = 1) -> Iterator[list[int]]:
    """Tasks that are done together, as places: at least one, and no more than a pass should hold.

    Those of a length lie side by side, where they share their windows. For several ``threads`` there are as
    many batches, of about equal cost, or a multiple: but none except the last is less than a tile of rows,
    which would cost what a tile costs.
    """
    weights, vocabulary = rows.weights, rows.weights.model.config.vocab_size
    fair = _fair_cost(tasks, weights.at_once, threads)
    batch: list[int] = []
    counts, longest, cost = (0, 0, 0), 0, 0
    for place in sorted(range(len(tasks)), key=lambda i: (tasks[i].lesson is None, -tasks[i].length)):
        task = tasks[place]
        plain, own, taught = task.rows
        more = (counts[0] + plain, counts[1] + own, counts[2] + taught)
        length = max(longest, task.length)
        full = max(more) > weights.at_once or sum(more) * length * vocabulary > ELEMENTS_AT_ONCE
        if batch and (full or (cost >= fair and max(counts) >= weights.tile)):
            yield batch
            batch, more, length, cost = [], task.rows, task.length, 0
        batch.append(place)
        counts, longest, cost = more, length, cost + task.cost
    if batch:
        yield batch


def _fair_cost(tasks: Sequence[Task], at_once: int, threads: int) -> float:
    """What a batch should cost for all threads to be done together; a single one has no bound."""
    if threads == 1:
        return math.inf
    most = max(sum(task.rows[kind] for task in tasks) for kind in range(3))
    return sum(task.cost for task in tasks) / (threads * -(-most // (at_once * threads)))
