"""The one device thread: it alone touches torch, and it never waits for anybody.

A job is a generator that works one slice between two ``yield``s; what it yields are events for its reader,
what it returns is its result. Both travel back to the event loop by ``call_soon_threadsafe``. A job that
raises fails alone. The slow weights never change in a server: their digest is taken when the thread starts
and when it ends.
"""

import asyncio
import hashlib
import itertools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from torch import nn

from rlstm_server.engine.messages import Caller
from rlstm_server.engine.scheduler import Outcome, Plan, Scheduler
from rlstm_server.errors import Draining, InternalError, ServerError
from rlstm_server.metrics import Metrics

logger = logging.getLogger(__name__)

Event = TypeVar("Event")
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Sequence[Event], None, Result]


class Ran(NamedTuple, Generic[Result]):
    """A job's result, the seconds it waited for its first slice and those it computed."""

    result: Result
    queue: float
    compute: float


@dataclass(eq=False)
class _Job:
    """A job on its way through the scheduler; only the device thread touches `steps`."""

    number: int
    steps: Generator[Sequence[Any], None, Any]
    caller: Caller
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Ran[Any]]"
    on_events: Callable[[Sequence[Any]], None]
    submitted: float
    started: float | None = None
    compute: float = 0.0

    def finish(self, ran: Ran[Any]) -> None:
        if not self.future.done():
            self.future.set_result(ran)

    def fail(self, error: ServerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def leave(self) -> None:
        """Nobody waits any more: an error that comes late, or came, is not reported as forgotten."""
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()

    def deliver(self, callback: Callable[[Any], None], value: object) -> None:
        """Call back in the event loop; when that is closed already, nobody waits any more."""
        try:
            self.loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            logger.info("a result came after its event loop was closed")


@dataclass(eq=False)
class Runner:
    """Runs jobs slice by slice in the order of the scheduler. `capacity` bounds the jobs in it."""

    model: nn.Module
    metrics: Metrics
    capacity: int
    _jobs: dict[int, _Job] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _discarded: list[_Job] = field(default_factory=list)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _closing: bool = False

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(self.capacity)
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._digests: list[str] = []

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    async def close(self) -> None:
        """Refuse what is left, end the thread, and make sure that the slow weights are what they were.

        Raises InternalError when they are not.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is None:
            return
        await asyncio.to_thread(self._thread.join)
        if len(set(self._digests)) != 1:
            logger.critical("the base weights changed while serving")
            raise InternalError("the base weights changed while serving")

    async def run(self, steps: Steps[Any, Result], caller: Caller) -> Ran[Result]:
        """Run a job to its end. Cancelling the wait cancels the job between two slices. Raises Overloaded."""
        job = self._submit(steps, caller, lambda events: None)
        try:
            return await job.future
        finally:
            self._cancel(job)

    async def stream(self, steps: Steps[Event, Any], caller: Caller) -> AsyncGenerator[Event, None]:
        """Run a job and iterate over its events as they come; leaving early cancels it. Raises Overloaded."""
        arrived: asyncio.Queue[Sequence[Event] | None] = asyncio.Queue()
        job = self._submit(steps, caller, arrived.put_nowait)
        job.future.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (events := await arrived.get()) is not None:
                for event in events:
                    yield event
            job.future.result()
        finally:
            job.leave()
            self._cancel(job)

    async def drain(self, seconds: float) -> None:
        """Give the jobs there are so long to end."""
        with self._wake:
            futures = [job.future for job in self._jobs.values()]
        if futures:
            await asyncio.wait(futures, timeout=seconds)

    def check(self) -> None:
        """Raise ValueError unless the scheduler's books balance and every job in them is known here."""
        with self._wake:
            self._scheduler.check()
            if self._scheduler.active != len(self._jobs):
                raise ValueError(f"{len(self._jobs)} jobs for {self._scheduler.active} in the scheduler")

    @property
    def active(self) -> int:
        """Jobs that wait or run."""
        return self._scheduler.active

    # ---- the event loop's side ----------------------------------------------------------------------------

    def _submit(
        self, steps: Steps[Any, Any], caller: Caller, on_events: Callable[[Sequence[Any]], None]
    ) -> _Job:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ran[Any]] = loop.create_future()
        job = _Job(next(self._numbers), steps, caller, loop, future, on_events, time.perf_counter())
        with self._wake:
            if self._closing:
                raise Draining("the server is shutting down")
            self._scheduler.add(job.number, caller.tenant)
            self._jobs[job.number] = job
            self._wake.notify()
        return job

    def _cancel(self, job: _Job) -> None:
        with self._wake:
            if self._scheduler.cancel(job.number) and not self._scheduler.holds(job.number):
                self._discarded.append(self._jobs.pop(job.number))
                self._wake.notify()

    # ---- the device thread's side -------------------------------------------------------------------------

    def _work(self) -> None:
        self._digests.append(weights_digest(self.model))
        while (plan := self._next_plan()) is not None:
            outcome = self._execute(plan)
            self._learn(plan, outcome)
        self._refuse_rest()
        self._digests.append(weights_digest(self.model))

    def _next_plan(self) -> Plan | None:
        """The next plan, waiting for work; None when the runner is closing."""
        while True:
            with self._wake:
                discarded, self._discarded = self._discarded, []
                plan = None if self._closing else self._scheduler.schedule()
                if plan is None and not discarded and not self._closing:
                    self._wake.wait()
                    continue
            _discard(discarded)
            if plan is not None or self._closing:
                return plan

    def _execute(self, plan: Plan) -> Outcome:
        over = {number: self._advance(self._jobs[number]) for number in plan.jobs}
        return Outcome(
            unfinished=tuple(number for number in plan.jobs if not over[number]),
            finished=tuple(number for number in plan.jobs if over[number]),
        )

    def _learn(self, plan: Plan, outcome: Outcome) -> None:
        with self._wake:
            self._scheduler.update(outcome)
            gone = [self._jobs.pop(number) for number in plan.jobs if not self._scheduler.holds(number)]
        _discard(gone)

    def _advance(self, job: _Job) -> bool:
        """Run one slice; whether the job is over."""
        began = time.perf_counter()
        if job.started is None:
            job.started = began
            endpoint = self.metrics.endpoint(job.caller.endpoint)
            self.metrics.queue_seconds.labels(endpoint).observe(began - job.submitted)
        try:
            events = next(job.steps)
        except StopIteration as stop:
            job.compute += time.perf_counter() - began
            job.deliver(job.finish, Ran(stop.value, job.started - job.submitted, job.compute))
            return True
        except Exception as error:
            job.deliver(job.fail, _as_ours(error, job.caller))
            return True
        job.compute += time.perf_counter() - began
        if events:
            job.deliver(job.on_events, events)
        return False

    def _refuse_rest(self) -> None:
        with self._wake:
            rest, self._jobs = list(self._jobs.values()), {}
            for job in rest:
                self._scheduler.cancel(job.number)
        for job in rest:
            job.deliver(job.fail, Draining("the server is shutting down"))
        _discard(rest)


def weights_digest(model: nn.Module) -> str:
    """Give the SHA-256 of every weight's name and bytes."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def _as_ours(error: Exception, caller: Caller) -> ServerError:
    """Keep our errors; log and replace what was not foreseen: it fails this request only."""
    if isinstance(error, ServerError):
        return error
    extra = {"request_id": caller.request_id, "endpoint": caller.endpoint}
    logger.error("a job failed", exc_info=error, extra=extra)
    return InternalError()


def _discard(jobs: Sequence[_Job]) -> None:
    """Close the generators here, where their tensors were made."""
    for job in jobs:
        job.steps.close()
