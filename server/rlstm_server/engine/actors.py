"""One actor a session: a queue of its operations, each on a task of its own, outside the request's."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.operation import Operation
from rlstm_server.errors import (
    Draining,
    InFlight,
    OutcomeUnknown,
    Overloaded,
    ServerError,
    StoreUnavailable,
)
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey

COMMIT_SECONDS: Final = 3.0
"""How long a commit may be on its way."""

Result = TypeVar("Result")


@dataclass(eq=False)
class _Actor:
    """The operations of one session: one has its turn, the others wait in the order they came.

    `failures` counts operations that the store left without an answer. Who waited behind one of them is told
    so at once: his own wait for the store would only begin there, and the next one's after that.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0
    operations: dict[str, Operation[Any]] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Actors:
    """The actors of all sessions that have anything to do."""

    cache: SessionCache
    metrics: Metrics
    queued_operations: int
    draining: bool = False
    _actors: dict[SessionKey, _Actor] = field(default_factory=dict)
    _operations: set[Operation[Any]] = field(default_factory=set)

    def start(self, work: Callable[[Operation[Result]], Awaitable[Result]]) -> Operation[Result]:
        """Start work that belongs to no session yet."""
        operation = Operation(work)
        self._operations.add(operation)
        operation.task.add_done_callback(lambda _: self._operations.discard(operation))
        return operation

    def enqueue(
        self, key: SessionKey, operation_id: str, work: Callable[[Operation[Result]], Awaitable[Result]]
    ) -> Operation[Result]:
        """Put work into the session's queue. Raises InFlight for an operation that is in it, Overloaded."""
        actor = self._actors.get(key) or _Actor()
        if operation_id in actor.operations:
            self.metrics.replays.labels("in_flight").inc()
            raise InFlight("an operation with this key is being worked on", retry_after=1)
        if len(actor.operations) >= self.queued_operations:
            raise Overloaded(
                f"{self.queued_operations} operations of this session wait already", retry_after=1
            )

        known = actor.failures

        async def in_turn(operation: Operation[Result]) -> Result:
            async with actor.turn:
                if actor.failures != known:
                    raise StoreUnavailable("the store did not answer the operation before this one")
                try:
                    return await work(operation)
                except (StoreUnavailable, OutcomeUnknown):
                    actor.failures += 1
                    raise

        self._actors[key] = actor
        operation = actor.operations[operation_id] = self.start(in_turn)
        operation.task.add_done_callback(lambda _: self._leave(key, actor, operation_id))
        return operation

    def _leave(self, key: SessionKey, actor: _Actor, operation_id: str) -> None:
        actor.operations.pop(operation_id, None)
        if not actor.operations and self._actors.get(key) is actor:
            del self._actors[key]

    def end(self, key: SessionKey, refuse: Callable[[], ServerError]) -> None:
        """Stop all operations of a session that has ended, but for a commit on its way; keep no copy."""
        self.cache.drop(key)
        actor = self._actors.get(key)
        for operation in [] if actor is None else list(actor.operations.values()):
            operation.abandon(refuse)
            # A commit from just before the end makes a copy once more.
            operation.task.add_done_callback(lambda _: self.cache.drop(key))

    async def drain(self, seconds: float) -> None:
        """Let operations finish for so long; stop the others, but for commits on their way."""
        self.draining = True
        tasks = [operation.task for operation in self._operations]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for operation in list(self._operations):
            operation.abandon(partial(Draining, "the server is shutting down"))
        rest = [operation.task for operation in self._operations]
        if rest:
            await asyncio.wait(rest, timeout=COMMIT_SECONDS)

    def check(self) -> None:
        """Raise ValueError unless actors and operations belong together and the cache's books balance."""
        self.cache.check()
        queued = sum(len(actor.operations) for actor in self._actors.values())
        if queued > len(self._operations):
            raise ValueError(f"{queued} operations are queued, {len(self._operations)} exist")
        if any(not actor.operations for actor in self._actors.values()):
            raise ValueError("an actor without operations was left behind")
