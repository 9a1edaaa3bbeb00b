"""Many seeds, one after the other, and one line about all of them."""

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from simulated.coverage import ROWS
from simulated.device import served
from simulated.run import Run, run

COLLECT_EVERY: Final = 50


@dataclass
class Total:
    """What came of many seeds: `failed` are those with a problem."""

    seeds: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    failed: list[Run] = field(default_factory=list)

    def add(self, one: Run) -> None:
        """One more."""
        self.seeds += 1
        self.rows.update(one.rows)
        for kind in ("lost", "twice", "stuck", "wrong"):
            self.problems[kind] += len(getattr(one.verdict, kind))
        if one.verdict.problems:
            self.failed.append(one)

    @property
    def missing(self) -> list[str]:
        """What no seed has met."""
        return sorted(ROWS - set(self.rows))

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds: {self.problems['lost']} lost, {self.problems['twice']} twice, "
            f"{self.problems['stuck']} stuck; rows met {len(self.rows)}/{len(ROWS)}"
        )

    def report(self) -> str:
        """The first seed that failed, how to repeat it, and what happened in it."""
        first = self.failed[0]
        problems = "\n".join(f"  {problem}" for problem in first.verdict.problems)
        others = ", ".join(str(one.seed) for one in self.failed[1:20])
        return (
            f"{self}, {self.problems['wrong']} wrong\n{first.trace}\nseed {first.seed}:\n{problems}\n"
            f"repeat it: RLSTM_SEED={first.seed} python -m pytest tests/simulation; also: {others or 'none'}"
        )


def chosen(count: int) -> Iterable[int]:
    """So many seeds; or RLSTM_SEEDS of them, or the one of RLSTM_SEED, where the environment says so."""
    if (seed := os.environ.get("RLSTM_SEED")) is not None:
        return [int(seed)]
    return range(count)


def live(seeds: Iterable[int]) -> Total:
    """Live through seeds."""
    total = Total()
    with collected_seldom():
        for seed in seeds:
            total.add(run(seed))
            if total.seeds % COLLECT_EVERY == 0:
                gc.collect()
    return total


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Collect garbage by hand: each look at everything there is takes longer than a seed."""
    served()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        gc.collect()
