"""The device thread: all jobs in a round, one outcome a job, the slow weights untouched."""

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest
import torch
from torch import nn

from rlstm_model.adaptation.batch_step import DecodeStep, ScoreChunk, run_batch
from rlstm_model.adaptation.reader import frozen_reader
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.runner import LIGHT, Runner, weights_digest
from rlstm_server.engine.steps import Ask, performed
from rlstm_server.errors import Draining, InternalError, NotFound, Overloaded
from rlstm_server.metrics import Metrics


@asynccontextmanager
async def running(capacity=8, model=None, **options):
    runner = Runner([model or nn.Linear(2, 2)], Metrics(), capacity, **options)
    runner.start()
    try:
        yield runner
    finally:
        await runner.close()
        runner.check()


@pytest.fixture(scope="module")
def reader(tools):
    return frozen_reader(tools.tiny_model(ByteVocab(), hidden=12), 10)


def counting(name, rounds, log=None):
    """A job of so many steps that shows its count and returns its name."""
    for number in range(rounds):
        if log is not None:
            log.append(name)
        yield Ask(events=[number])
    return name


def reading(reader, rounds):
    """A job that reads a token more in every round; the log-probability of the last."""
    cursor, total = reader.cursor, 0.0
    for token in range(rounds):
        sliced = yield from performed(ScoreChunk(reader, cursor, (token + 1,)))
        cursor, total = sliced.cursor, sliced.scores.total
    return total


class Log:
    """Performs rounds, and remembers how many works each had."""

    def __init__(self):
        self.rounds = []

    def __call__(self, works):
        """Perform them."""
        self.rounds.append(len(works))
        return run_batch(works)


class Gate:
    """A job that holds the device until it is opened."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()

    def steps(self):
        """One step that waits."""
        self.entered.set()
        self.opened.wait(10)
        yield Ask()
        return "gate"


async def hold(runner, gate, caller):
    task = asyncio.ensure_future(runner.run(gate.steps(), caller))
    await asyncio.to_thread(gate.entered.wait, 10)
    return task


async def at_once(runner, jobs, caller):
    """What becomes of jobs that come while the device is held, and so are all there for the next plan."""
    gate = Gate()
    holding = await hold(runner, gate, caller)
    tasks = [asyncio.ensure_future(runner.run(steps, caller)) for steps in jobs]
    await asyncio.sleep(0)
    gate.opened.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_events_come_in_order_and_then_the_stream_ends(tools):
    """A stream gives what the job shows, nothing more."""
    async with running() as runner:
        assert [event async for event in runner.stream(counting("a", 4), tools.caller())] == [0, 1, 2, 3]


async def test_jobs_that_are_there_share_a_round(tools, reader):
    """Works of many jobs are performed at once, each is sent its own, and nobody waits for a full round."""
    log = Log()
    async with running(perform=log) as runner:
        together = await at_once(runner, [reading(reader, n) for n in (3, 1, 2)], tools.caller())
        assert log.rounds == [3, 2, 1]
        alone = [await runner.run(reading(reader, n), tools.caller()) for n in (3, 1, 2)]

    assert [ran.result for ran in together] == [ran.result for ran in alone]


async def test_a_round_has_the_rows_that_it_may(tools, reader):
    """Ten jobs in rounds of four rows."""
    log = Log()
    async with running(16, rows=4, perform=log) as runner:
        await at_once(runner, [reading(reader, 1) for _ in range(10)], tools.caller())

        assert log.rounds == [4, 4, 2]
    assert (runner.rounds.count, runner.rounds.rows) == (3, 10)


async def test_rounds_are_counted_and_measured(tools, reader):
    """Rounds, rows and tokens, in the runner's own count and in the metrics, by what they were for."""
    async with running() as runner:
        await at_once(runner, [reading(reader, n) for n in (3, 1, 2)], tools.caller())
    done, metrics = runner.rounds, runner.metrics
    assert (done.count, done.rows) == (3, 6)
    assert tools.value(metrics, "round_seconds_count") == 3
    assert tools.value(metrics, "round_seconds_sum") == pytest.approx(done.seconds)
    assert tools.value(metrics, "batch_size_sum", phase="score") == 6
    assert tools.value(metrics, "batch_tokens_sum", phase="score") == 6
    assert tools.value(metrics, "batch_size_sum", phase="update") == 0


async def test_what_is_computed_for_nobody_is_counted(tools, reader):
    """Three rows of one token are a tile of eight: five tokens of padding, of a pass that only reads."""
    padding = Counter()
    async with running(perform=partial(run_batch, padding=padding), padding=padding) as runner:
        await at_once(runner, [reading(reader, 1) for _ in range(3)], tools.caller())
    tile = reader.rows.weights.tile
    assert tools.value(runner.metrics, "batch_padding_tokens_total", phase="score") == tile - 3
    assert tools.value(runner.metrics, "batch_padding_tokens_total", phase="update") == 0


async def test_what_waits_is_told_when_it_is_asked_for(tools):
    """Jobs, the rows that they want, and the rows there are, at that moment."""
    async with running(rows=4) as runner:
        gate = Gate()
        holding = await hold(runner, gate, tools.caller())
        waiting = asyncio.ensure_future(runner.run(counting("wide", 1), tools.caller(), rows=6))
        await asyncio.sleep(0)
        during = [tools.value(runner.metrics, name) for name in ("jobs", "rows_wanted", "max_rows")]
        gate.opened.set()
        await asyncio.gather(holding, waiting)
        for _ in range(500):  # the device thread writes its books after it gave the results away
            after = [tools.value(runner.metrics, name) for name in ("jobs", "rows_wanted", "max_rows")]
            if after[0] == 0:
                break
            await asyncio.sleep(0.01)

    assert (during, after) == ([2, 7, 4], [0, 0, 4])


async def test_a_text_is_continued_by_several_tokens_beside_a_segment(tools, reader):
    """Single tokens are computed again and again before the next plan; a segment is computed once."""

    def choosing():
        cursor = reader.cursor
        for _ in range(LIGHT):
            following = yield from performed(DecodeStep(reader, cursor))
            cursor = following.after(65)

    log = Log()
    async with running(perform=log) as runner:
        await at_once(runner, [choosing(), reading(reader, 2)], tools.caller())

    assert log.rounds == [2, *(LIGHT - 1) * [1], 1]


async def test_a_short_job_does_not_wait_for_a_long_one(tools):
    """A job of one step that comes behind jobs of hundreds is over while they still run."""
    log = []
    async with running(rows=1) as runner:
        jobs = [*(counting(name, 300, log) for name in "abc"), counting("short", 1, log)]
        await at_once(runner, jobs, tools.caller())

    assert log.index("short") <= 3


async def test_a_work_that_fails_fails_its_job_only(tools, reader):
    """The error of one work is raised in the job that asked for it; the round goes on for the others."""

    def outside():
        return (yield from performed(ScoreChunk(reader, reader.cursor, (999,))))

    async with running() as runner:
        failed, ran = await at_once(runner, [outside(), reading(reader, 2)], tools.caller())

        assert isinstance(failed, InternalError)
        assert ran.result == (await runner.run(reading(reader, 2), tools.caller())).result


async def test_a_round_that_fails_as_a_whole_is_done_job_by_job(tools, reader):
    """Where computing itself raises, the job whose works do is refused, and nobody else."""

    def out_of_memory(works):
        if any(len(work.ids) > 1 for work in works):
            raise MemoryError
        return run_batch(works)

    def greedy():
        yield from performed(ScoreChunk(reader, reader.cursor, (1, 2)))

    async with running(perform=out_of_memory) as runner:
        failed, ran = await at_once(runner, [greedy(), reading(reader, 2)], tools.caller())

        assert isinstance(failed, InternalError)
        assert ran.result == (await runner.run(reading(reader, 2), tools.caller())).result


async def test_an_unforeseen_error_fails_its_job_only(tools, caplog):
    """The error is logged with the request id and answered as ours; others go on."""

    def broken():
        yield Ask()
        raise ZeroDivisionError("text of a user")

    async with running() as runner:
        good = asyncio.ensure_future(runner.run(counting("good", 20), tools.caller()))
        with pytest.raises(InternalError) as caught:
            await runner.run(broken(), tools.caller())

        assert (await good).result == "good"
    assert "text of a user" not in str(caught.value)
    assert [record.request_id for record in caplog.records] == ["r1"]


async def test_our_errors_arrive_as_they_are(tools):
    """An error of the tree is the answer."""

    def refused():
        raise NotFound
        yield Ask()

    async with running() as runner:
        with pytest.raises(NotFound):
            await runner.run(refused(), tools.caller())


async def test_a_cancelled_job_stops_between_two_rounds(tools):
    """Leaving the wait ends the job soon, and its generator is closed."""
    closed, begun = threading.Event(), threading.Event()

    def endless():
        try:
            while True:
                begun.set()
                yield Ask()
        finally:
            closed.set()

    async with running() as runner:
        task = asyncio.ensure_future(runner.run(endless(), tools.caller()))
        await asyncio.to_thread(begun.wait, 5)
        task.cancel()
        assert await asyncio.to_thread(closed.wait, 5)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_leaving_a_stream_early_ends_its_job(tools):
    """Closing the iterator cancels the work behind it."""
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield Ask(events=[1])
        finally:
            closed.set()

    async with running() as runner:
        stream = runner.stream(endless(), tools.caller())
        await anext(stream)
        await stream.aclose()

        assert await asyncio.to_thread(closed.wait, 5)


async def test_a_full_queue_refuses_at_once(tools):
    """Capacity bounds what waits; the refused job leaves no trace."""
    gate = Gate()
    async with running(capacity=2) as runner:
        holding = await hold(runner, gate, tools.caller())
        second = asyncio.ensure_future(runner.run(counting("b", 1), tools.caller()))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await runner.run(counting("c", 1), tools.caller())
        runner.check()
        gate.opened.set()
        await asyncio.gather(holding, second)


async def test_closing_answers_what_is_left(tools):
    """Jobs that never came to their turn end with Draining, and later ones are refused."""
    gate, runner = Gate(), Runner([nn.Linear(2, 2)], Metrics(), 8)
    runner.start()
    holding = await hold(runner, gate, tools.caller())
    waiting = asyncio.ensure_future(runner.run(counting("b", 1), tools.caller()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(runner.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    for task in (holding, waiting):
        with pytest.raises(Draining):
            await task
    with pytest.raises(Draining):
        await runner.run(counting("c", 1), tools.caller())


async def test_changed_slow_weights_are_found_at_close(tools):
    """A job that writes to the base weights does not go unnoticed."""
    model = nn.Linear(2, 2)

    def vandal():
        yield Ask()
        with torch.no_grad():
            model.weight[0, 0] += 1

    runner = Runner([model], Metrics(), 8)
    runner.start()
    await runner.run(vandal(), tools.caller())
    with pytest.raises(InternalError, match="base weights changed"):
        await runner.close()


def test_the_digest_sees_names_and_values():
    """Equal weights have equal digests; one changed value, or swapped names, has another."""
    one, same, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    same.load_state_dict(one.state_dict())
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        other.bias[1] = torch.nextafter(other.bias[1], torch.tensor(9.0))

    assert weights_digest([one]) == weights_digest([same])
    assert weights_digest([one]) != weights_digest([other])


async def test_the_wait_for_the_first_round_is_measured_once(tools):
    """Each job adds one observation of the queue time, under its own or the `unknown` endpoint."""
    async with running() as runner:
        await runner.run(counting("a", 5), tools.caller())
        await runner.run(counting("b", 5), tools.caller())
        count = runner.metrics.registry.get_sample_value(
            "rlstm_request_queue_seconds_count", {"endpoint": "unknown"}
        )

    assert count == 2
