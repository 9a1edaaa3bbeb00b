"""Work that outlives its waiter: abandoned at once, or after the commit that is on its way."""

import asyncio

import pytest

from rlstm_server.caller import Call
from rlstm_server.engine.queue import Task
from rlstm_server.errors import Draining
from rlstm_server.store.base import SessionKey


def started(work):
    task = Task(Call(tenant="a", request_id="r", session="s"), SessionKey("a", "s"), "k")
    task.task = asyncio.ensure_future(work(task))
    return task


async def test_work_outside_a_commit_stops_with_its_waiter():
    """Cancelling the wait cancels the work."""
    stopped = asyncio.Event()

    async def work(task):
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    waiter = asyncio.ensure_future(started(work).wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    assert await asyncio.wait_for(stopped.wait(), 60)


async def test_a_commit_is_not_interrupted_and_nothing_follows_it():
    """The commit ends; the next step of the work sees that nobody waits."""
    entered, opened, log = asyncio.Event(), asyncio.Event(), []

    async def commit():
        entered.set()
        await opened.wait()
        log.append("committed")

    async def work(task):
        await task.commit(commit())
        task.check()
        log.append("went on")

    task = started(work)
    waiter = asyncio.ensure_future(task.wait())
    await entered.wait()
    waiter.cancel()
    await asyncio.sleep(0)
    opened.set()
    await asyncio.wait([task.task])

    assert log == ["committed"]
    assert task.task.cancelled()


async def test_a_refused_task_tells_its_waiter_why():
    """Abandoned with a refusal, the waiter gets that and not a cancellation."""

    async def work(task):
        await asyncio.sleep(60)

    task = started(work)
    waiter = asyncio.ensure_future(task.wait())
    await asyncio.sleep(0)
    task.abandon(lambda: Draining("going down"))
    with pytest.raises(Draining):
        await waiter
