"""One seed: a world is built, lived through and checked."""

import random
from dataclasses import dataclass, field

from simulated.checker import Checker, Verdict
from simulated.coverage import ROWS, rows_of
from simulated.loop import Stuck
from simulated.virtual import virtual
from simulated.world import World


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a seed. `trace` tells what happened, line by line."""

    seed: int
    verdict: Verdict
    rows: frozenset[str]
    trace: str = field(repr=False)
    steps: int = 0


def run(seed: int, *, tell: bool = False) -> Run:
    """Live through one seed; the trace is for one that failed, unless it is to be told anyway."""
    world = World(seed)
    with virtual(world.loop, random.Random(f"bits {seed}")):
        checker = Checker(world)
        try:
            world.loop.run(_life(world, checker))
        except Stuck as error:
            checker.verdict.stuck.append(str(error))
    return Run(
        seed=seed,
        verdict=checker.verdict,
        rows=ROWS.intersection(rows_of(world.trace)),
        trace=_told(world) if tell or checker.verdict.problems else "",
        steps=world.loop.steps,
    )


async def _life(world: World, checker: Checker) -> None:
    world.build()
    await world.run()
    checker.check()
    await world.end()
    checker.check_end()


def _told(world: World) -> str:
    lines = (f"{at:8.3f}  {event:<9} {what!s:<34} {more}" for at, event, (what, more) in world.trace)
    return "\n".join(lines)
