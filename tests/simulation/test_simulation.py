"""Whatever breaks: nothing acknowledged is lost, nothing is applied twice, nobody waits for ever.

RLSTM_SEED=n lives through one seed and tells what happened in it; RLSTM_SEEDS=n through so many.
"""

import os

import pytest
from simulated.run import run
from simulated.seeds import chosen, live

QUICK = 200
LONG = int(os.environ.get("RLSTM_SEEDS", "10000"))


def test_a_seed_is_one_run_and_no_other():
    first, again = run(7, tell=True), run(7, tell=True)
    assert first.trace == again.trace
    assert (first.rows, first.steps) == (again.rows, again.steps)
    assert first.trace != run(8, tell=True).trace


@pytest.mark.timeout(900)  # a time-out in the middle of a world would be taken for a fault of the server
def test_nothing_is_lost_applied_twice_or_stuck_whatever_breaks():
    total = live(chosen(QUICK))
    print(f"\n{total}")
    assert not total.failed, total.report()


@pytest.mark.faults
@pytest.mark.timeout(3_600)
def test_nothing_is_lost_applied_twice_or_stuck_in_the_long_run():
    total = live(chosen(LONG))
    print(f"\n{total}")
    assert not total.failed, total.report()
    if total.seeds >= 10_000:
        assert not total.missing, f"what no seed has met: {total.missing}"
