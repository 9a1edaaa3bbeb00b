"""Jobs as generators: what they ask of the next round, and what they are sent.

A job yields an :class:`Ask`, works for the next round and events for its reader, and is sent what became of
the works, in their order: a value each, or the exception of a work that failed. What it returns is its
result. Code that reads one text knows nothing of rounds; :func:`together` makes one job of many such texts.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from rlstm_model.adaptation.batch_step import (
    BatchItem,
    BatchResult,
    DecodeStep,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_server.metrics import Phase

Event = TypeVar("Event")
Result = TypeVar("Result")


class Ask(NamedTuple, Generic[Event]):
    """Works for the next round, and events that may be shown at once."""

    works: Sequence[BatchItem] = ()
    events: Sequence[Event] = ()

    @property
    def rows(self) -> int:
        """Rows of the round that the works take."""
        return sum(row_count(work) for work in self.works)

    @property
    def light(self) -> bool:
        """Whether every work is a single token, or the end of a text, which no segment ends with.

        Several of them weigh as much as one segment, from which is learned.
        """
        return bool(self.works) and all(_is_light(work) for work in self.works)


Steps: TypeAlias = Generator[Ask[Event], Sequence[BatchResult], Result]


def row_count(work: BatchItem) -> int:
    """Rows of the batch that a work takes."""
    return work.state.expert_config.rows if isinstance(work, ObserveChunk) else work.cursor.state.batch


def census(works: Iterable[BatchItem]) -> tuple[Counter[Phase], Counter[Phase]]:
    """The rows of works and the tokens of their texts, by what they are for."""
    rows, tokens = Counter[Phase](), Counter[Phase]()
    for work in works:
        phase = _phase(work)
        rows[phase] += row_count(work)
        tokens[phase] += 1 if isinstance(work, DecodeStep) else len(work.ids)
    return rows, tokens


def _is_light(work: BatchItem) -> bool:
    return isinstance(work, DecodeStep) or (isinstance(work, ObserveChunk) and not work.ends)


def _phase(work: BatchItem) -> Phase:
    if isinstance(work, DecodeStep):
        return "generate"
    return "update" if isinstance(work, ObserveChunk) and work.learns else "score"


@overload
def performed(work: ObserveChunk, events: Sequence[Event] = ()) -> Steps[Event, ObservedChunk]: ...
@overload
def performed(work: ScoreChunk, events: Sequence[Event] = ()) -> Steps[Event, ScoredChunk]: ...
@overload
def performed(work: DecodeStep, events: Sequence[Event] = ()) -> Steps[Event, NextToken]: ...
def performed(work: BatchItem, events: Sequence[Event] = ()) -> Steps[Event, Any]:
    """Have one work done in the next round. Raises what became of it, where that is an exception."""
    (result,) = yield Ask((work,), events)
    if isinstance(result, Exception):
        raise result
    return result


class _Strand(Generic[Event, Result]):
    """One of the jobs that go together."""

    def __init__(self, steps: Steps[Event, Result]) -> None:
        self.steps = steps
        self.ask: Ask[Event] = Ask()
        self.results: list[Result] = []

    def go_on(self, sent: Sequence[BatchResult] | None) -> bool:
        """Advance by one ask; False when the job is over."""
        try:
            # The first step takes nothing: there was no ask before it.
            self.ask = next(self.steps) if sent is None else self.steps.send(sent)
        except StopIteration as stop:
            self.results.append(stop.value)
        return not self.results


def together(jobs: Iterable[Steps[Event, Result]], at_once: int) -> Steps[Event, list[Result]]:
    """Many jobs as one: the works of at most ``at_once`` of them share each round. Results are in order."""
    strands = [_Strand(steps) for steps in jobs]
    waiting, going = iter(strands), list[_Strand[Event, Result]]()
    sent: Sequence[BatchResult] = ()
    try:
        while True:
            going = _advanced(going, sent)
            while len(going) < at_once and (strand := next(waiting, None)) is not None:
                if strand.go_on(None):
                    going.append(strand)
            if not going:
                return [result for strand in strands for result in strand.results]
            sent = yield Ask(
                [work for strand in going for work in strand.ask.works],
                [event for strand in going for event in strand.ask.events],
            )
    finally:
        for strand in strands:
            strand.steps.close()


def _advanced(
    going: Sequence[_Strand[Event, Result]], sent: Sequence[BatchResult]
) -> list[_Strand[Event, Result]]:
    """Give each strand what became of its own works; those that are not over."""
    still, start = [], 0
    for strand in going:
        stop = start + len(strand.ask.works)
        if strand.go_on(sent[start:stop]):
            still.append(strand)
        start = stop
    return still
