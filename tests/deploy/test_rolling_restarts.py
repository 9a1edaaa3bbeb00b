"""Rolling restarts under load: every stream goes on by itself, and nothing is lost."""

import asyncio
import random
import time

import httpx
import pytest

from rlstm_client import AsyncClient
from rlstm_client.models import EndEvent
from rlstm_server.engine.record import read_record
from rlstm_server.store.base import SessionKey
from rlstm_server.store.in_redis import RedisStore

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

STREAMS, ROUNDS, TOKENS, WRITERS = 64, 5, 2_400, 8
DRAIN_SECONDS = 10.0
SETTLED_SECONDS = 2.0
"""What the proxy may need to ask a server again."""


class Resumptions(httpx.AsyncHTTPTransport):
    """Counts, by key, how often a client asked for the rest of a text."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    async def handle_async_request(self, request):
        """Count, and send."""
        if "last-event-id" in request.headers:
            key = request.headers["idempotency-key"]
            self.counts[key] = self.counts.get(key, 0) + 1
        return await super().handle_async_request(request)


class Progress:
    """How many tokens all readers have."""

    def __init__(self):
        self.count, self._more = 0, asyncio.Event()

    def more(self):
        """Count one."""
        self.count += 1
        self._more.set()

    async def reaches(self, count):
        """Wait until there are so many."""
        while self.count < count:
            self._more.clear()
            await self._more.wait()


class Text:
    """One kept text, as its reader gets it."""

    def __init__(self, session, number, progress):
        self.session, self.key, self.progress = session, f"text-{number}", progress
        self.options = {"max_tokens": TOKENS, "seed": number, "commit": True, "idempotency_key": self.key}
        self.ids, self.steps, self.end = [], [], None

    async def read(self):
        """Read it to its end, whatever happens to the servers."""
        async for event in await self.session.generate(stream=True, **self.options):
            if isinstance(event, EndEvent):
                self.end = event
            else:
                self.ids.append(event.id)
                self.steps.append(event.step)
                self.progress.more()


class Stream:
    """A session that one writer appends to; remembers what was acknowledged."""

    def __init__(self, session, number):
        self.session, self.number = session, number
        self.texts, self.logprobs, self.versions = [], [], []

    async def write(self, stop):
        """Append until told to stop."""
        dice = random.Random(self.number)
        while not stop.is_set():
            text = "".join(dice.choices("the quick brown fox\n", k=dice.randint(1, 30)))
            answer = await self.session.append(text)
            self.texts.append(text)
            self.logprobs.append(answer.logprobs)
            self.versions.append(answer.version)

    async def lost(self, twin):
        """How many acknowledged appends are not as they were told, or not as in an undisturbed twin."""
        lost = sum(version != turn for turn, version in enumerate(self.versions, start=1))
        lost += (await self.session.info()).version != len(self.texts)
        for text, logprobs in zip(self.texts, self.logprobs, strict=True):
            lost += (await twin.append(text)).logprobs != logprobs
        return lost


async def restart(service, drains):
    """Restart one replica after the other, as README.md says; `drains` gets how long each took to end."""
    for seat in service.seats:
        began = time.monotonic()
        assert await seat.end() == 0
        drains.append(time.monotonic() - began)
        await seat.start()
        await asyncio.sleep(SETTLED_SECONDS)


async def logged(store, session_id):
    """The ids that a session's log says were written."""
    records = await store.read_log(SessionKey("default", session_id), after=0, limit=1_000)
    return [
        token
        for record in records
        for reading in read_record(record.record).readings
        for token in reading.ids
    ]


async def undisturbed(client, adaptation):
    """The same texts in sessions of their own, after all restarts."""
    sessions = [await client.sessions.create(adaptation=adaptation) for _ in range(STREAMS)]
    texts = [Text(session, number, Progress()) for number, session in enumerate(sessions)]
    await asyncio.gather(*(text.read() for text in texts))
    return texts


async def test_streams_and_appends_go_through_rolling_restarts(serve):
    """Each text is that of an undisturbed run, once, in its reader's hands and in its session's log."""
    adaptation, drains, transport = {"kind": "output_bias"}, [], Resumptions()
    async with serve() as service, AsyncClient(service.nginx.url, transport=transport) as client:
        made = [await client.sessions.create(adaptation=adaptation) for _ in range(STREAMS + WRITERS)]
        progress = Progress()
        texts = [Text(session, number, progress) for number, session in enumerate(made[:STREAMS])]
        streams = [Stream(session, number) for number, session in enumerate(made[STREAMS:])]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            writing = [group.create_task(stream.write(stop)) for stream in streams]
            reading = [group.create_task(text.read()) for text in texts]
            for turn in range(ROUNDS):
                await progress.reaches((turn + 0.5) / (2 * ROUNDS) * STREAMS * TOKENS)
                running = sum(not task.done() for task in reading)
                await restart(service, drains)
            await asyncio.wait(reading)
            stop.set()
            await asyncio.wait(writing)

        twins = [await client.sessions.create(adaptation=adaptation) for _ in streams]
        lost = sum(await asyncio.gather(*(a.lost(b) for a, b in zip(streams, twins, strict=True))))
        whole = await undisturbed(client, adaptation)
        store = RedisStore(service.store_url)
        await store.check()
        logs = [await logged(store, text.session.id) for text in texts]
        await store.close()

    lost += sum(log != text.ids for log, text in zip(logs, texts, strict=True))
    lost += sum(text.ids != twin.ids for text, twin in zip(texts, whole, strict=True))
    lost += sum(text.steps != list(range(TOKENS)) for text in texts)
    resumed = sum(transport.counts.get(text.key, 0) > 0 for text in texts)
    drain = max(drains)
    told = f"{STREAMS} streams through {ROUNDS} rolling restarts: {resumed} resumed, {lost} lost"
    print(f"{told}, drain p99 {drain:.1f} s")
    print(f"{sum(transport.counts.values())} resumptions, {sum(len(each.texts) for each in streams)} appends")

    assert running == STREAMS
    assert (resumed, lost) == (STREAMS, 0)
    assert drain <= DRAIN_SECONDS
