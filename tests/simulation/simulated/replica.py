"""A replica of the server: the engine as it is, on a simulated host with a device that has no thread."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from rlstm_server.engine.engine import Engine
from rlstm_server.engine.models import Models
from rlstm_server.errors import InternalError, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Limits
from simulated.device import Device, run_batch, served
from simulated.loop import Host, SimulatedLoop, on
from simulated.network import Link, Network
from simulated.told import ATTEMPT, Attempt

PATIENCE_S: Final = 120.0
"""A replica that lives and is not paused answers within so long."""

Work = Callable[[Engine], Awaitable[Any]]


class Broken(Exception):
    """The connection to the replica broke: nobody knows what became of the request."""


class Replica:
    """One replica, from start to start. `cache_bytes` and `limits` are its engine's."""

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        network: Network,
        *,
        metrics: Metrics,
        cache_bytes: int,
        limits: Limits,
        computed: Callable[[Host], None],
    ) -> None:
        self.name = name
        self.skew_s = 0.0
        self.stuck: list[Attempt] = []
        self.unforeseen: list[str] = []
        self._loop, self._network, self._metrics = loop, network, metrics
        self._computed = computed
        self._cache_bytes, self._limits = cache_bytes, limits
        self._starts = 0
        self._requests: dict[_Request, None] = {}
        self.start()

    @property
    def up(self) -> bool:
        """Whether it lives and goes on."""
        return self.host.alive and not self.host.paused

    @property
    def draining(self) -> bool:
        """Whether it takes no more work."""
        return self.engine.sessions.draining

    # ---- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, knowing nothing."""
        self._starts += 1
        self.host = Host(f"{self.name}.{self._starts}", skew_s=self.skew_s)
        self._end = self._loop.create_future()
        self.engine = on(self.host).run(self._engine)

    def _engine(self) -> Engine:
        engine = Engine(
            Models(served()),
            Link(self._network, self.host),
            self._metrics,
            limits=self._limits,
            cache_bytes=self._cache_bytes,
        )
        engine.worker.run_batch = run_batch
        engine.sessions._tasks = _InOrder()
        engine.worker._wake = Device(engine.worker, self._loop, partial(self._computed, self.host))
        return engine

    def crash(self) -> None:
        """Die: nothing of it runs any more, whatever it was doing."""
        self.host.alive = False
        if not self._end.done():
            self._end.set_result(None)
        for request in list(self._requests):
            request.broke()

    def pause(self) -> None:
        """Stand still."""
        self.host.paused = True

    def go_on(self) -> None:
        """Go on where it stood."""
        if self.host.paused:
            self._loop.go_on(self.host)

    async def drain(self, seconds: float) -> None:
        """End as SIGTERM ends it. Raises what the engine finds wrong with itself."""
        host, engine = self.host, self.engine
        closing = self._loop.create_task(engine.close(seconds), context=on(host))
        await asyncio.wait((closing, self._end), return_when=asyncio.FIRST_COMPLETED)
        if host.alive:
            closing.result()
            await asyncio.sleep(1.0)
            on(host).run(engine.check)
            self.crash()

    def check(self) -> None:
        """Raise ValueError unless its counts add up."""
        on(self.host).run(self.engine.check)

    # ---- requests ---------------------------------------------------------------------------------------

    async def ask(self, attempt: Attempt, work: Work, *, patience_s: float | None = None) -> None:
        """Send a request and write down what came of it; a client without patience leaves."""
        if not self.host.alive:
            attempt.outcome, attempt.ended = "unknown", self._loop.time()
            return
        request = _Request(self, attempt, self._loop)
        self._requests[request] = None
        try:
            await request.perform(work, patience_s)
        finally:
            self._requests.pop(request, None)
            attempt.ended = self._loop.time()


@dataclass(eq=False)
class _Request:
    """A request on its way. The task belongs to the replica, the future to the client."""

    replica: Replica
    attempt: Attempt
    loop: SimulatedLoop
    future: "asyncio.Future[Any]" = field(init=False)

    async def perform(self, work: Work, patience_s: float | None) -> None:
        self.future = self.loop.create_future()
        host, between = self.replica.host, on(None)
        context = on(host)
        context.run(ATTEMPT.set, self.attempt)
        task = self.loop.create_task(work(self.replica.engine), context=context)
        task.add_done_callback(self._reply, context=between)
        if patience_s is not None:
            self.loop.call_later(patience_s, self._leave, task, context, context=between)
        self.loop.call_later(PATIENCE_S, self._is_stuck, host, context=between)
        try:
            self.attempt.answer = await self.future
            self.attempt.outcome = "answered"
        except Broken:
            self.attempt.outcome = "unknown"
        except ServerError as error:
            self.attempt.error = error
            self.attempt.outcome = "unknown" if error.applied == "unknown" else "refused"

    def _reply(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            self.broke()
        elif self.future.done():
            task.exception()
        elif (error := task.exception()) is None:
            self.future.set_result(task.result())
        else:
            if not isinstance(error, ServerError) or isinstance(error, InternalError):
                self.replica.unforeseen.append(f"{self.attempt}: {error!r} after {error.__cause__!r}")
                error = Broken()
            self.future.set_exception(error)

    def broke(self) -> None:
        """The connection breaks."""
        if not self.future.done():
            self.future.set_exception(Broken())

    def _leave(self, task: "asyncio.Task[Any]", context: Context) -> None:
        """The client goes; the server notices."""
        if not self.future.done() and self.replica.host.alive:
            self.broke()
            self.loop.call_soon(task.cancel, context=context)

    def _is_stuck(self, host: Host) -> None:
        if self.future.done() or not host.alive:
            return
        if host.paused:
            self.loop.call_later(PATIENCE_S, self._is_stuck, host, context=on(None))
            return
        self.replica.stuck.append(self.attempt)
        self.broke()


class _InOrder(dict[Any, None]):
    """A set whose order is not that of addresses in memory, which no seed decides."""

    def add(self, item: Any) -> None:
        """Put in."""
        self[item] = None

    def discard(self, item: Any) -> None:
        """Take out."""
        self.pop(item, None)
