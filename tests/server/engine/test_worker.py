"""The device thread: all jobs in a batch step, one outcome a job, readers that are behind."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from functools import partial

import pytest

from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.evaluator import frozen_reader
from rlstm_model.adaptation.items import DecodeStep, ScoreChunk
from rlstm_model.vocab import ByteVocab
from rlstm_server.caller import Call
from rlstm_server.engine.buffer import EVENT_BYTES, Buffer
from rlstm_server.engine.worker import SHORT, Worker, compute, gather, size_of
from rlstm_server.errors import Draining, InternalError, NotFound, SlowConsumer
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import TokenEvent
from rlstm_server.settings import Limits


@asynccontextmanager
async def running(capacity=8, **options):
    worker = Worker(Metrics(), capacity, **options)
    worker.start()
    try:
        yield worker
    finally:
        await worker.close()
        worker.check()


@pytest.fixture(scope="module")
def reader(tools):
    return frozen_reader(tools.tiny_parameters(ByteVocab(), hidden=12), 10)


async def reading(reader, steps, log=None, name=None):
    """A job that reads a token more in every step; the log-probability of the last."""
    cursor, total = reader.cursor, 0.0
    for token in range(steps):
        if log is not None:
            log.append(name)
        scored = await compute(ScoreChunk(reader, cursor, (token % 200 + 1,)))
        cursor, total = scored.cursor, scored.scores.total
    return total


class Showing:
    """A job that shows a number, then reads a token, again and again; counts what it made."""

    def __init__(self, reader, count=30):
        self.reader, self.count, self.made, self.closed = reader, count, 0, threading.Event()

    async def job(self, put):
        """Give the job."""
        try:
            while self.made < self.count:
                self.made += 1
                put(self.made)
                await compute(ScoreChunk(self.reader, self.reader.cursor, (1,)))
        finally:
            self.closed.set()


class Log:
    """Runs batches, and remembers how many items each had."""

    def __init__(self):
        self.batches = []

    def __call__(self, items):
        """Run one."""
        self.batches.append(len(items))
        return run_batch(items)


class Gate:
    """A job that holds the device until it is opened."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()

    async def job(self):
        """Wait, on the device thread."""
        self.entered.set()
        self.opened.wait(10)
        return "gate"


async def hold(worker, gate, caller):
    task = asyncio.ensure_future(worker.run(gate.job, caller))
    await asyncio.to_thread(gate.entered.wait, 10)
    return task


async def at_once(worker, jobs, caller):
    """What becomes of jobs that come while the device is held, and so are all there for the next step."""
    gate = Gate()
    holding = await hold(worker, gate, caller)
    tasks = [asyncio.ensure_future(worker.run(job, caller)) for job in jobs]
    await asyncio.sleep(0)
    gate.opened.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


def streamed(worker, job, **limits):
    """The events of a job."""
    return worker.stream(job, Call(tenant="acme", request_id="r1"), Buffer(Limits(**limits)))


async def read(stream, into):
    """Read a stream to its end."""
    async for events in stream:
        into += events


async def until_idle(worker):
    """Wait until no job is in the queue or on the device."""
    async with asyncio.timeout(5):
        while worker.active:  # noqa: ASYNC110 - another thread is waited for
            await asyncio.sleep(0.002)


# ---- batch steps ------------------------------------------------------------------------------------------


async def test_jobs_that_are_there_share_a_batch(tools, reader):
    """Items of many jobs are computed at once, each is given its own, and nobody waits for a full batch."""
    log = Log()
    async with running(run_batch=log) as worker:
        jobs = [partial(reading, reader, n) for n in (3, 1, 2)]
        together = await at_once(worker, jobs, tools.caller())
        assert log.batches == [3, 2, 1]
        alone = [await worker.run(job, tools.caller()) for job in jobs]

    assert [ran.result for ran in together] == [ran.result for ran in alone]


async def test_a_step_has_the_rows_that_it_may(tools, reader):
    """Ten jobs in steps of four rows."""
    log = Log()
    async with running(16, rows=4, run_batch=log) as worker:
        await at_once(worker, [partial(reading, reader, 1)] * 10, tools.caller())

    assert log.batches == [4, 4, 2]


async def test_steps_are_measured(tools, reader):
    """Steps, rows and tokens, by what they were for."""
    async with running() as worker:
        await at_once(worker, [partial(reading, reader, n) for n in (3, 1, 2)], tools.caller())
        await at_once(worker, [partial(reading, reader, 1)] * 3, tools.caller())
    for name, phase, count in [
        ("batch_step_seconds_count", {}, 4),
        ("batch_size_sum", {"phase": "score"}, 9),
        ("batch_tokens_sum", {"phase": "score"}, 9),
        ("batch_size_sum", {"phase": "update"}, 0),
        ("request_queue_seconds_count", {"endpoint": "test"}, 8),
    ]:
        assert tools.value(worker.metrics, name, **phase) == count


async def test_what_waits_is_told_when_it_is_asked_for(tools, reader):
    """Jobs, the rows that they want, and the rows there are, at that moment."""
    names = ("jobs", "rows_wanted", "max_rows")
    async with running(rows=4) as worker:
        gate = Gate()
        holding = await hold(worker, gate, tools.caller())
        waiting = asyncio.ensure_future(worker.run(partial(reading, reader, 1), tools.caller(), rows=6))
        await asyncio.sleep(0)
        during = [tools.value(worker.metrics, name) for name in names]
        gate.opened.set()
        await asyncio.gather(holding, waiting)
        await until_idle(worker)
        after = [tools.value(worker.metrics, name) for name in names]

    assert (during, after) == ([2, 7, 4], [0, 0, 4])


async def test_a_text_is_continued_by_several_tokens_beside_a_segment(tools, reader):
    """Single tokens are computed again and again before the next step; a segment is computed once."""

    async def choosing():
        cursor = reader.cursor
        for _ in range(SHORT):
            following = await compute(DecodeStep(reader, cursor))
            cursor = following.after(65)

    log = Log()
    async with running(run_batch=log) as worker:
        await at_once(worker, [choosing, partial(reading, reader, 2)], tools.caller())

    assert log.batches == [2, *(SHORT - 1) * [1], 1]


async def test_a_short_job_does_not_wait_for_a_long_one(tools, reader):
    """A job of one step that comes behind jobs of many is over while they still run."""
    log = []
    async with running(rows=1) as worker:
        jobs = [partial(reading, reader, 60, log, name) for name in "abc"]
        await at_once(worker, [*jobs, partial(reading, reader, 1, log, "short")], tools.caller())

    assert log.index("short") <= 6  # the first two tokens of each


def test_items_are_counted_by_what_they_are_for(tools):
    """Parts that end a segment and learn are updates, other texts are scored, and a turn is one token."""
    served = tools.serve(ByteVocab())
    state = tools.before_text(served, experts=2).adapted
    evaluator = served.evaluator()
    reader = evaluator.reader(state)
    ids = tuple(range(tools.SEGMENT))
    items = [
        evaluator.chunk(state, ids),
        evaluator.chunk(state, ids, learn=False),
        evaluator.chunk(state, ids[:2]),
        ScoreChunk(served.reader, served.reader.cursor, ids[:3]),
        DecodeStep(reader, reader.cursor),
    ]
    assert [size_of(item) for item in items] == [
        ("update", 2, 5, False),
        ("score", 2, 5, False),
        ("score", 2, 2, True),
        ("score", 1, 3, False),
        ("generate", 2, 1, True),
    ]


# ---- many coroutines as one job ---------------------------------------------------------------------------


def drive(coroutine):
    """Run a job, giving its items back as their results; its result, and the batches it asked for."""
    batches, results = [], None
    while True:
        try:
            batches.append(coroutine.send(results))
        except StopIteration as stop:
            return stop.value, batches
        results = batches[-1]


async def counting(name, steps, log):
    """Asks for an item named after it in each step, and returns what it was given."""
    try:
        return [await compute((name, number)) for number in range(steps)]
    finally:
        log.append(name)


def test_each_coroutine_is_given_its_own_and_results_are_in_order():
    """Whichever ends first, results stand where their coroutines stood."""

    async def job():
        return await gather((counting(name, n, log) for name, n in [("a", 3), ("b", 1), ("c", 2)]), 9)

    log = []
    result, batches = drive(job())
    assert result == [[("a", 0), ("a", 1), ("a", 2)], [("b", 0)], [("c", 0), ("c", 1)]]
    assert [len(batch) for batch in batches] == [3, 2, 1]
    assert log == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("steps", "sizes"), [([1, 2, 1, 2, 1, 2, 1], [2, 2, 2, 2, 2]), ([0, 0, 0], []), ([], [])]
)
def test_as_many_coroutines_as_allowed_go_at_once(steps, sizes):
    """A place that becomes free is taken in the same batch; those that await nothing take none."""

    async def job():
        return await gather((counting(n, count, []) for n, count in enumerate(steps)), 2)

    result, batches = drive(job())
    assert [len(one) for one in result] == steps
    assert [len(batch) for batch in batches] == sizes


def test_an_error_ends_all_coroutines():
    """When one raises, the others are closed and the error comes out."""

    async def broken():
        await compute("x")
        raise ArithmeticError

    async def job():
        await gather([counting("a", 5, log), broken(), counting("b", 5, log)], 3)

    log = []
    with pytest.raises(ArithmeticError):
        drive(job())
    assert log == ["a", "b"]


# ---- one outcome a job ------------------------------------------------------------------------------------


async def test_an_item_that_fails_fails_its_job_only(tools, reader):
    """The error of one item is raised in the job that awaits it; the batch goes on for the others."""

    async def outside():
        await compute(ScoreChunk(reader, reader.cursor, (999,)))

    async with running() as worker:
        good = partial(reading, reader, 2)
        failed, ran = await at_once(worker, [outside, good], tools.caller())

        assert isinstance(failed, InternalError)
        assert ran.result == (await worker.run(good, tools.caller())).result


async def test_a_batch_that_fails_as_a_whole_is_done_job_by_job(tools, reader):
    """Where computing itself raises, the job whose items do is refused, and nobody else."""

    def out_of_memory(items):
        if any(len(item.ids) > 1 for item in items):
            raise MemoryError
        return run_batch(items)

    async def greedy():
        await compute(ScoreChunk(reader, reader.cursor, (1, 2)))

    async with running(run_batch=out_of_memory) as worker:
        good = partial(reading, reader, 2)
        failed, ran = await at_once(worker, [greedy, good], tools.caller())

        assert isinstance(failed, InternalError)
        assert ran.result == (await worker.run(good, tools.caller())).result


@pytest.mark.parametrize(("raised", "answered"), [(ZeroDivisionError, InternalError), (NotFound, NotFound)])
async def test_an_error_fails_its_job_only(tools, reader, caplog, raised, answered):
    """Ours is the answer as it is; any other is logged with the request id and answered as ours."""

    async def broken():
        await reading(reader, 1)
        raise raised("text of a user") if raised is ZeroDivisionError else raised

    async with running() as worker:
        good = asyncio.ensure_future(worker.run(partial(reading, reader, 20), tools.caller()))
        with pytest.raises(answered) as caught:
            await worker.run(broken, tools.caller())

        await good
    assert "text of a user" not in str(caught.value)
    assert [record.request_id for record in caplog.records] == ["r1"] * (answered is InternalError)


async def test_a_cancelled_job_stops_between_two_steps(tools, reader):
    """Leaving the wait, or a stream, ends the job soon, and its coroutine is closed."""
    async with running() as worker:
        one, other = Showing(reader, 10**9), Showing(reader, 10**9)
        task = asyncio.ensure_future(worker.run(partial(one.job, lambda _: None), tools.caller()))
        stream = streamed(worker, other.job)
        await anext(stream)
        while not one.made:  # noqa: ASYNC110 - another thread is waited for
            await asyncio.sleep(0.002)
        task.cancel()
        await stream.aclose()
        assert await asyncio.to_thread(one.closed.wait, 5)
        assert await asyncio.to_thread(other.closed.wait, 5)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_answers_what_is_left(tools, reader):
    """A job in its step ends it; those that never came to their turn, and later ones, end with Draining."""
    gate, worker = Gate(), Worker(Metrics(), 8)
    worker.start()
    holding = await hold(worker, gate, tools.caller())
    waiting = asyncio.ensure_future(worker.run(partial(reading, reader, 1), tools.caller()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(worker.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    assert (await holding).result == "gate"
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await worker.run(partial(reading, reader, 1), tools.caller())


async def test_a_stream_that_is_under_way_ends_with_draining(tools, reader):
    """Whoever reads it is told, however long its job takes to close."""

    async def slowly(show):
        try:
            await Showing(reader, 10**9).job(show)
        finally:
            time.sleep(0.1)  # noqa: ASYNC251 - on the device thread

    async with running() as worker:
        stream = streamed(worker, slowly)
        await anext(stream)
        closing = asyncio.ensure_future(worker.close())
        with pytest.raises(Draining):
            async for _ in stream:
                pass
        await closing


# ---- a reader that is behind ------------------------------------------------------------------------------


async def test_a_parked_job_is_not_refused_when_it_goes_on(tools, reader):
    """It stopped at the bound; admitted when it came, it is complete although the queue is full by now."""
    async with running(capacity=4) as worker:
        work = Showing(reader)
        stream = streamed(worker, work.job, reader_events=8)
        seen = [*await anext(stream)]
        await until_idle(worker)
        assert work.made <= len(seen) + 9
        gate = Gate()
        others = [asyncio.ensure_future(worker.run(gate.job, tools.caller(f"t{i}"))) for i in range(4)]
        await asyncio.to_thread(gate.entered.wait, 10)
        rest = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        gate.opened.set()
        seen += await rest
        await read(stream, seen)
        await asyncio.gather(*others)

    assert seen == list(range(1, 31))


async def test_a_reader_that_comes_back_too_late_is_told(tools, reader):
    """After what was made for it; the rest is not made."""
    async with running() as worker:
        work, seen = Showing(reader), []
        stream = streamed(worker, work.job, reader_events=8, send_seconds=0.1)
        seen += await anext(stream)
        await until_idle(worker)
        await asyncio.sleep(0.15)
        with pytest.raises(SlowConsumer, match=r"0\.1 s"):
            await read(stream, seen)

    assert seen == list(range(1, work.made + 1))
    assert work.made < 30
    assert work.closed.is_set()


async def test_a_parked_job_that_is_left_is_closed(tools, reader):
    """Although it is in no queue."""
    async with running() as worker:
        work = Showing(reader)
        stream = streamed(worker, work.job, reader_events=8)
        await anext(stream)
        await until_idle(worker)
        await stream.aclose()
        assert work.closed.is_set()


async def test_bytes_are_bounded_too():
    """A few events of long text fill a buffer as many short ones do; their maker waits until it is empty."""
    limits = Limits(reader_events=100, reader_bytes=4 * EVENT_BYTES, send_seconds=0.01)
    event = TokenEvent(choice=0, index=0, id=1, text="x" * 3 * EVENT_BYTES, logprob=0.0)
    buffer = Buffer(limits)
    await buffer.wait_until_empty()
    buffer.put(event)

    assert buffer.full
    with pytest.raises(SlowConsumer, match=r"0\.01 s"):
        await buffer.wait_until_empty()
    assert await buffer.take() == [event]
    assert not buffer.full
