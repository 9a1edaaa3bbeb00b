"""Who is in the next round: pure arithmetic over jobs, tenants and rows, without torch, threads or a clock.

A round has room for `budget` rows, and a job takes some of them: those of its experts, its texts, its
choices. Tenants are served in the order of the rows they have had (start-time fair queuing; Goyal et al.
1996), so that each gets an equal share of what is asked for; within a tenant jobs take turns. A job goes at
most once a round, and then to the end of its tenant's line: however long its text, it delays another by its
rows of one round. Nobody waits for a round to fill: whoever is there goes.

With T tenants, a job behind `a` rows of its own tenant waits for at most T (a + 2 m) / budget rounds, where
m are the rows of the largest job.

The runner asks for a :class:`Plan`, executes it, reports the :class:`Outcome`.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from rlstm_server.errors import Overloaded

SHARE: Final = 3 / 4
"""How much of the queue one tenant may fill: the rest is for others who come."""


class Plan(NamedTuple):
    """The jobs of one round."""

    jobs: tuple[int, ...]


class Outcome(NamedTuple):
    """What became of a plan: jobs that go on, with the rows they want next, and jobs that are over."""

    unfinished: Mapping[int, int] = {}
    finished: tuple[int, ...] = ()


class _Job(NamedTuple):
    tenant: str
    rows: int


@dataclass
class _Tenant:
    """`had` are the rows it was given, and what others had when it came; it has a `turn` while it waits."""

    had: int
    jobs: int = 0
    line: deque[int] = field(default_factory=deque)
    turn: "_Turn | None" = None


class _Turn(NamedTuple):
    """A place in the order of tenants: fewest rows first, then first come."""

    had: int
    number: int
    tenant: str


@dataclass
class _Books:
    """Counts over the scheduler's life; `check` compares them with the lines."""

    added: int = 0
    finished: int = 0
    cancelled: int = 0


@dataclass
class Scheduler:
    """A bounded, fair queue of jobs. `capacity` bounds the jobs in it, `budget` the rows of a round.

    The last job of a plan may go over the budget.
    """

    capacity: int
    budget: int
    _jobs: dict[int, _Job] = field(default_factory=dict)
    _tenants: dict[str, _Tenant] = field(default_factory=dict)
    _turns: list[_Turn] = field(default_factory=list)
    _running: set[int] = field(default_factory=set)
    _doomed: set[int] = field(default_factory=set)
    _now: int = 0
    _numbers: "count[int]" = field(default_factory=count)
    _books: _Books = field(default_factory=_Books)

    @property
    def active(self) -> int:
        """Jobs that are waiting or running."""
        return len(self._jobs)

    @property
    def wanted(self) -> int:
        """Rows that all jobs ask for: over `budget`, so many rounds pass until each has had its turn."""
        return sum(job.rows for job in self._jobs.values())

    def add(self, job: int, tenant: str, rows: int = 1, *, admitted: bool = False) -> None:
        """Put a new job at the end of its tenant's line. Raises Overloaded when the queue is full.

        One that was `admitted` before, in an earlier part of the same work, is not refused.
        """
        if job in self._jobs:
            raise ValueError(f"job {job} was added before")
        if not admitted:
            self._check_room(tenant)
        own = self._tenants.setdefault(tenant, _Tenant(self._now))
        own.jobs += 1
        self._books.added += 1
        self._enqueue(job, _Job(tenant, max(1, rows)))

    def schedule(self) -> Plan | None:
        """Choose who is in the next round, or None when nobody waits."""
        chosen: list[int] = []
        rows = 0
        while self._turns and rows < self.budget:
            job = self._take()
            chosen.append(job)
            rows += self._jobs[job].rows
        self._running.update(chosen)
        return Plan(tuple(chosen)) if chosen else None

    def update(self, outcome: Outcome) -> None:
        """Learn what became of the jobs of a plan; a job cancelled meanwhile does not come back."""
        for job in outcome.finished:
            self._leave(job)
            self._books.finished += 1
        for job, rows in outcome.unfinished.items():
            self._running.remove(job)
            if job in self._doomed:
                self._leave(job)
                self._books.cancelled += 1
            else:
                self._enqueue(job, self._jobs[job]._replace(rows=max(1, rows)))

    def cancel(self, job: int) -> bool:
        """Remove a waiting job at once, a running one at its next update. False when it is not known."""
        if job not in self._jobs:
            return False
        if job in self._running:
            self._doomed.add(job)
            return True
        tenant = self._tenants[self._jobs[job].tenant]
        tenant.line.remove(job)
        if not tenant.line and tenant.turn is not None:
            del self._turns[bisect_left(self._turns, tenant.turn)]
            tenant.turn = None
        self._leave(job)
        self._books.cancelled += 1
        return True

    def holds(self, job: int) -> bool:
        """Whether the job is waiting or running."""
        return job in self._jobs

    def check(self) -> None:
        """Raise ValueError unless every job is in exactly one place and the counts add up."""
        waiting = [job for tenant in self._tenants.values() for job in tenant.line]
        _equal("jobs in two lines", len(waiting), len(set(waiting)))
        _equal("jobs waiting and running", set(waiting) & self._running, set())
        _equal("known jobs", set(waiting) | self._running, set(self._jobs))
        _equal("doomed jobs that do not run", self._doomed - self._running, set())
        in_line = sorted(name for name, tenant in self._tenants.items() if tenant.line)
        _equal("tenants in turn", sorted(turn.tenant for turn in self._turns), in_line)
        turns = sorted(tenant.turn for tenant in self._tenants.values() if tenant.turn is not None)
        _equal("turns", self._turns, turns)
        held = sorted(job.tenant for job in self._jobs.values())
        counted = sorted(name for name, tenant in self._tenants.items() for _ in range(tenant.jobs))
        _equal("jobs of tenants", counted, held)
        _equal("tenants without jobs", [n for n, tenant in self._tenants.items() if not tenant.jobs], [])
        gone = self._books.finished + self._books.cancelled
        _equal("jobs added", self._books.added, gone + self.active)

    def _check_room(self, tenant: str) -> None:
        if self.active >= self.capacity:
            raise Overloaded(f"{self.capacity} jobs are waiting already", retry_after=1)
        own = self._tenants.get(tenant)
        if own is not None and own.jobs >= SHARE * self.capacity:
            raise Overloaded(f"{own.jobs} jobs of this tenant are waiting already", retry_after=1)

    def _take(self) -> int:
        """The next job of the tenant that had the fewest rows."""
        turn = self._turns.pop(0)
        tenant = self._tenants[turn.tenant]
        tenant.turn = None
        job = tenant.line.popleft()
        self._now = turn.had
        tenant.had = turn.had + self._jobs[job].rows
        if tenant.line:
            self._wait(turn.tenant, tenant)
        return job

    def _enqueue(self, number: int, job: _Job) -> None:
        self._jobs[number] = job
        tenant = self._tenants[job.tenant]
        tenant.line.append(number)
        if tenant.turn is None:
            self._wait(job.tenant, tenant)

    def _wait(self, name: str, tenant: _Tenant) -> None:
        """Take a place among the tenants. What was not asked for earlier is not owed now."""
        tenant.had = max(tenant.had, self._now)
        tenant.turn = _Turn(tenant.had, next(self._numbers), name)
        insort(self._turns, tenant.turn)

    def _leave(self, job: int) -> None:
        name = self._jobs.pop(job).tenant
        self._running.discard(job)
        self._doomed.discard(job)
        self._tenants[name].jobs -= 1
        if not self._tenants[name].jobs:
            del self._tenants[name]


def _equal(what: str, found: int | set[int] | Iterable[object], expected: object) -> None:
    if found != expected:
        raise ValueError(f"the scheduler's books do not balance: {what}: {found} instead of {expected}")
