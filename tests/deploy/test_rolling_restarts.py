"""Rolling restarts under load: every stream goes on by itself, and nothing is lost."""

import asyncio
import random
import time

import httpx
import pytest

from rlstm_client import AsyncClient
from rlstm_client.models import EndEvent

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

STREAMS, ROUNDS, TOKENS, WRITERS = 64, 5, 400, 4
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


class Reader:
    """One stream: texts that a session keeps, one after the other, as their reader gets them."""

    def __init__(self, session, number):
        self.session, self.number = session, number
        self.texts, self.steps = [], []

    async def read(self):
        """Read one more text to its end, whatever happens to the servers."""
        ids, steps = [], []
        seed = 1_000 * self.number + len(self.texts)
        options = {"max_tokens": TOKENS, "seed": seed, "commit": True, "idempotency_key": self._key(seed)}
        async for event in self.session.generate_stream(**options):
            if not isinstance(event, EndEvent):
                ids.append(event.id)
                steps.append(event.step)
        self.texts.append(ids)
        self.steps.append(steps)

    async def read_until(self, stop):
        """Read text after text; the last one to its end."""
        while not stop.is_set():
            await self.read()

    def resumed(self, counts):
        """Whether it had to ask for the rest of a text."""
        return any(self._key(1_000 * self.number + turn) in counts for turn in range(len(self.texts)))

    def _key(self, seed):
        return f"text-{self.session.id}-{seed}"


class Writer:
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
    for seat in range(len(service.addresses)):
        began = time.monotonic()
        assert await service.fleet.end(seat) == 0
        drains.append(time.monotonic() - began)
        await service.fleet.start(seat)
        await asyncio.sleep(SETTLED_SECONDS)


async def undisturbed(client, adaptation, readers):
    """The same texts in sessions of their own, after all restarts."""
    twins = [Reader(await client.sessions.create(adaptation=adaptation), reader.number) for reader in readers]

    async def read(twin, count):
        for _ in range(count):
            await twin.read()

    counts = [len(reader.texts) for reader in readers]
    await asyncio.gather(*(read(twin, count) for twin, count in zip(twins, counts, strict=True)))
    return twins


async def test_streams_and_appends_go_through_rolling_restarts(serve):
    """Each text is that of an undisturbed run, once, in its reader's hands and in its session."""
    adaptation, drains, transport = {"kind": "output_bias"}, [], Resumptions()
    async with serve() as service, AsyncClient(service.nginx.url, transport=transport) as client:
        made = [await client.sessions.create(adaptation=adaptation) for _ in range(STREAMS + WRITERS)]
        readers = [Reader(session, number) for number, session in enumerate(made[:STREAMS])]
        writers = [Writer(session, number) for number, session in enumerate(made[STREAMS:])]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.write(stop))
            for reader in readers:
                group.create_task(reader.read_until(stop))
            for _ in range(ROUNDS):
                await restart(service, drains)
            stop.set()

        twins = [await client.sessions.create(adaptation=adaptation) for _ in writers]
        lost = sum(await asyncio.gather(*(a.lost(b) for a, b in zip(writers, twins, strict=True))))
        whole = await undisturbed(client, adaptation, readers)
        ends = [[await one.session.info() for one in some] for some in (readers, whole)]

    lost += sum(
        (here.position, here.totals) != (there.position, there.totals)
        for here, there in zip(*ends, strict=True)
    )
    lost += sum(reader.texts != twin.texts for reader, twin in zip(readers, whole, strict=True))
    lost += sum(steps != list(range(TOKENS)) for reader in readers for steps in reader.steps)
    resumed, drain = sum(reader.resumed(transport.counts) for reader in readers), max(drains)
    told = f"{STREAMS} streams through {ROUNDS} rolling restarts: {resumed} resumed, {lost} lost"
    print(f"{told}, drain p99 {drain:.1f} s")
    texts, appends = sum(len(each.texts) for each in readers), sum(len(each.texts) for each in writers)
    print(f"{sum(transport.counts.values())} resumptions of {texts} texts, {appends} appends")

    assert (resumed, lost) == (STREAMS, 0)
    assert drain <= DRAIN_SECONDS
