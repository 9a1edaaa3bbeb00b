"""The scheduler is arithmetic: its tests are lists of numbers."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.engine.scheduler import Outcome, Plan, Scheduler
from rlstm_server.errors import Overloaded


def play(scheduler: Scheduler, slices: dict[int, int]) -> list[int]:
    """Run every job for its number of slices; return the jobs in the order they advanced."""
    left, order = dict(slices), []
    while (plan := scheduler.schedule()) is not None:
        (job,) = plan.jobs
        order.append(job)
        left[job] -= 1
        scheduler.update(Outcome(unfinished=(job,)) if left[job] else Outcome(finished=(job,)))
        scheduler.check()
    return order


def test_jobs_of_one_tenant_take_turns():
    """Jobs of one tenant advance by one slice each, in the order they came."""
    scheduler = Scheduler(capacity=8)
    for job in (1, 2, 3):
        scheduler.add(job, "a")

    assert play(scheduler, {1: 3, 2: 1, 3: 2}) == [1, 2, 3, 1, 3, 1]


def test_a_tenant_with_many_jobs_gets_no_more_than_another():
    """Every second turn belongs to the tenant with one job."""
    scheduler = Scheduler(capacity=8)
    for job in (1, 2, 3, 4):
        scheduler.add(job, "crowd")
    scheduler.add(9, "single")

    assert play(scheduler, {1: 1, 2: 1, 3: 1, 4: 1, 9: 3}) == [1, 9, 2, 9, 3, 9, 4]


def test_a_long_job_delays_a_short_one_by_one_slice():
    """A job of one slice that comes behind a job of a thousand waits for one of its slices."""
    scheduler = Scheduler(capacity=8)
    scheduler.add(1, "a")
    assert scheduler.schedule() == Plan((1,))
    scheduler.add(2, "a")
    scheduler.update(Outcome(unfinished=(1,)))

    assert play(scheduler, {1: 999, 2: 1})[:2] == [2, 1]


def test_a_full_queue_refuses_and_says_so():
    """The job over capacity is refused, and a place that becomes free is given again."""
    scheduler = Scheduler(capacity=2)
    scheduler.add(1, "a")
    scheduler.add(2, "b")
    with pytest.raises(Overloaded, match="2 jobs"):
        scheduler.add(3, "c")
    scheduler.cancel(1)
    scheduler.add(3, "c")

    assert play(scheduler, {2: 1, 3: 1}) == [2, 3]


def test_a_job_number_is_used_once_at_a_time():
    """The same number twice is a fault of the caller."""
    scheduler = Scheduler(capacity=2)
    scheduler.add(1, "a")
    with pytest.raises(ValueError, match="added before"):
        scheduler.add(1, "a")


def test_a_cancelled_waiting_job_never_runs():
    """Cancelling a job that waits takes it out of line, and its empty line out of the turns."""
    scheduler = Scheduler(capacity=4)
    scheduler.add(1, "a")
    scheduler.add(2, "b")

    assert scheduler.cancel(1)
    assert not scheduler.holds(1)
    assert not scheduler.cancel(1)
    assert play(scheduler, {2: 2}) == [2, 2]


def test_a_running_job_is_cancelled_between_slices():
    """A job cancelled while its slice runs stays until the slice is over and does not come back."""
    scheduler = Scheduler(capacity=4)
    scheduler.add(1, "a")
    scheduler.schedule()

    assert scheduler.cancel(1)
    assert scheduler.holds(1)
    scheduler.check()
    scheduler.update(Outcome(unfinished=(1,)))
    assert not scheduler.holds(1)
    assert scheduler.schedule() is None


def test_check_finds_a_lost_job():
    """The books do not balance when a job vanishes from its line."""
    scheduler = Scheduler(capacity=4)
    scheduler.add(1, "a")
    scheduler._lines["a"].clear()
    with pytest.raises(ValueError, match="books do not balance"):
        scheduler.check()


@given(st.integers(0, 2**32))
def test_books_balance_after_any_mix(seed: int):
    """Whatever is added, run, finished and cancelled, each job is in one place and all leave in the end."""
    draw = random.Random(seed)
    scheduler, number, running = Scheduler(capacity=12), 0, []
    for _ in range(120):
        act = draw.choice(["add", "plan", "update", "cancel"])
        if act == "add" and scheduler.active < 12:
            number += 1
            scheduler.add(number, draw.choice("abc"))
        elif act == "plan" and not running:
            plan = scheduler.schedule()
            running = list(plan.jobs) if plan else []
        elif act == "update" and running:
            jobs, running = tuple(running), []
            scheduler.update(Outcome(finished=jobs) if draw.random() < 0.4 else Outcome(unfinished=jobs))
        elif act == "cancel" and number:
            scheduler.cancel(draw.randint(1, number))
        scheduler.check()
    scheduler.update(Outcome(finished=tuple(running)))
    while (plan := scheduler.schedule()) is not None:
        scheduler.update(Outcome(finished=plan.jobs))
    scheduler.check()

    assert scheduler.active == 0


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=20), st.integers(3, 30))
def test_turns_of_waiting_tenants_differ_by_at_most_one(tenants: list[str], turns: int):
    """As long as all have work, no tenant is ever more than one slice ahead of another."""
    scheduler = Scheduler(capacity=32)
    for job, tenant in enumerate(tenants):
        scheduler.add(job, tenant)
    served: Counter[str] = Counter(dict.fromkeys(tenants, 0))
    for _ in range(turns):
        plan = scheduler.schedule()
        served.update(tenants[job] for job in plan.jobs)
        scheduler.update(Outcome(unfinished=plan.jobs))

        assert max(served.values()) - min(served.values()) <= 1
