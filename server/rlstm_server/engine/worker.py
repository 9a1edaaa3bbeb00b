"""The device thread: it alone computes, it and its thread pool, and it never waits for anybody.

A job is a coroutine function that awaits what it wants computed (`compute`, `gather`). The thread goes in
batch steps: what all jobs of a step await is computed at once, and each goes on with its own results.
Outcomes and events travel to the event loop by ``call_soon_threadsafe``. A job that raises, or a batch item
that fails, fails alone.
"""

import asyncio
import logging
import threading
import time
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.items import (
    BatchItem,
    BatchResult,
    DecodeStep,
    NextToken,
    ObserveChunk,
    ObservedChunk,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_server.caller import Call
from rlstm_server.engine.buffer import Buffer, Event
from rlstm_server.engine.scheduler import Scheduler
from rlstm_server.errors import Draining, InternalError, ServerError
from rlstm_server.metrics import PHASES, Metrics, Phase

logger = logging.getLogger(__name__)

ROWS: Final = 256
"""Rows of a batch step, unless the server is told otherwise."""

SHORT: Final = 4
"""How many batches a job that asks for little has of one step: tokens of a text that is generated, or the
rest of one that was read, for which they need not wait until all others have learned once more."""

ALONE: Final = 64
"""The same while no job waits for the next step: what a step takes beside its batches is a tenth of one."""

SWITCH_SECONDS: Final = 0.0005
"""How long the device thread may keep the interpreter; Python's 5 ms would add up to late answers."""

Result = TypeVar("Result")
RunBatch: TypeAlias = Callable[[Sequence[BatchItem]], Sequence[BatchResult]]
Size: TypeAlias = tuple[Phase, int, int, bool]
Job: TypeAlias = Callable[[], Coroutine[Any, Any, Result]]
"""A coroutine function that the device thread runs: it awaits `compute` and `gather`, and nothing else."""


# ---- inside a job -----------------------------------------------------------------------------------------


@overload
def compute(item: ObserveChunk) -> Awaitable[ObservedChunk]: ...
@overload
def compute(item: ScoreChunk) -> Awaitable[ScoredChunk]: ...
@overload
def compute(item: DecodeStep) -> Awaitable[NextToken]: ...
@types.coroutine
def compute(item: BatchItem) -> Generator[Sequence[BatchItem], Sequence[BatchResult], Any]:
    """Have one item computed in the next batch. Raises what became of it, where that is an exception."""
    (result,) = yield (item,)
    if isinstance(result, Exception):
        raise result
    return result


@types.coroutine
def gather(
    coroutines: Iterable[Coroutine[Any, Any, Result]], at_once: int
) -> Generator[Sequence[BatchItem], Sequence[BatchResult], list[Result]]:
    """Await many coroutines: at most ``at_once`` of them share each batch. Results are in their order."""
    members: list[_Member[Result]] = []
    waiting, going = iter(coroutines), list[_Member[Result]]()
    results: Sequence[BatchResult] = ()
    try:
        while True:
            going = _advanced(going, results)
            while len(going) < at_once and (coroutine := next(waiting, None)) is not None:
                members.append(member := _Member(coroutine))
                if member.go_on(None):
                    going.append(member)
            if not going:
                return [result for member in members for result in member.returned]
            results = yield [item for member in going for item in member.items]
    finally:
        for member in members:
            member.coroutine.close()


@dataclass(eq=False)
class _Member(Generic[Result]):
    """One of the coroutines that are gathered: the items that it awaits, and then what it returned."""

    coroutine: Coroutine[Any, Any, Result]
    items: Sequence[BatchItem] = ()
    returned: list[Result] = field(default_factory=list)

    def go_on(self, results: Sequence[BatchResult] | None) -> bool:
        """Run to the next await; False when it is over. There are no results for the first time."""
        try:
            self.items = self.coroutine.send(results)
        except StopIteration as stop:
            self.returned.append(stop.value)
        return not self.returned


def _advanced(going: Sequence[_Member[Result]], results: Sequence[BatchResult]) -> list[_Member[Result]]:
    """Give each member the results of its own items; those that are not over."""
    still, start = [], 0
    for member in going:
        stop = start + len(member.items)
        if member.go_on(results[start:stop]):
            still.append(member)
        start = stop
    return still


# ---- jobs that are under way ------------------------------------------------------------------------------


@dataclass(eq=False)
class Request(Generic[Result]):
    """A job, who asked for it, the items that it awaits, and what became of it.

    `rows` are those of its next batch, `timings` the seconds that it waited for its first, and those of its
    batches. Only the device thread runs the job; the future belongs to the event loop that waits. With a
    `buffer` that is full it is `parked`: out of the queue until the reader goes on.
    """

    job: Job[Result]
    caller: Call
    tenant: str
    rows: int
    future: "asyncio.Future[Result]"
    buffer: Buffer[Any] | None = None
    items: Sequence[BatchItem] = ()
    sizes: Sequence[Size] = ()
    short: bool = False
    over: bool = False
    cancelled: bool = False
    parked: float | None = None
    submitted: float = field(default_factory=time.perf_counter)
    timings: dict[str, float] = field(default_factory=partial(dict, queue=0.0, compute=0.0))
    coroutine: Coroutine[Any, Any, Result] | None = None
    result: Result = field(init=False)

    def go_on(self, results: Sequence[BatchResult] | None, began: float) -> None:
        """Run to the next await, or to the end; the outcome is on its way when this returns.

        What it computed since it `began` is over.
        """
        if self.coroutine is None:
            self.timings["queue"], self.coroutine = began - self.submitted, self.job()
        outcome: Any = None
        try:
            self.items = self.coroutine.send(results)
            self.sizes = [size_of(item) for item in self.items]
            self.rows = sum([rows for _, rows, _, _ in self.sizes])
            self.short = all([short for *_, short in self.sizes])  # noqa: C419 - takes half as long
        except StopIteration as stop:
            self.over, outcome = True, stop.value
        except Exception as error:
            self.over, outcome = True, error
        self.timings["compute"] += time.perf_counter() - began
        if self.over:
            self.end(outcome)

    def end(self, outcome: Any) -> None:
        """Let the event loop have a result or an error; when that is closed, nobody waits any more."""
        self.over, self.items, self.result = True, (), outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, ServerError):
            # What was not foreseen fails this request only.
            extra = {"request_id": self.caller.request_id, "endpoint": self.caller.endpoint}
            logger.error("a job failed", exc_info=outcome, extra=extra)
            outcome = InternalError()
        try:
            self.future.get_loop().call_soon_threadsafe(self._settle, outcome)
        except RuntimeError:
            logger.info("a result came after its event loop was closed")

    def close(self) -> None:
        """End the job where it is."""
        if self.coroutine is not None:
            self.coroutine.close()

    def _settle(self, outcome: Any) -> None:
        if self.future.done():
            return
        if isinstance(outcome, ServerError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


@dataclass(eq=False)
class Worker:
    """Runs jobs, a batch step after the other. `capacity` bounds the jobs, `rows` a step."""

    metrics: Metrics
    capacity: int
    rows: int = ROWS
    run_batch: RunBatch = run_batch
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _closing: bool = False

    def __post_init__(self) -> None:
        self._scheduler: Scheduler[Request[Any]] = Scheduler(self.capacity, self.rows)
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self.metrics.watch_device(lambda: self.active, lambda: self.wanted_rows, self.rows)

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    async def close(self) -> None:
        """Refuse what is left, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def run(self, job: Job[Result], caller: Call, rows: int = 1) -> Request[Result]:
        """Run a job to its end; `rows` are those of its first batch.

        Cancelling the wait cancels the job between two batch steps. Raises Overloaded, Draining.
        """
        future = asyncio.get_running_loop().create_future()
        request = Request(job, caller, caller.tenant, max(1, rows), future)
        self._add(request)
        try:
            await future
        finally:
            if not request.over:
                self._cancel(request)
        return request

    async def stream(
        self,
        job: Callable[[Callable[[Event], None]], Coroutine[Any, Any, Any]],
        caller: Call,
        buffer: Buffer[Event],
        rows: int = 1,
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Run a job that puts events in a buffer, and iterate over those that are there at once.

        Leaving early cancels the job; it is parked while its reader is behind. Raises Overloaded, Draining,
        SlowConsumer.
        """
        future = asyncio.get_running_loop().create_future()
        request = Request(partial(job, buffer.put), caller, caller.tenant, max(1, rows), future, buffer)
        self._add(request)
        future.add_done_callback(lambda _: buffer.end())
        try:
            while True:
                self._unpark(request, buffer)
                events = await buffer.take()
                if not events:
                    break
                yield events
            future.result()
        finally:
            # An error that comes late, or came, is not reported as forgotten.
            if not future.cancel() and not future.cancelled():
                future.exception()
            self._cancel(request)

    async def drain(self, seconds: float) -> None:
        """Give the jobs there are so long to end."""
        with self._wake:
            futures = [request.future for request in self._scheduler.requests]
        if futures:
            await asyncio.wait(futures, timeout=seconds)

    def check(self) -> None:
        """Raise ValueError unless the scheduler's counts agree."""
        with self._wake:
            self._scheduler.check()

    @property
    def active(self) -> int:
        """Jobs that wait or run."""
        return self._scheduler.active

    @property
    def wanted_rows(self) -> int:
        """Rows that these jobs ask for."""
        with self._wake:
            return self._scheduler.wanted

    # ---- the event loop's side ----------------------------------------------------------------------------

    def _add(self, request: Request[Any], *, admitted: bool = False) -> None:
        with self._wake:
            if self._closing:
                raise Draining("the server is shutting down; retry later")
            self._scheduler.add(request, admitted=admitted)
            self._wake.notify()

    def _cancel(self, request: Request[Any]) -> None:
        """Close a job, unless it is in a batch step: then the device thread does when that is over."""
        with self._wake:
            request.cancelled = True
            if self._scheduler.remove(request):
                request.close()

    def _unpark(self, request: Request[Any], buffer: Buffer[Any]) -> None:
        """Let a job that was parked go on once its reader has all, unless that took too long."""
        if buffer.full:
            return
        with self._wake:
            parked, request.parked = request.parked, None
        if parked is not None:
            if time.monotonic() - parked > buffer.limits.send_seconds:
                raise buffer.slow()
            self._add(request, admitted=True)

    # ---- the device thread's side -------------------------------------------------------------------------

    def _work(self) -> None:
        while (step := self._next_step()) is not None:
            self._run_step(step)
        self._refuse_rest()

    def _next_step(self) -> Sequence[Request[Any]] | None:
        """The jobs of the next step, waiting for some; None when the worker is closing."""
        while True:
            with self._wake:
                closing, step = self._closing, self._scheduler.schedule() if not self._closing else []
                if not step and not closing:
                    self._wake.wait()
            if step or closing:
                return step or None

    def _run_step(self, step: Sequence[Request[Any]]) -> None:
        """Start what is new, compute what all await, and then a few batches for those who ask for little.

        After it each job is queued again, parked, or let go.
        """
        began = time.perf_counter()
        for request in step:
            if request.coroutine is None:
                request.go_on(None, began)
                self.metrics.queue_seconds.labels(request.caller.endpoint).observe(request.timings["queue"])
        rows, tokens = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
        going, began = [request for request in step if request.items], time.perf_counter()
        for number in range(ALONE):
            if not going or (number >= SHORT and self._scheduler.waiting):
                break
            since = time.perf_counter()
            results = iter(self._computed([item for request in going for item in request.items], going))
            for request in going:
                for phase, own_rows, own_tokens, _ in request.sizes:
                    rows[phase] += 0 if number else own_rows
                    tokens[phase] += own_tokens
                request.go_on([next(results) for _ in request.items], since)
            going = [one for one in going if one.items and not one.cancelled and one.short]
        self.metrics.batch_step_finished(time.perf_counter() - began, rows, tokens)
        with self._wake:
            for request in step:
                again = not request.over and not request.cancelled
                if again and request.buffer is not None and request.buffer.full:
                    again, request.parked = False, time.monotonic()
                self._scheduler.back(request, again=again)
                if request.cancelled:
                    request.close()

    def _computed(self, items: Sequence[BatchItem], jobs: Sequence[Request[Any]]) -> Sequence[BatchResult]:
        """What became of the jobs' items. When a batch as a whole fails, each job has one of its own."""
        try:
            return self.run_batch(items)
        except Exception as error:
            if len(jobs) == 1:
                return [error] * len(items)
            logger.error("a batch failed: its jobs go one by one", exc_info=error)
            return [own for job in jobs for own in self._computed(job.items, [job])]

    def _refuse_rest(self) -> None:
        """End what is left. A job is closed before its reader is told, who would close it beside us."""
        with self._wake:
            rest = self._scheduler.requests
            for request in rest:
                self._scheduler.remove(request)
                request.close()
        for request in rest:
            request.end(Draining("the server is shutting down; retry later"))


def size_of(item: BatchItem) -> Size:
    """What an item is counted as, its rows of the batch, the tokens of its text, and whether it is short.

    That is a single token, or the end of a text that ends no segment: several of these weigh as much as one
    segment, from which is learned.
    """
    if isinstance(item, DecodeStep):
        return "generate", len(item.cursor.states_R2U), 1, True
    if isinstance(item, ObserveChunk):
        phase: Phase = "update" if item.learns else "score"
        return phase, item.state.expert_config.rows, len(item.ids), not item.ends
    return "score", len(item.cursor.states_R2U), len(item.ids), False
