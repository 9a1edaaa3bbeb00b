"""Load on a server: sessions that append without pause, and one caller whose appends are short.

Each session waits for its answer and appends again. Their first appends are of unequal lengths, so that later
ones end at different moments, as those of strangers do: answers would come in bursts otherwise. Measuring
begins when each has ended its first, and ends after some seconds, but not before each has ended another.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from benchmarks.lone import prose

SHORT_BYTES: Final = 20
"""Of the appends that are to be answered at once, whatever the others do."""

AT_ONCE: Final = 64
"""Sessions that are made or ended at the same time."""


class Target(Protocol):
    """What is asked: an engine, or a server behind HTTP, by one tenant."""

    async def create(self) -> str:
        """Make a session; its id."""

    async def append(self, session: str, text: str) -> int:
        """Append a text; the tokens that it was."""

    async def delete(self, session: str) -> None:
        """End a session."""


@dataclass(frozen=True)
class Rounds:
    """Rounds so far: how many, their rows, their seconds, and each one's seconds where these are known."""

    count: int
    rows: float
    seconds: float
    each: Sequence[float] = ()

    def since(self, before: "Rounds") -> "Rounds":
        """Those after ``before``."""
        return Rounds(
            self.count - before.count,
            self.rows - before.rows,
            self.seconds - before.seconds,
            self.each[len(before.each) :],
        )


ReadRounds = Callable[[], Awaitable[Rounds]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is asked: by so many sessions, texts of so many bytes, for at least so many seconds."""

    sessions: int
    text_bytes: int
    seconds: float


class Append(NamedTuple):
    """One append that was answered: when, the seconds that it took, and its tokens."""

    ended: float
    took: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was answered in ``seconds``, of the many and of the caller with short texts, and the rounds."""

    seconds: float
    appends: Sequence[Append]
    short: Sequence[Append]
    rounds: Rounds

    @property
    def tokens_per_second(self) -> float:
        """Of the many sessions' appends."""
        return sum(append.tokens for append in self.appends) / self.seconds


async def measure(crowd: Target, stranger: Target, plan: Plan, read_rounds: ReadRounds) -> Measured:
    """Load ``crowd``, and have ``stranger``, who is another tenant, append short texts meanwhile.

    Raises what any append raises.
    """
    sessions = await each([crowd.create] * plan.sessions)
    lonely = await stranger.create()
    text = prose(plan.text_bytes)
    crowds = [_Speaker(crowd, session, text) for session in sessions]
    short = _Speaker(stranger, lonely, prose(SHORT_BYTES))
    firsts = [math.ceil(plan.text_bytes * (place + 1) / plan.sessions) for place in range(plan.sessions)]
    speaking = [speaker.speak(first) for speaker, first in zip(crowds, firsts, strict=True)]
    # Half a text first: a stranger's texts seldom begin and end where segments do.
    speaking.append(short.speak(SHORT_BYTES // 2))
    try:
        return await _while_running(speaking, _watch(crowds, short, plan, read_rounds))
    finally:
        await each([partial(crowd.delete, session) for session in sessions])
        await stranger.delete(lonely)


async def each(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """The results of all calls, in their order; a few of them go on at the same time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[Any]]) -> Any:
        async with free:
            return await call()

    return await asyncio.gather(*(one(call) for call in calls))


@dataclass(eq=False)
class _Speaker:
    """A session that appends its text again and again."""

    target: Target
    session: str
    text: str
    appends: list[Append] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def speak(self, first: int) -> None:
        """Append the end of the text, of ``first`` characters, and then all of it, until cancelled."""
        text = self.text[-first:]
        while True:
            began = time.perf_counter()
            tokens = await self.target.append(self.session, text)
            ended = time.perf_counter()
            self.appends.append(Append(ended, ended - began, tokens))
            self.answered.set()
            text = self.text

    async def answer(self) -> None:
        """Wait for the next answer."""
        self.answered.clear()
        await self.answered.wait()

    async def first_answer(self) -> None:
        """Wait for an answer, if there was none."""
        await self.answered.wait()

    def between(self, began: float, ended: float) -> list[Append]:
        """What was answered in this time."""
        return [append for append in self.appends if began <= append.ended <= ended]


async def _watch(crowd: Sequence[_Speaker], short: _Speaker, plan: Plan, read_rounds: ReadRounds) -> Measured:
    everybody = [*crowd, short]
    await asyncio.gather(*(speaker.first_answer() for speaker in everybody))
    before, began = await read_rounds(), time.perf_counter()
    await asyncio.gather(asyncio.sleep(plan.seconds), *(speaker.answer() for speaker in everybody))
    ended, after = time.perf_counter(), await read_rounds()
    return Measured(
        seconds=ended - began,
        appends=[append for speaker in crowd for append in speaker.between(began, ended)],
        short=short.between(began, ended),
        rounds=after.since(before),
    )


async def _while_running(
    endless: Sequence[Coroutine[Any, Any, None]], work: Coroutine[Any, Any, Measured]
) -> Measured:
    """The result of ``work``; one of the endless that ends has failed, and that is what is raised."""
    result = asyncio.create_task(work)
    tasks = [asyncio.create_task(one) for one in endless]
    try:
        done, _ = await asyncio.wait([result, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return await result
    finally:
        for task in (result, *tasks):
            task.cancel()
        await asyncio.gather(result, *tasks, return_exceptions=True)
