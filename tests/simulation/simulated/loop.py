"""An event loop without time, threads or sockets: a seed decides what happens next.

Time passes only when nothing is ready to run, and then jumps to the next timer. Of what is ready one is
drawn: every task is a lane of its own, and so are all plain callbacks of one host together, which asyncio
promises to call in the order they came. What belongs to a host that is dead is never run, not even its
`finally`: that is what kill -9 means. What belongs to a paused host waits.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final

MAX_STEPS: Final = 200_000
"""A run that takes more steps goes in circles."""

THREAD_S: Final = 0.02
"""What is done in a thread takes up to so long."""

ENDINGS: Final = 3
"""How often a task is cancelled that goes on after it was."""


class Stuck(Exception):
    """Nothing can happen any more, or the same happens again and again."""


@dataclass(eq=False)
class Host:
    """A machine: what runs in a context that names it is its own.

    skew_s   how far its wall clock is off
    fuse     the number of the step instead of which `burn` is called
    """

    name: str
    skew_s: float = 0.0
    alive: bool = True
    paused: bool = False
    steps: int = 0
    fuse: int = 0
    burn: Callable[[], None] = lambda: None
    tasks: list[tuple["asyncio.Task[Any]", Context]] = field(default_factory=list)


HOST: ContextVar[Host | None] = ContextVar("host", default=None)


def on(host: Host | None) -> Context:
    """A copy of the present context, on this host; None is the world between the hosts."""
    context = copy_context()
    context.run(HOST.set, host)
    return context


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. `faults` are exceptions that nobody took."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._now = 0.0
        self._lanes: dict[object, deque[asyncio.Handle]] = {}
        self._order: list[object] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._held: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._over = False
        self.steps = 0
        self.faults: list[str] = []

    # ---- running ----------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run until `main` is over. Raises what it raises, and Stuck."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main, context=on(None))
            while not task.done():
                self._step()
            task.result()
        finally:
            self._end()
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        if not self._order:
            self._pass_time()
        at = int(self._draw.random() * len(self._order))
        lane = self._order[at]
        handles = self._lanes[lane]
        handle = handles.popleft()
        if not handles:
            del self._lanes[lane]
            self._order[at] = self._order[-1]
            self._order.pop()
        if handle.cancelled():
            return
        host = handle._context.get(HOST)
        if host is not None and not self._over:
            if not host.alive or host.paused:
                self._held.append(handle)
                return
            host.steps += 1
            if host.steps == host.fuse:
                host.burn()
                if not host.alive or host.paused:
                    self._held.append(handle)
                    return
        self.steps += 1
        if self.steps > MAX_STEPS and not self._over:
            raise Stuck(f"{MAX_STEPS} steps were taken")
        handle._run()

    def _pass_time(self) -> None:
        """Jump to the next timer; what is due then is ready."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise Stuck("everybody waits, and nothing will come")
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready(heapq.heappop(self._timers)[2])

    def _ready(self, handle: asyncio.Handle) -> None:
        owner = getattr(handle._callback, "__self__", None)
        lane = owner if isinstance(owner, asyncio.Task) else handle._context.get(HOST)
        handles = self._lanes.get(lane)
        if handles is None:
            handles = self._lanes[lane] = deque()
            self._order.append(lane)
        handles.append(handle)

    def _end(self) -> None:
        """Leave nothing behind: the tasks of the dead are cancelled, in a world where nobody hears of it."""
        self._over, self._timers = True, []
        for handle in self._held:
            self._ready(handle)
        pending = [task for task in self._tasks if not task.done()]
        for _ in range(ENDINGS):
            for task in pending:
                task.cancel()
            while self._order:
                self._step()
            pending = [task for task in self._tasks if not task.done()]
        for task in pending:
            task._log_destroy_pending = False
        self._tasks, self._held = [], []

    # ---- hosts ------------------------------------------------------------------------------------------

    def go_on(self, host: Host) -> None:
        """End a pause: what waited is ready, in the order it came."""
        host.paused = False
        held, self._held = self._held, []
        for handle in held:
            if handle._context.get(HOST) is host:
                self._ready(handle)
            else:
                self._held.append(handle)

    # ---- what asyncio asks of a loop --------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Make ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Make ready in so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Make ready at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> "asyncio.Future[Any]":
        """A thread beside the loop: it takes a moment."""
        future = self.create_future()
        self.call_later(self._draw.random() * THREAD_S, self._work, future, function, args)
        return future

    def _work(self, future: "asyncio.Future[Any]", function: Any, args: Any) -> None:
        if future.cancelled():
            return
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)

    def create_future(self) -> "asyncio.Future[Any]":
        """Nothing new."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        """A task that is known to its host."""
        context = copy_context() if context is None else context
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if (host := context.get(HOST)) is not None:
            host.tasks.append((task, context))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what went wrong for the checker."""
        if not self._over:
            self.faults.append(f"{context['message']}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Until the end."""
        return not self._over

    def is_closed(self) -> bool:
        """After the end."""
        return self._over

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""
