"""The simulation notices faults: each of these would break a promise, and each is caught by some seed."""

import pytest
from simulated import mutations
from simulated.run import run
from simulated.seeds import collected_seldom

SEEDS = 2_000
QUICK = (mutations.no_operation_ids, mutations.acknowledged_before_commit, mutations.cache_kept_after_stale)


def caught(fault, seeds):
    """The first seed that notices a fault, and what it says; None when none does."""
    with collected_seldom(), fault():
        for seed in range(seeds):
            problems = run(seed).verdict.problems
            if problems:
                return seed, problems[0]
    return None


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.__name__)
def test_a_fault_is_noticed_at_once(fault):
    assert caught(fault, 100) is not None


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", mutations.MUTATIONS, ids=lambda fault: fault.__name__)
def test_a_fault_is_noticed(fault):
    found = caught(fault, SEEDS)
    print(f"\n{fault.__name__}: seed {found[0]} says {found[1]}" if found else "")
    assert found is not None
