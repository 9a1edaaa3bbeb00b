"""Work that outlives its waiter: abandoned at once, or after the commit that is on its way."""

import asyncio

import pytest

from rlstm_server.errors import Draining, NotFound


async def test_the_waiter_gets_the_result_or_the_error():
    """Result and error arrive as they are."""

    async def good(operation):
        return 7

    async def bad(operation):
        raise NotFound

    assert await Operation(good).wait() == 7
    with pytest.raises(NotFound):
        await Operation(bad).wait()


async def test_work_outside_a_commit_stops_with_its_waiter():
    """Cancelling the wait cancels the work."""
    stopped = asyncio.Event()

    async def work(operation):
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    waiter = asyncio.ensure_future(Operation(work).wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait_for(stopped.wait(), 1)


async def test_a_commit_is_not_interrupted_and_nothing_follows_it():
    """The commit ends; the next step of the work sees that nobody waits."""
    entered, opened, log = asyncio.Event(), asyncio.Event(), []

    async def commit():
        entered.set()
        await opened.wait()
        log.append("committed")

    async def work(operation):
        await operation.commit(commit())
        operation.check()
        log.append("went on")

    operation = Operation(work)
    waiter = asyncio.ensure_future(operation.wait())
    await entered.wait()
    waiter.cancel()
    await asyncio.sleep(0)
    opened.set()
    await asyncio.wait([operation.task])

    assert log == ["committed"]
    assert operation.task.cancelled()


async def test_a_refused_operation_tells_its_waiter_why():
    """Abandoned with a refusal, the waiter gets that and not a cancellation."""

    async def work(operation):
        await asyncio.sleep(60)

    operation = Operation(work)
    waiter = asyncio.ensure_future(operation.wait())
    await asyncio.sleep(0)
    operation.abandon(lambda: Draining("going down"))
    with pytest.raises(Draining):
        await waiter
