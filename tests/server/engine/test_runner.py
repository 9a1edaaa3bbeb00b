"""The device thread: slices in turn, one outcome a job, the slow weights untouched."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import torch
from torch import nn

from rlstm_server.engine.runner import Runner, weights_digest
from rlstm_server.errors import Draining, InternalError, NotFound, Overloaded
from rlstm_server.metrics import Metrics


@asynccontextmanager
async def running(capacity=8, model=None):
    runner = Runner(model or nn.Linear(2, 2), Metrics(), capacity)
    runner.start()
    try:
        yield runner
    finally:
        await runner.close()
        runner.check()


def counting(name, slices, log=None):
    """A job of so many slices that yields its count and returns its name."""
    for number in range(slices):
        if log is not None:
            log.append(name)
        yield [number]
    return name


class Gate:
    """A job that holds the device until it is opened."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()

    def steps(self):
        """One slice that waits."""
        self.entered.set()
        self.opened.wait(10)
        yield ()
        return "gate"


async def hold(runner, gate, caller):
    task = asyncio.ensure_future(runner.run(gate.steps(), caller))
    await asyncio.to_thread(gate.entered.wait, 10)
    return task


async def test_events_come_in_order_and_then_the_stream_ends(tools):
    """A stream gives what the job yields, nothing more."""
    async with running() as runner:
        assert [event async for event in runner.stream(counting("a", 4), tools.caller())] == [0, 1, 2, 3]


async def test_a_short_job_does_not_wait_for_a_long_one(tools):
    """A job of one slice that comes behind jobs of hundreds is over while they still run."""
    log, gate = [], Gate()
    async with running() as runner:
        holding = await hold(runner, gate, tools.caller())
        long = [asyncio.ensure_future(runner.run(counting(n, 300, log), tools.caller())) for n in "abc"]
        await asyncio.sleep(0)
        short = asyncio.ensure_future(runner.run(counting("short", 1, log), tools.caller()))
        await asyncio.sleep(0)
        gate.opened.set()
        await asyncio.gather(holding, short, *long)

    assert log.index("short") <= 3


async def test_an_unforeseen_error_fails_its_job_only(tools, caplog):
    """The error is logged with the request id and answered as ours; others go on."""

    def broken():
        yield ()
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
        yield ()

    async with running() as runner:
        with pytest.raises(NotFound):
            await runner.run(refused(), tools.caller())


async def test_a_cancelled_job_stops_between_two_slices(tools):
    """Leaving the wait ends the job soon, and its generator is closed."""
    closed, begun = threading.Event(), threading.Event()

    def endless():
        try:
            while True:
                begun.set()
                yield ()
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
                yield [1]
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
    gate, runner = Gate(), Runner(nn.Linear(2, 2), Metrics(), 8)
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
        yield ()
        with torch.no_grad():
            model.weight[0, 0] += 1

    runner = Runner(model, Metrics(), 8)
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

    assert weights_digest(one) == weights_digest(same)
    assert weights_digest(one) != weights_digest(other)


async def test_the_wait_for_the_first_slice_is_measured_once(tools):
    """Each job adds one observation of the queue time, under its own or the `unknown` endpoint."""
    async with running() as runner:
        await runner.run(counting("a", 5), tools.caller())
        await runner.run(counting("b", 5), tools.caller())
        count = runner.metrics.registry.get_sample_value(
            "rlstm_request_queue_seconds_count", {"endpoint": "unknown"}
        )

    assert count == 2
