"""The simulation notices faults: each of these would break a promise, and each is caught by some seed."""

import pytest
from mutants.table import MUTANTS
from simulated.run import run
from simulated.seeds import collected_seldom

SEEDS = 2_000
QUICK = ("no_operation_ids", "acknowledged_before_commit", "cache_kept_after_stale")
ALL = [name for name, mutant in MUTANTS.items() if mutant.simulated]


def caught(fault, seeds):
    """The first seed that notices a fault, and what it says; None when none does."""
    with collected_seldom(), MUTANTS[fault].patch():
        for seed in range(seeds):
            problems = run(seed).verdict.problems
            if problems:
                return seed, problems[0]
    return None


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_is_noticed_at_once(fault):
    assert caught(fault, 100) is not None


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ALL)
def test_a_fault_is_noticed(fault):
    found = caught(fault, SEEDS)
    print(f"\n{fault}: seed {found[0]} says {found[1]}" if found else "")
    assert found is not None
