"""A bounded buffer of events for one reader. When it is full, nothing more is made before it is empty again.

Waiting for a reader takes no place on the device and none in its queue: a text that is only shown is parked
(:meth:`rlstm_server.engine.worker.Worker.stream`), one that is kept waits between two commits.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rlstm_server.errors import SlowConsumer
from rlstm_server.schemas.generation import TokenEvent
from rlstm_server.settings import Limits

EVENT_BYTES: Final = 128
"""What an event without its text is counted as."""

GATHERED_SECONDS: Final = 0.005
"""How long events gather for a reader that was just woken: to wake it for each costs as much as a token."""

Event = TypeVar("Event")


@dataclass(eq=False)
class Buffer(Generic[Event]):
    """What was made and not taken yet. One thread puts, the event loop that made the buffer takes.

    An event that comes first wakes the reader at once, those that come right after it together.
    """

    limits: Limits
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _events: "deque[Event]" = field(default_factory=deque)
    _put_bytes: int = 0
    _taken_bytes: int = 0
    _ended: bool = False
    _notified: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """How many events could be taken at once."""
        return len(self._events)

    @property
    def full(self) -> bool:
        """Whether nothing more should be made."""
        size = self._put_bytes - self._taken_bytes
        return len(self) >= self.limits.reader_events or size >= self.limits.reader_bytes

    def put(self, event: Event) -> None:
        """Let an event be taken."""
        self._put_bytes += _size(event)
        self._events.append(event)
        self._notify()

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ended = True
        self._arrived.set()

    async def take(self) -> Event | None:
        """The next event; None when there is none and none will come."""
        while not self._events:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        self._taken_bytes += _size(event)
        if not self._events:
            self._emptied.set()
        return event

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

    def _notify(self) -> None:
        """Wake the reader, unless it was just woken."""
        if not self._notified:
            self._notified = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the event loop is closed: nobody reads any more
                self._ended = True

    def _wake(self) -> None:
        self._arrived.set()
        self._loop.call_later(GATHERED_SECONDS, self._wake_again)

    def _wake_again(self) -> None:
        self._notified = False
        if self._events:  # also those that came while it was not to be woken
            self._notified = True
            self._wake()


def _size(event: object) -> int:
    return EVENT_BYTES + (len(event.text) if isinstance(event, TokenEvent) else 0)
