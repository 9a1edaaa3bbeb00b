"""The scheduler is arithmetic: its tests are lists of numbers."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_server.engine.scheduler import Scheduler
from rlstm_server.errors import Overloaded


@dataclass(eq=False)
class Request:
    """Of a tenant; it wants so many steps of so many rows."""

    name: object
    tenant: str = "a"
    rows: int = 1
    steps: int = 1


def filled(requests, *, budget, capacity=64):
    scheduler = Scheduler(capacity, budget)
    for request in requests:
        scheduler.add(request)
    return scheduler


def play(scheduler):
    """Give every request its number of steps; return the names in each step."""
    played = []
    while step := scheduler.schedule():
        played.append(tuple(request.name for request in step))
        for request in step:
            request.steps -= 1
            scheduler.back(request, again=request.steps > 0)
        scheduler.check()
    return played


CROWD = [*(Request(name, "crowd") for name in (1, 2, 3, 4)), Request(9, "single", steps=3)]


@pytest.mark.parametrize(
    ("budget", "requests", "steps"),
    [
        pytest.param(
            4,
            [Request(1, rows=2, steps=2), Request(2, rows=2), Request(3, rows=2)],
            [(1, 2), (3, 1)],
            id="whoever is there goes, no more than the rows allow",
        ),
        pytest.param(
            4,
            [Request(1, rows=3), Request(2, rows=100), Request(3)],
            [(1, 2), (3,)],
            id="one that is larger than a step goes all the same",
        ),
        pytest.param(2, CROWD, [(1, 9), (2, 9), (3, 9), (4,)], id="many get no more rows than one"),
        pytest.param(
            1,
            [Request(0, "large", rows=8, steps=3), Request(1, "small", steps=16)],
            [(0,), *8 * [(1,)], (0,), *8 * [(1,)], (0,)],
            id="large ones get no more rows than small ones",
        ),
    ],
)
def test_rows_are_shared(budget, requests, steps):
    """Tenants in turn by the rows that they had, requests of a tenant one after the other."""
    assert play(filled(requests, budget=budget)) == steps


def test_a_tenant_that_was_away_is_owed_nothing():
    """One that comes late begins where the others are, not with the rows of all the time before."""
    early = Request("early", "early", steps=4)
    scheduler = filled([early], budget=1)
    for _ in range(50):
        scheduler.back(*scheduler.schedule(), again=True)
    scheduler.add(Request("late", "late", steps=4))

    order = [name for (name,) in play(scheduler)]
    assert order in (["early", "late"] * 4, ["late", "early"] * 4)


def test_a_full_queue_refuses_and_says_so():
    """One over capacity is refused, unless it was admitted before; a place that becomes free is given."""
    one, two, three = Request(1), Request(2, "b"), Request(3, "c")
    scheduler = filled([one, two], budget=1, capacity=2)
    with pytest.raises(Overloaded, match="2 jobs"):
        scheduler.add(three)
    scheduler.add(three, admitted=True)
    assert scheduler.remove(one)
    assert scheduler.remove(two)
    assert play(scheduler) == [(3,)]


def test_one_tenant_does_not_fill_the_queue():
    """Three quarters are for one tenant; the rest is open to others."""
    scheduler = filled([Request(number, "flood") for number in range(6)], budget=1, capacity=8)
    with pytest.raises(Overloaded, match="6 jobs of this tenant"):
        scheduler.add(Request(6, "flood"))
    scheduler.add(Request(7, "other"))

    assert (scheduler.active, scheduler.wanted) == (7, 7)


def test_what_waits_is_removed_at_once_what_runs_comes_back_first():
    """One that waits leaves its queue, and its tenant the order; one in a step stays until that is over."""
    one, two = Request(1), Request(2, "b")
    scheduler = filled([one, two], budget=1)
    assert scheduler.remove(one)
    assert scheduler.remove(one)
    scheduler.check()
    assert scheduler.schedule() == [two]
    assert not scheduler.remove(two)
    scheduler.check()
    scheduler.back(two, again=False)
    assert (scheduler.schedule(), scheduler.active) == ([], 0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=2, max_size=20),
    st.integers(1, 12),
)
def test_rows_of_waiting_tenants_differ_by_one_request_at_most(sizes: list[tuple[str, int]], budget: int):
    """As long as all always have one in their queue, no tenant is ever more than the largest ahead."""
    # As many as a step can take of one tenant: its queue is never empty.
    requests = [Request(None, tenant, size) for tenant, size in sizes for _ in range(budget)]
    scheduler = filled(requests, budget=budget, capacity=256)
    served: Counter[str] = Counter(dict.fromkeys((tenant for tenant, _ in sizes), 0))
    for _ in range(30):
        for request in scheduler.schedule():
            served[request.tenant] += request.rows
            scheduler.back(request, again=True)

        assert max(served.values()) - min(served.values()) <= max(size for _, size in sizes)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 16), st.integers(1, 4))
def test_nobody_waits_longer_than_the_rows_before(seed: int, budget: int, tenants: int):
    """Under random arrivals, ends and cancellations every request's wait keeps the bound of the module.

    T (a + 2 m) / budget steps for one behind `a` rows of its tenant; with one tenant, all rows / budget.
    """
    draw = random.Random(seed)
    scheduler, known, largest = Scheduler(capacity=400, budget=budget), [], 6
    waiting: dict[Request, tuple[int, int]] = {}  # the steps it may wait, and those it has waited

    def enter(request: Request) -> None:
        ahead = sum(other.rows for other in scheduler._tenants[request.tenant].queue) - request.rows
        bound = tenants * (ahead + 2 * largest) if tenants > 1 else ahead
        waiting[request] = (bound // budget, 0)

    for _ in range(100):
        for _ in range(draw.choice([0, 0, 1, 3, 8])):
            known.append(Request(None, f"t{draw.randrange(tenants)}", draw.randint(1, largest)))
            scheduler.add(known[-1])
            enter(known[-1])
        if draw.random() < 0.3 and known:
            request = draw.choice(known)
            scheduler.remove(request)
            waiting.pop(request, None)
        step = scheduler.schedule()
        for request in step:
            bound, waited = waiting.pop(request)
            assert waited <= bound
        waiting = {request: (bound, waited + 1) for request, (bound, waited) in waiting.items()}
        for request in step:
            again = draw.random() < 0.5
            request.rows = draw.randint(1, largest)
            scheduler.back(request, again=again)
            if again:
                enter(request)
        scheduler.check()
    play(scheduler)
    assert scheduler.active == 0
