"""A job on its way through the runner: who asked, what it wants next, and where its outcome goes."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from rlstm_model.adaptation.batch_step import BatchResult
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.steps import Ask, Steps
from rlstm_server.errors import InternalError, ServerError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Ran(NamedTuple, Generic[Result]):
    """A job's result, the seconds it waited for its first round and those of the rounds it was in."""

    result: Result
    queue: float
    compute: float


@dataclass(eq=False)
class Job:
    """Only the device thread touches `steps`; the future belongs to the event loop that waits."""

    number: int
    steps: Steps[Any, Any]
    caller: Caller
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Ran[Any]]"
    on_events: Callable[[Sequence[Any]], None]
    submitted: float = field(default_factory=time.perf_counter)
    ask: Ask[Any] = field(default_factory=Ask)
    over: bool = False
    started: float | None = None
    compute: float = 0.0

    # ---- the device thread's side -------------------------------------------------------------------------

    def advance(self, sent: Sequence[BatchResult]) -> None:
        """Run to the next ask, or to the end; events and outcome are on their way when this returns."""
        began = time.perf_counter()
        try:
            # The first step takes nothing: there was no ask before it.
            self.ask = next(self.steps) if self.started is None else self.steps.send(sent)
        except StopIteration as stop:
            self._end(began)
            self._deliver(self._finish, Ran(stop.value, self.waited, self.compute))
        except Exception as error:
            self._end(began)
            self._deliver(self.fail, self._as_ours(error))
        else:
            self._count(began)
            if self.ask.events:
                self._deliver(self.on_events, self.ask.events)

    def refuse(self, error: ServerError) -> None:
        """End it unfinished."""
        self.over = True
        self._deliver(self.fail, error)

    @property
    def waited(self) -> float:
        """Seconds before its first step."""
        return 0.0 if self.started is None else self.started - self.submitted

    def _end(self, began: float) -> None:
        self._count(began)
        self.over, self.ask = True, Ask()

    def _count(self, began: float) -> None:
        self.started = began if self.started is None else self.started
        self.compute += time.perf_counter() - began

    def _as_ours(self, error: Exception) -> ServerError:
        """Keep our errors; log and replace what was not foreseen: it fails this request only."""
        if isinstance(error, ServerError):
            return error
        extra = {"request_id": self.caller.request_id, "endpoint": self.caller.endpoint}
        logger.error("a job failed", exc_info=error, extra=extra)
        return InternalError()

    def _deliver(self, callback: Callable[[Any], None], value: object) -> None:
        """Call back in the event loop; when that is closed already, nobody waits any more."""
        try:
            self.loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            logger.info("a result came after its event loop was closed")

    # ---- the event loop's side ----------------------------------------------------------------------------

    def _finish(self, ran: Ran[Any]) -> None:
        if not self.future.done():
            self.future.set_result(ran)

    def fail(self, error: ServerError) -> None:
        """End the wait with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def leave(self) -> None:
        """Nobody waits any more: an error that comes late, or came, is not reported as forgotten."""
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()
