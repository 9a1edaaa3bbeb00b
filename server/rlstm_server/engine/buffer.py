"""A bounded buffer of events for one reader. When it is full, nothing more is made before it is empty again.

Waiting for a reader takes no place on the device and none in its queue: a text that is only shown is parked
(:meth:`rlstm_server.engine.worker.Worker.stream`), one that is kept waits between two commits.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rlstm_server.errors import SlowConsumer
from rlstm_server.settings import Limits

EVENT_BYTES: Final = 128
"""What an event without its text is counted as."""

GATHERED_SECONDS: Final = 0.005
"""How long events gather for a reader that was just woken: to wake it for each costs as much as a token."""

WHOLE_SECONDS: Final = 0.02
"""The same for one that answers when it has all."""

Event = TypeVar("Event")


@dataclass(eq=False)
class Buffer(Generic[Event]):
    """What was made and not taken yet. One thread puts, the event loop that made the buffer takes.

    An event that comes first wakes the reader at once, those that come right after it together: a reader that
    `streams` shows each as soon as it can.
    """

    limits: Limits
    streams: bool = True
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _events: list[Event] = field(default_factory=list)
    _bytes: int = 0
    _ended: bool = False
    _notified: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def full(self) -> bool:
        """Whether nothing more should be made."""
        return len(self._events) >= self.limits.reader_events or self._bytes >= self.limits.reader_bytes

    def put(self, event: Event) -> None:
        """Let an event be taken."""
        with self._lock:
            self._events.append(event)
            self._bytes += EVENT_BYTES + len(getattr(event, "text", ""))
            wakes, self._notified = not self._notified, True
        if wakes:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the event loop is closed: nobody reads any more
                self._ended = True

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ended = True
        self._arrived.set()

    async def take(self) -> Sequence[Event]:
        """The events that are there, at least one; none when none will come."""
        while not (self._events or self._ended):
            self._arrived.clear()
            await self._arrived.wait()
        with self._lock:
            events, self._events, self._bytes = self._events, [], 0
        self._emptied.set()
        return events

    async def wait_until_empty(self) -> None:
        """Return at once, or, when it is full, once all was taken. Raises SlowConsumer."""
        if not self.full:
            return
        self._emptied.clear()
        try:
            async with asyncio.timeout(self.limits.send_seconds):
                await self._emptied.wait()
        except TimeoutError:
            raise self.slow() from None

    def slow(self) -> SlowConsumer:
        """What a reader is told that did not keep up."""
        seconds = self.limits.send_seconds
        return SlowConsumer(f"the reader did not take the events within {seconds:g} s; read faster")

    def _wake(self) -> None:
        """Wake the reader, and again in a while if events come until then."""
        with self._lock:
            self._notified = bool(self._events)
        if self._notified:
            self._arrived.set()
            self._loop.call_later(GATHERED_SECONDS if self.streams else WHOLE_SECONDS, self._wake)
