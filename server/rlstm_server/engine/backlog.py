"""Events on their way to one reader. When too many wait for him, nothing more is made before he has them all.

Waiting for a reader takes no place on the device and none in its queue: a text that is only shown pauses
(`Paced`) and is gone on with as a new job, one that is kept waits between two commits.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from rlstm_server.engine.steps import Ask, Event, Steps
from rlstm_server.errors import SlowConsumer
from rlstm_server.schemas import EngineLimits, TokenEvent

EVENT_BYTES: Final = 128
"""What an event without its text is counted as."""


@dataclass(eq=False)
class Backlog(Generic[Event]):
    """What was made and not taken yet. One thread counts what is made, the event loop puts and takes it."""

    limits: EngineLimits
    _events: "deque[Event]" = field(default_factory=deque)
    _made: int = 0
    _made_bytes: int = 0
    _taken: int = 0
    _taken_bytes: int = 0
    _ended: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _drained: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def full(self) -> bool:
        """Whether nothing more should be made; may be asked on any thread."""
        events, size = self._made - self._taken, self._made_bytes - self._taken_bytes
        return events >= self.limits.reader_events or size >= self.limits.reader_bytes

    @property
    def waiting(self) -> int:
        """How many events could be taken at once."""
        return len(self._events)

    def count(self, events: Iterable[Event]) -> None:
        """Count events when they are made, on the thread that makes them: they may still be on their way."""
        for event in events:
            self._made += 1
            self._made_bytes += _size(event)

    def put(self, events: Iterable[Event]) -> None:
        """Let events that were counted be taken."""
        self._events.extend(events)
        self._arrived.set()

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ended = True
        self._arrived.set()

    def go_on(self) -> None:
        """Say that something may come after all."""
        self._ended = False

    async def take(self) -> Event | None:
        """The next event; None when there is none and none will come."""
        while not self._events:
            self._drained.set()
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        self._taken += 1
        self._taken_bytes += _size(event)
        return event

    async def wait_for_reader(self) -> None:
        """Return at once, or, after a full backlog, when all of it was taken. Raises SlowConsumer."""
        if not self.full:
            return
        self._drained.clear()
        try:
            async with asyncio.timeout(self.limits.reader_seconds):
                await self._drained.wait()
        except TimeoutError:
            raise self.slow() from None

    def slow(self) -> SlowConsumer:
        """What a reader is told who did not keep up."""
        seconds = self.limits.reader_seconds
        return SlowConsumer(f"what was made for the reader was not taken within {seconds:g} s")


@dataclass(eq=False)
class Paced(Generic[Event]):
    """A job that pauses when its reader is behind; `portion` is the job up to its end or the next pause."""

    steps: Steps[Event, Any]
    backlog: Backlog[Event]
    over: bool = False
    _rest: Ask[Event] | None = None
    _paused_at: float = 0.0

    def portion(self) -> Steps[Event, None]:
        """Go on from where the last portion paused."""
        ask, self._rest, sent = self._rest, None, None
        try:
            while True:
                if ask is None:
                    ask = self.steps.send(sent)  # type: ignore[arg-type]  # the first takes nothing
                    self.backlog.count(ask.events)
                    if ask.works and self.backlog.full:
                        self._rest, self._paused_at = Ask(ask.works), time.monotonic()
                        yield Ask((), ask.events)
                        return
                sent, ask = (yield ask), None
        except StopIteration:
            self.over = True

    def check_reader(self) -> None:
        """Raise SlowConsumer when the pause that just ended was too long."""
        if time.monotonic() - self._paused_at > self.backlog.limits.reader_seconds:
            raise self.backlog.slow()


def _size(event: object) -> int:
    return EVENT_BYTES + (len(event.text) if isinstance(event, TokenEvent) else 0)
