"""The scheduler is arithmetic: its tests are lists of numbers."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_server.engine.scheduler import Outcome, Plan, Scheduler
from rlstm_server.errors import Overloaded


def play(scheduler: Scheduler, rounds: dict[int, int]) -> list[tuple[int, ...]]:
    """Give every job its number of rounds; return the plans."""
    left, plans = dict(rounds), []
    while (plan := scheduler.schedule()) is not None:
        plans.append(plan.jobs)
        for job in plan.jobs:
            left[job] -= 1
        going_on = {job: scheduler._jobs[job].rows for job in plan.jobs if left[job]}
        scheduler.update(Outcome(going_on, tuple(job for job in plan.jobs if not left[job])))
        scheduler.check()
    return plans


def test_whoever_is_there_goes():
    """A round does not wait until it is full, and takes no more jobs than its rows are."""
    scheduler = Scheduler(capacity=8, budget=4)
    for job in (1, 2, 3):
        scheduler.add(job, "a", rows=2)

    assert play(scheduler, {1: 2, 2: 1, 3: 1}) == [(1, 2), (3, 1)]


def test_a_job_larger_than_a_round_goes_all_the_same():
    """The last job of a plan may go over the budget; nobody waits for ever."""
    scheduler = Scheduler(capacity=8, budget=4)
    scheduler.add(1, "a", rows=3)
    scheduler.add(2, "a", rows=100)
    scheduler.add(3, "a", rows=1)

    assert play(scheduler, {1: 1, 2: 1, 3: 1}) == [(1, 2), (3,)]


def test_a_tenant_with_many_jobs_gets_no_more_rows_than_another():
    """A single job of one tenant is in every round, whatever the crowd of another."""
    scheduler = Scheduler(capacity=8, budget=2)
    for job in (1, 2, 3, 4):
        scheduler.add(job, "crowd")
    scheduler.add(9, "single")

    assert play(scheduler, {1: 1, 2: 1, 3: 1, 4: 1, 9: 3}) == [(1, 9), (2, 9), (3, 9), (4,)]


def test_a_tenant_with_large_jobs_gets_no_more_rows_than_another():
    """While a job of eight rows goes once, eight of one row go."""
    scheduler = Scheduler(capacity=64, budget=1)
    scheduler.add(0, "large", rows=8)
    scheduler.add(1, "small")

    order = [job for (job,) in play(scheduler, {0: 3, 1: 16})]
    assert order == [0, *8 * [1], 0, *8 * [1], 0]


def test_a_tenant_that_was_away_is_owed_nothing():
    """Who comes late begins where the others are, not with the rows of all the time before."""
    scheduler = Scheduler(capacity=8, budget=1)
    scheduler.add(1, "early")
    for _ in range(50):
        scheduler.update(Outcome({1: 1}) if scheduler.schedule() else Outcome())
    scheduler.add(2, "late")

    assert [job for (job,) in play(scheduler, {1: 4, 2: 4})] in ([1, 2] * 4, [2, 1] * 4)


def test_a_long_job_delays_a_short_one_by_one_round():
    """A job of one round that comes while a job of a thousand runs is in the next round."""
    scheduler = Scheduler(capacity=8, budget=1)
    scheduler.add(1, "a")
    assert scheduler.schedule() == Plan((1,))
    scheduler.add(2, "a")
    scheduler.update(Outcome(unfinished={1: 1}))

    assert play(scheduler, {1: 999, 2: 1})[:2] == [(2,), (1,)]


def test_a_full_queue_refuses_and_says_so():
    """The job over capacity is refused, and a place that becomes free is given again."""
    scheduler = Scheduler(capacity=2, budget=1)
    scheduler.add(1, "a")
    scheduler.add(2, "b")
    with pytest.raises(Overloaded, match="2 jobs"):
        scheduler.add(3, "c")
    scheduler.cancel(1)
    scheduler.add(3, "c")

    assert play(scheduler, {2: 1, 3: 1}) == [(2,), (3,)]


def test_one_tenant_does_not_fill_the_queue():
    """Three quarters are for one tenant; the rest is open to others."""
    scheduler = Scheduler(capacity=8, budget=1)
    for job in range(6):
        scheduler.add(job, "flood")
    with pytest.raises(Overloaded, match="6 jobs of this tenant"):
        scheduler.add(6, "flood")
    scheduler.add(7, "other")

    assert scheduler.active == 7


def test_a_job_number_is_used_once_at_a_time():
    """The same number twice is a fault of the caller."""
    scheduler = Scheduler(capacity=4, budget=1)
    scheduler.add(1, "a")
    with pytest.raises(ValueError, match="added before"):
        scheduler.add(1, "a")


def test_a_cancelled_waiting_job_never_runs():
    """Cancelling a job that waits takes it out of line, and its tenant out of the turns."""
    scheduler = Scheduler(capacity=4, budget=1)
    scheduler.add(1, "a")
    scheduler.add(2, "b")

    assert scheduler.cancel(1)
    assert not scheduler.holds(1)
    assert not scheduler.cancel(1)
    assert play(scheduler, {2: 2}) == [(2,), (2,)]


def test_a_running_job_is_cancelled_between_rounds():
    """A job cancelled in a round stays until the round is over and does not come back."""
    scheduler = Scheduler(capacity=4, budget=1)
    scheduler.add(1, "a")
    scheduler.schedule()

    assert scheduler.cancel(1)
    assert scheduler.holds(1)
    scheduler.check()
    scheduler.update(Outcome(unfinished={1: 1}))
    assert not scheduler.holds(1)
    assert scheduler.schedule() is None


def test_check_finds_a_lost_job():
    """The books do not balance when a job vanishes from its line."""
    scheduler = Scheduler(capacity=4, budget=1)
    scheduler.add(1, "a")
    scheduler._tenants["a"].line.clear()
    with pytest.raises(ValueError, match="books do not balance"):
        scheduler.check()


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_books_balance_after_any_mix(seed: int, budget: int):
    """Whatever is added, run, finished and cancelled, each job is in one place and all leave in the end."""
    draw = random.Random(seed)
    scheduler, number, running = Scheduler(capacity=12, budget=budget), 0, []
    for _ in range(120):
        act = draw.choice(["add", "plan", "update", "cancel"])
        if act == "add":
            number += 1
            try:
                scheduler.add(number, draw.choice("abc"), draw.randint(1, 5))
            except Overloaded:
                number -= 1
        elif act == "plan" and not running:
            plan = scheduler.schedule()
            running = list(plan.jobs) if plan else []
        elif act == "update" and running:
            over = {job for job in running if draw.random() < 0.4}
            going_on = {job: draw.randint(0, 5) for job in running if job not in over}
            scheduler.update(Outcome(going_on, tuple(over)))
            running = []
        elif act == "cancel" and number:
            scheduler.cancel(draw.randint(1, number))
        scheduler.check()
    scheduler.update(Outcome(finished=tuple(running)))
    while (plan := scheduler.schedule()) is not None:
        scheduler.update(Outcome(finished=plan.jobs))
    scheduler.check()

    assert scheduler.active == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=2, max_size=20),
    st.integers(1, 12),
)
def test_rows_of_waiting_tenants_differ_by_one_job_at_most(jobs: list[tuple[str, int]], budget: int):
    """As long as all always have a job in line, no tenant is ever more than the largest job ahead."""
    scheduler = Scheduler(capacity=256, budget=budget)
    tenants, rows = {}, {}
    for tenant, size in jobs:
        for _ in range(budget):  # as many as a round can take of one tenant: its line is never empty
            tenants[len(rows)] = tenant
            scheduler.add(len(rows), tenant, size)
            rows[len(rows)] = size
    served: Counter[str] = Counter(dict.fromkeys(tenants.values(), 0))
    for _ in range(30):
        plan = scheduler.schedule()
        for job in plan.jobs:
            served[tenants[job]] += rows[job]
        scheduler.update(Outcome({job: rows[job] for job in plan.jobs}))

        assert max(served.values()) - min(served.values()) <= max(rows.values())


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 16), st.integers(1, 4))
def test_nobody_waits_longer_than_the_rows_before_him(seed: int, budget: int, tenants: int):
    """Under random arrivals, ends and cancellations every job's wait keeps the bound of the module.

    T (a + 2 m) / budget rounds for a job behind `a` rows of its tenant; with one tenant, all rows / budget.
    """
    draw = random.Random(seed)
    scheduler, number, largest = Scheduler(capacity=400, budget=budget), 0, 6
    waiting: dict[int, tuple[int, int]] = {}  # job: the rounds it may wait, and those it has waited

    def enter(job: int, tenant: str, size: int) -> None:
        ahead = sum(scheduler._jobs[other].rows for other in scheduler._tenants[tenant].line)
        bound = tenants * (ahead - size + 2 * largest) if tenants > 1 else ahead - size
        waiting[job] = (bound // budget, 0)

    for _ in range(100):
        for _ in range(draw.choice([0, 0, 1, 3, 8])):
            number += 1
            tenant, size = f"t{draw.randrange(tenants)}", draw.randint(1, largest)
            scheduler.add(number, tenant, size)
            enter(number, tenant, size)
        if draw.random() < 0.3 and number:
            job = draw.randint(1, number)
            scheduler.cancel(job)
            waiting.pop(job, None)
        plan = scheduler.schedule()
        for job in plan.jobs if plan else ():
            bound, waited = waiting.pop(job)
            assert waited <= bound
        waiting = {job: (bound, waited + 1) for job, (bound, waited) in waiting.items()}
        over = {job for job in (plan.jobs if plan else ()) if draw.random() < 0.5}
        for job in plan.jobs if plan else ():
            if job in over:
                scheduler.update(Outcome(finished=(job,)))
            else:
                size, tenant = draw.randint(1, largest), scheduler._jobs[job].tenant
                scheduler.update(Outcome({job: size}))
                enter(job, tenant, size)


@pytest.mark.parametrize(("others", "budget"), [(1, 2), (16, 64), (300, 64)])
def test_a_megabyte_delays_twenty_bytes_by_one_round_of_all(others: int, budget: int):
    """Among endless jobs a new tenant is in the next round; a job of their tenant waits for one of each."""
    scheduler = Scheduler(capacity=1_000, budget=budget)
    for job in range(others):
        scheduler.add(job, "novel", rows=2)
    scheduler.update(Outcome(dict.fromkeys(scheduler.schedule().jobs, 2)))
    scheduler.add(1_000, "novel", rows=2)
    scheduler.add(1_001, "note", rows=2)
    first: dict[int, int] = {}
    for number in range(2 * others + 2):
        plan = scheduler.schedule()
        first = dict.fromkeys(plan.jobs, number) | first
        scheduler.update(Outcome(dict.fromkeys(plan.jobs, 2)))

    assert first[1_001] == 0
    assert first[1_000] <= (2 * others + 2 * first[1_000] + 2) // budget
