"""The loop of the simulation: virtual time, an order that a seed decides, hosts that die and pause."""

import asyncio
import random

import pytest
from simulated.loop import Host, SimulatedLoop, Stuck, on


def lived(main, seed=0):
    """A loop in which a program was run to its end."""
    loop = SimulatedLoop(random.Random(seed))
    loop.run(main(loop))
    return loop


def test_the_seed_decides_which_task_goes_first():
    def order(seed):
        seen = []

        async def note(name):
            seen.append(name)

        async def main(loop):
            await asyncio.gather(*(note(name) for name in "abcdef"))

        lived(main, seed)
        return "".join(seen)

    orders = {order(seed) for seed in range(20)}
    assert len(orders) > 10
    assert order(3) == order(3)


def test_nothing_of_a_dead_host_runs_not_even_its_finally():
    seen, host = [], Host("h")

    async def work():
        try:
            await asyncio.sleep(1.0)
            seen.append("awake")
        finally:
            seen.append("finally")

    async def main(loop):
        loop.create_task(work(), context=on(host))
        await asyncio.sleep(0.5)
        host.alive = False
        await asyncio.sleep(5.0)
        assert seen == []

    lived(main)


def test_a_fuse_burns_instead_of_the_step_that_it_was_set_to():
    seen, host = [], Host("h", fuse=2)

    def burn():
        host.alive = False

    host.burn = burn

    async def work():
        seen.append(1)
        await asyncio.sleep(0.0)
        seen.append(2)

    async def main(loop):
        loop.create_task(work(), context=on(host))
        await asyncio.sleep(1.0)
        assert seen == [1]

    lived(main)


def test_a_world_in_which_nothing_can_happen_is_stuck():
    async def main(loop):
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing will come"):
        lived(main)
