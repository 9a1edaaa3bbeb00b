"""One queue a session: its tasks, one after the other, each outside the request that asked for it.

Work is charged when it is accepted, before it is done. A charge may be larger than what is left: the key then
waits until it is paid off. So a long text costs no more waiting than the same text in pieces, and no rate
forbids a text for its length. What took no effect is given back, and so is what was charged for tokens that
were not generated after all. But a reader that was shown the first of a text has had what was read for it,
and as much of the text as it took.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from rlstm_server.caller import UNLIMITED, Call, Quota, TokenBucket
from rlstm_server.engine.requests import session_key
from rlstm_server.engine.state import SessionCache
from rlstm_server.errors import (
    Draining,
    InFlight,
    OutcomeUnknown,
    Overloaded,
    ServerError,
    StoreUnavailable,
)
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import CompletionEvent, EndEvent, TokenEvent
from rlstm_server.schemas.text import Timings
from rlstm_server.store.base import SessionKey, new_id

COMMIT_SECONDS: Final = 3.0
"""How long a commit may be on its way."""

Result = TypeVar("Result")
AnswerT = TypeVar("AnswerT")


@dataclass(eq=False)
class Charge:
    """What one piece of work was charged so far, in tokens; of a text that it generates, what came of it."""

    quota: Quota
    generates: bool = False
    _charged: dict[TokenBucket, int] = field(default_factory=dict)
    _learns: bool = False
    _shown: int = 0
    _kept: bool = False

    def add(
        self, *, tokens: int | None = None, learned: int | None = None, generated: int | None = None
    ) -> None:
        """Charge so much in all: work that is done again is charged once, and less than before given back.

        Raises RateLimited, having charged nothing.
        """
        limits = self.quota
        wanted = ((limits.tokens, tokens), (limits.learned, learned), (limits.generated, generated))
        due = [(bucket, count) for bucket, count in wanted if bucket is not None and count is not None]
        for bucket, count in due:
            if count and bucket not in self._charged:
                bucket.check()
        for bucket, count in due:
            bucket.use(count - self._charged.get(bucket, 0))
            self._charged[bucket] = count

    def generate(self, most: int, *, learns: bool = False) -> None:
        """Charge the most tokens that may come of a text; in the end it is `settled`."""
        self.generates, self._learns = True, learns
        self.add(generated=most, learned=most if learns else None)

    def show(self, events: Sequence[CompletionEvent]) -> None:
        """Count what a reader has, who pays for the prompt too. A text that was stored costs nothing."""
        self._kept = True
        self._shown += sum(isinstance(event, TokenEvent) for event in events)
        if isinstance(events[-1], EndEvent) and events[-1].replayed:
            self._shown = 0

    def settle(self) -> None:
        """Charge the tokens that were shown, in place of the most that might have come."""
        self.add(generated=self._shown, learned=self._shown if self._learns else None)

    def refund(self) -> None:
        """Give everything back, unless it is kept."""
        if self._kept:
            return
        for bucket, count in self._charged.items():
            bucket.use(-count)
        self._charged.clear()


@dataclass(eq=False)
class Task(Generic[Result]):
    """Work that outlives the request: whoever waits for it may leave, and a commit goes on all the same.

    What it changes is told by the session's `key`, an `operation_id` and the `body_hash` of the request. With
    `redo` it may be computed again when another replica was faster. Once the work knows that its change
    `took_effect`, now or earlier, no error says otherwise. Its `timings` are those of its last change.
    """

    call: Call
    key: SessionKey
    operation_id: str
    body_hash: bytes = b""
    if_match: int | None = None
    redo: bool = True
    took_effect: bool = False
    timings: Timings = field(default_factory=dict)
    task: "asyncio.Task[Result]" = field(init=False)
    _refuse: Callable[[], ServerError] | None = None
    _abandoned: bool = False
    _committing: bool = False

    async def wait(self) -> Result:
        """The result. Cancelling the wait abandons the task."""
        try:
            return await asyncio.shield(self.task)
        except ServerError as error:
            self._honest(error)
            raise
        except asyncio.CancelledError:
            if self._refuse is not None and self.task.cancelled():
                raise self._honest(self._refuse()) from None
            self.abandon()
            raise

    def abandon(self, refuse: Callable[[], ServerError] | None = None) -> None:
        """Stop the work at once, or after the commit that is on its way; who still waits is refused so."""
        self._abandoned = True
        self._refuse = refuse
        if not self._committing:
            self.task.cancel()

    async def commit(self, call: Awaitable[AnswerT]) -> AnswerT:
        """Await a commit that nothing may interrupt."""
        self._committing = True
        try:
            return await call
        finally:
            self._committing = False

    def check(self) -> None:
        """Raise CancelledError when the task was abandoned during a commit."""
        if self._abandoned:
            raise asyncio.CancelledError

    def _honest(self, error: ServerError) -> ServerError:
        if self.took_effect:
            error.applied = "yes"
        return error


@dataclass(eq=False)
class _Queue:
    """The tasks of one session: one has its turn, the others wait in the order they came.

    `failures` counts tasks that the store left without an answer. Who waited behind one of them is told so at
    once: the next wait for the store would only begin there, and the one after that later still.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0
    tasks: list[Task[Any]] = field(default_factory=list)

    async def in_turn(
        self, known: int, work: Callable[[Task[Result]], Awaitable[Result]], task: Task[Result]
    ) -> Result:
        """Do work when all before it is done, of which so many failures were known."""
        async with self.turn:
            if self.failures != known:
                raise StoreUnavailable("the store did not answer the operation before this one")
            try:
                return await work(task)
            except (StoreUnavailable, OutcomeUnknown):
                self.failures += 1
                raise


@dataclass(eq=False, kw_only=True)
class SessionQueues:
    """The queues of all sessions that have anything to do."""

    cache: SessionCache
    metrics: Metrics
    queued_operations: int
    draining: bool = False
    _queues: dict[SessionKey, _Queue] = field(default_factory=dict)
    _tasks: set[Task[Any]] = field(default_factory=set)

    @contextmanager
    def taking(self, key: str | None, quota: Quota = UNLIMITED) -> Iterator[Charge]:
        """Take work, unless draining, and give what it is charged to: given back where it was not applied.

        What fails under a key may have been done under it before.
        """
        charge = Charge(quota)
        try:
            if self.draining:
                raise Draining("the server is shutting down; retry later")
            yield charge
        except ServerError as error:
            if error.applied == "no":
                charge.refund()
            if key is not None:
                error.doubt()
            raise
        finally:
            if charge.generates:
                charge.settle()

    def enqueue(
        self,
        call: Call,
        body_hash: bytes,
        work: Callable[[Task[Result]], Awaitable[Result]],
        made: SessionKey | None = None,
    ) -> Task[Result]:
        """Put work into the session's queue; work on one that is to be `made` has no queue.

        Raises NotFound, Overloaded, and InFlight for an operation that is in it.
        """
        key, queue = made or session_key(call), None
        if made is None:
            queue = self._queues.get(key) or _Queue()
            if call.key is not None and any(task.call.key == call.key for task in queue.tasks):
                self.metrics.replays.labels("in_flight").inc()
                raise InFlight("an operation with this key is being worked on", retry_after=1)
            if len(queue.tasks) >= self.queued_operations:
                raise Overloaded(
                    f"{self.queued_operations} operations of this session wait already", retry_after=1
                )
            self._queues[key], work = queue, partial(queue.in_turn, queue.failures, work)
        task = Task[Result](call, key, call.key or new_id(), body_hash, call.if_match)
        task.task = asyncio.ensure_future(work(task))
        if queue is not None:
            queue.tasks.append(task)
        self._tasks.add(task)
        task.task.add_done_callback(partial(self._leave, task))
        return task

    def _leave(self, task: Task[Any], done: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not done.cancelled():
            done.exception()  # looked at, so that an abandoned one is not reported as forgotten
        queue = self._queues.get(task.key)
        if queue is not None and task in queue.tasks:
            queue.tasks.remove(task)
            if not queue.tasks:
                del self._queues[task.key]

    def end(self, key: SessionKey, refuse: Callable[[], ServerError]) -> None:
        """Stop all tasks of a session that has ended, but for a commit on its way; keep no copy."""
        self.cache.drop(key)
        queue = self._queues.get(key)
        for task in [] if queue is None else list(queue.tasks):
            task.abandon(refuse)
            # A commit from just before the end makes a copy once more.
            task.task.add_done_callback(lambda _: self.cache.drop(key))

    async def drain(self, seconds: float) -> None:
        """Let tasks finish for so long; stop the others, but for commits on their way."""
        self.draining = True
        under_way = [task.task for task in self._tasks]
        if under_way:
            await asyncio.wait(under_way, timeout=seconds)
        for task in list(self._tasks):
            task.abandon(partial(Draining, "the server is shutting down"))
        rest = [task.task for task in self._tasks]
        if rest:
            await asyncio.wait(rest, timeout=COMMIT_SECONDS)

    def check(self) -> None:
        """Raise ValueError unless queues and tasks belong together and the cache's sizes add up."""
        self.cache.check()
        queued = sum(len(queue.tasks) for queue in self._queues.values())
        if queued > len(self._tasks):
            raise ValueError(f"{queued} tasks are queued, {len(self._tasks)} exist")
        if any(not queue.tasks for queue in self._queues.values()):
            raise ValueError("a queue without tasks was left behind")
