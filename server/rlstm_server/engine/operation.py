"""Work that outlives the request that asked for it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rlstm_server.errors import ServerError

Result = TypeVar("Result")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class Operation(Generic[Result]):
    """Work on a task of its own. Whoever waits for it may leave; a commit goes on without him.

    Once the work knows that its change `took_effect`, now or earlier, no error says otherwise.
    """

    work: Callable[["Operation[Result]"], Awaitable[Result]]
    took_effect: bool = False
    _refuse: Callable[[], ServerError] | None = None
    _abandoned: bool = False
    _committing: bool = False
    _task: "asyncio.Task[Result]" = field(init=False)

    def __post_init__(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(_take_exception)

    @property
    def task(self) -> "asyncio.Task[Result]":
        """The task that does the work."""
        return self._task

    async def wait(self) -> Result:
        """The result. Cancelling the wait abandons the operation."""
        try:
            return await asyncio.shield(self._task)
        except ServerError as error:
            self._honest(error)
            raise
        except asyncio.CancelledError:
            if self._refuse is not None and self._task.cancelled():
                raise self._honest(self._refuse()) from None
            self.abandon()
            raise

    def abandon(self, refuse: Callable[[], ServerError] | None = None) -> None:
        """Stop the work at once, or after the commit that is on its way; who still waits is refused so."""
        self._abandoned = True
        self._refuse = refuse
        if not self._committing:
            self._task.cancel()

    async def commit(self, call: Awaitable[Answer]) -> Answer:
        """Await a commit that nothing may interrupt."""
        self._committing = True
        try:
            return await call
        finally:
            self._committing = False

    def check(self) -> None:
        """Raise CancelledError when the operation was abandoned during a commit."""
        if self._abandoned:
            raise asyncio.CancelledError

    def _honest(self, error: ServerError) -> ServerError:
        if self.took_effect:
            error.applied = "yes"
        return error

    async def _run(self) -> Result:
        return await self.work(self)


def _take_exception(task: "asyncio.Task[Any]") -> None:
    """Look at a task's exception, so that an abandoned one is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
