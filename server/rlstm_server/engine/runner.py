"""The one device thread: it alone touches torch, it and its thread pool, and it never waits for anybody.

It goes in rounds. Every job of a plan says what it wants computed (:mod:`rlstm_server.engine.steps`), all of
it is performed at once, and each job is sent its own and says what it wants next. Events and results travel
to the event loop by ``call_soon_threadsafe``. A job that raises, or a work that fails, fails alone. The slow
weights never change in a server: their digest is taken when the thread starts and when it ends.
"""

import asyncio
import hashlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from torch import nn

from rlstm_model.adaptation.batch_step import BatchItem, BatchResult, PassKind, run_batch
from rlstm_server.engine.backlog import Backlog, Paced
from rlstm_server.engine.job import Job, Ran, Result
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.scheduler import Outcome, Plan, Scheduler
from rlstm_server.engine.slots import Slots
from rlstm_server.engine.steps import Event, Steps, census
from rlstm_server.errors import Draining, InternalError
from rlstm_server.metrics import Metrics, Phase
from rlstm_server.schemas import EngineLimits

logger = logging.getLogger(__name__)

ROWS: Final = 256
"""Rows of a round, unless the server is told otherwise."""

LIGHT: Final = 4
"""How often those go on in one round who ask for little: tokens of a text that is being written, or the rest
of one that was read, for which they need not wait until all others have learned once more."""

SWITCH_SECONDS: Final = 0.0005
"""How long the device thread may keep the interpreter; Python's 5 ms would add up to late answers."""

IDLE_SECONDS: Final = 1.0
"""How long an idle thread lets memory that nobody uses any more lie before it is zeroed."""

PHASES: Final[dict[PassKind, Phase]] = {"read": "score", "turn": "generate", "learn": "update"}
"""What passes are counted as."""

Perform: TypeAlias = Callable[[Sequence[BatchItem]], Sequence[BatchResult]]


@dataclass(eq=False)
class Rounds:
    """What the device thread has done: rounds, the rows in them, and the seconds they took."""

    count: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.rows += rows
        self.seconds += seconds


@dataclass(eq=False)
class Runner:
    """Runs jobs round by round in the order of the scheduler. `capacity` bounds the jobs, `rows` a round.

    To `padding` whatever performs adds what it computed for nobody.
    """

    models: Sequence[nn.Module]
    metrics: Metrics
    capacity: int
    rows: int = ROWS
    perform: Perform = run_batch
    padding: Counter[PassKind] = field(default_factory=Counter)
    limits: EngineLimits = field(default_factory=EngineLimits)
    slots: Slots = field(default_factory=Slots)
    rounds: Rounds = field(default_factory=Rounds)
    _jobs: dict[int, Job] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _discarded: list[Steps[Any, Any]] = field(default_factory=list)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _closing: bool = False

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(self.capacity, self.rows)
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._digests: list[str] = []
        self.metrics.watch_device(lambda: self.active, lambda: self.wanted_rows, self.rows)

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

    async def run(self, steps: Steps[Any, Result], caller: Caller, rows: int = 1) -> Ran[Result]:
        """Run a job to its end; `rows` are those of its first round.

        Cancelling the wait cancels the job between two rounds. Raises Overloaded.
        """
        job = self._submit(steps, caller, rows, lambda events: None)
        try:
            return await job.future
        finally:
            self._cancel(job)

    async def stream(
        self, steps: Steps[Event, Any], caller: Caller, rows: int = 1
    ) -> AsyncGenerator[Event, None]:
        """Run a job and iterate over its events as they come; leaving early cancels it.

        The job pauses while its reader is behind. Raises Overloaded, SlowConsumer.
        """
        backlog: Backlog[Event] = Backlog(self.limits)
        paced, paused = Paced(steps, backlog), False
        try:
            while not paced.over:
                if paused:
                    paced.check_reader()
                    backlog.go_on()
                job = self._submit(paced.portion(), caller, rows, backlog.put, admitted=paused)
                job.future.add_done_callback(lambda _: backlog.end())
                try:
                    while (event := await backlog.take()) is not None:
                        yield event
                    job.future.result()
                finally:
                    job.leave()
                    self._cancel(job)
                paused = True
        finally:
            self._discard_later(steps)

    async def drain(self, seconds: float) -> None:
        """Give the jobs there are so long to end."""
        with self._wake:
            futures = [job.future for job in self._jobs.values()]
        if futures:
            await asyncio.wait(futures, timeout=seconds)

    def check(self) -> None:
        """Raise ValueError unless the books of scheduler and slots balance and every job is known here."""
        with self._wake:
            self._scheduler.check()
            if self._scheduler.active != len(self._jobs):
                raise ValueError(f"{len(self._jobs)} jobs for {self._scheduler.active} in the scheduler")
        self.slots.check()

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

    def _submit(
        self,
        steps: Steps[Any, Any],
        caller: Caller,
        rows: int,
        on_events: Callable[[Sequence[Any]], None],
        *,
        admitted: bool = False,
    ) -> Job:
        loop = asyncio.get_running_loop()
        job = Job(next(self._numbers), steps, caller, loop, loop.create_future(), on_events)
        with self._wake:
            if self._closing:
                raise Draining("the server is shutting down")
            self._scheduler.add(job.number, caller.tenant, rows, admitted=admitted)
            self._jobs[job.number] = job
            self._wake.notify()
        return job

    def _cancel(self, job: Job) -> None:
        with self._wake:
            if self._scheduler.cancel(job.number) and not self._scheduler.holds(job.number):
                self._discarded.append(self._jobs.pop(job.number).steps)
                self._wake.notify()

    def _discard_later(self, steps: Steps[Any, Any]) -> None:
        """Have a generator closed where its tensors were made."""
        with self._wake:
            self._discarded.append(steps)
            self._wake.notify()

    # ---- the device thread's side -------------------------------------------------------------------------

    def _work(self) -> None:
        self._digests.append(weights_digest(self.models))
        while (plan := self._next_plan()) is not None:
            self._learn(plan, self._execute(plan))
        self._refuse_rest()
        self.slots.wipe()
        self._digests.append(weights_digest(self.models))

    def _next_plan(self) -> Plan | None:
        """The next plan, waiting for work; None when the runner is closing."""
        while True:
            with self._wake:
                discarded, self._discarded = self._discarded, []
                plan = None if self._closing else self._scheduler.schedule()
                if plan is None and not discarded and not self._closing:
                    self._wake.wait(IDLE_SECONDS)
            _discard(discarded)
            # Here no work is under way that could read what is zeroed.
            self.slots.wipe()
            if plan is not None or self._closing:
                return plan

    def _execute(self, plan: Plan) -> Outcome:
        jobs = [self._jobs[number] for number in plan.jobs]
        for job in jobs:
            if not job.ask.works:
                self._begin(job)
        going = [job for job in jobs if job.ask.works]
        if going:
            self._round(going)
        return Outcome(
            unfinished={job.number: job.ask.rows for job in jobs if not job.over},
            finished=tuple(job.number for job in jobs if job.over),
        )

    def _begin(self, job: Job) -> None:
        """Advance a job that waits for no works: a new one, or one that had events only."""
        new = job.started is None
        job.advance(())
        if new:
            endpoint = self.metrics.endpoint(job.caller.endpoint)
            self.metrics.queue_seconds.labels(endpoint).observe(job.waited)

    def _round(self, jobs: Sequence[Job]) -> None:
        """A batch of what the jobs ask for, and then a few of those who ask for little."""
        rows, seconds = 0, 0.0
        for _ in range(LIGHT):
            if not jobs:
                break
            rows += sum(job.ask.rows for job in jobs)
            seconds += self._batch(jobs)
            jobs = [job for job in jobs if job.ask.light]
        self.rounds.add(rows, seconds)
        self.metrics.round_finished(seconds)

    def _batch(self, jobs: Sequence[Job]) -> float:
        """Perform what the jobs ask for, and send each its own; the seconds it took."""
        asked = [job.ask.works for job in jobs]
        rows, tokens = census(work for works in asked for work in works)
        began = time.perf_counter()
        results = self._performed(asked)
        seconds = time.perf_counter() - began
        self.metrics.batch_finished(seconds, rows, tokens)
        self.metrics.padded({PHASES[kind]: count for kind, count in self.padding.items()})
        self.padding.clear()
        for job, own in zip(jobs, results, strict=True):
            job.compute += seconds
            job.advance(own)
            if not job.over and not job.ask.works:
                job.advance(())  # what came last were events: it may be over now
        return seconds

    def _performed(self, asked: Sequence[Sequence[BatchItem]]) -> list[Sequence[BatchResult]]:
        """What became of each job's works. When a round as a whole fails, each job has one of its own."""
        try:
            results = self.perform([work for works in asked for work in works])
        except Exception as error:
            if len(asked) == 1:
                return [[error] * len(asked[0])]
            logger.error("a round failed: its jobs go one by one", exc_info=error)
            return [own for works in asked for own in self._performed([works])]
        ends = list(itertools.accumulate(len(works) for works in asked))
        return [results[end - len(works) : end] for works, end in zip(asked, ends, strict=True)]

    def _learn(self, plan: Plan, outcome: Outcome) -> None:
        with self._wake:
            self._scheduler.update(outcome)
            gone = [self._jobs.pop(number) for number in plan.jobs if not self._scheduler.holds(number)]
        _discard([job.steps for job in gone])

    def _refuse_rest(self) -> None:
        with self._wake:
            rest, self._jobs = list(self._jobs.values()), {}
            discarded, self._discarded = self._discarded, []
            for job in rest:
                self._scheduler.cancel(job.number)
        for job in rest:
            job.refuse(Draining("the server is shutting down"))
        _discard(discarded + [job.steps for job in rest])


def weights_digest(models: Iterable[nn.Module]) -> str:
    """Give the SHA-256 of every weight's name and bytes."""
    digest = hashlib.sha256()
    for model in models:
        for name, weight in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def _discard(generators: Sequence[Steps[Any, Any]]) -> None:
    """Close generators here, where their tensors were made."""
    for steps in generators:
        steps.close()
