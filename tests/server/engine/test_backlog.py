"""A reader who is behind: nothing more is made for him, he holds no place meanwhile, and he loses nothing."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from torch import nn

from rlstm_model.adaptation.batch_step import ScoreChunk
from rlstm_model.adaptation.reader import frozen_reader
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.backlog import EVENT_BYTES, Backlog
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.steps import Ask
from rlstm_server.errors import SlowConsumer
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import EngineLimits, TokenEvent

FEW = EngineLimits(reader_events=8, reader_seconds=0.1)


@asynccontextmanager
async def running(limits=FEW, capacity=8):
    runner = Runner([nn.Linear(2, 2)], Metrics(), capacity, limits=limits)
    runner.start()
    try:
        yield runner
    finally:
        await runner.close()
        runner.check()


@pytest.fixture(scope="module")
def reader(tools):
    return frozen_reader(tools.tiny_model(ByteVocab()), 10)


class Work:
    """A job that shows a number a step and reads a token meanwhile; counts what it made."""

    def __init__(self, reader, count=30):
        self.reader, self.count, self.made, self.closed_on = reader, count, 0, None

    def steps(self):
        """Give the job."""
        try:
            while self.made < self.count:
                self.made += 1
                yield Ask((ScoreChunk(self.reader, self.reader.cursor, (1,)),), (self.made,))
        finally:
            self.closed_on = threading.current_thread().name


async def until_idle(runner):
    """Wait until no job is left."""
    async with asyncio.timeout(5):
        while runner.active:  # noqa: ASYNC110 - another thread is waited for
            await asyncio.sleep(0.002)


async def read(stream, into):
    """Read a stream to its end."""
    async for event in stream:
        into.append(event)


async def test_a_job_pauses_and_goes_on(tools, reader):
    """It stops at the bound, leaves the queue, and is complete once everything was read."""
    async with running(EngineLimits(reader_events=8)) as runner:
        work = Work(reader)
        stream = runner.stream(work.steps(), tools.caller())
        seen = [await anext(stream)]
        await until_idle(runner)
        assert work.made <= 9
        seen += [event async for event in stream]

    assert seen == list(range(1, 31))
    assert work.closed_on == "device"


async def test_a_paused_job_is_not_refused_when_it_goes_on(tools, reader):
    """It was admitted when it came, so a queue that is full by now does not end it."""
    async with running(EngineLimits(reader_events=8), capacity=4) as runner:
        stream = runner.stream(Work(reader).steps(), tools.caller())
        seen = [await anext(stream)]
        await until_idle(runner)
        entered, opened = threading.Event(), threading.Event()

        def gate():
            entered.set()
            opened.wait(10)
            yield Ask()

        others = [asyncio.ensure_future(runner.run(gate(), tools.caller(f"t{i}"))) for i in range(4)]
        await asyncio.to_thread(entered.wait, 10)
        rest = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        opened.set()
        seen += [await rest, *[event async for event in stream]]
        await asyncio.gather(*others)

    assert seen == list(range(1, 31))


async def test_a_reader_who_comes_back_too_late_is_told(tools, reader):
    """After what was made for him; the rest is not made."""
    async with running() as runner:
        work, seen = Work(reader), []
        stream = runner.stream(work.steps(), tools.caller())
        seen.append(await anext(stream))
        await until_idle(runner)
        await asyncio.sleep(0.15)
        with pytest.raises(SlowConsumer):
            await read(stream, seen)

    assert seen == list(range(1, work.made + 1))
    assert work.made < 30
    assert work.closed_on == "device"


async def test_a_paused_job_that_is_left_is_closed_on_the_device(tools, reader):
    """Its tensors go where they were made, although it is in no queue."""
    async with running() as runner:
        work = Work(reader)
        stream = runner.stream(work.steps(), tools.caller())
        await anext(stream)
        await until_idle(runner)
        await stream.aclose()

    assert work.closed_on == "device"


async def test_bytes_are_bounded_too():
    """A few events of long text fill a backlog as many short ones do."""
    limits = EngineLimits(reader_events=100, reader_bytes=4 * EVENT_BYTES, reader_seconds=0.01)
    event = TokenEvent(choice=0, index=0, id=1, text="x" * 3 * EVENT_BYTES, logprob=0.0)
    backlog = Backlog(limits)
    await backlog.wait_for_reader()
    backlog.count([event])
    backlog.put([event])

    assert backlog.full
    with pytest.raises(SlowConsumer, match=r"0\.01 s"):
        await backlog.wait_for_reader()
    assert await backlog.take() is event
    assert not backlog.full
