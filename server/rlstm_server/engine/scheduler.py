"""Who computes next: pure arithmetic over job numbers and tenants, without torch, threads or a clock.

Tenants take turns; within a tenant its jobs take turns. One turn is one *slice* (a segment for learning, a
chunk for static scoring, a few tokens for generation), after which the job goes to the end of its tenant's
line. So a long job delays a short one by at most one slice a round, however long it is, and a tenant with
many jobs delays another tenant by one slice a turn.

The runner asks for a :class:`Plan`, executes it, reports the :class:`Outcome`. A plan names jobs, so that it
can later name the rows of a batch.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlstm_server.errors import Overloaded


class Plan(NamedTuple):
    """The jobs that advance by one slice now."""

    jobs: tuple[int, ...]


class Outcome(NamedTuple):
    """What became of a plan: these jobs have more to do, these are over (done, failed or cancelled)."""

    unfinished: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()


@dataclass
class _Books:
    """Counts over the scheduler's life; `check` compares them with the lines."""

    added: int = 0
    finished: int = 0
    cancelled: int = 0


@dataclass
class Scheduler:
    """A bounded, fair queue of jobs. `capacity` bounds the jobs that are waiting or running."""

    capacity: int
    _tenant_of: dict[int, str] = field(default_factory=dict)
    _lines: dict[str, deque[int]] = field(default_factory=dict)
    _turns: deque[str] = field(default_factory=deque)
    _running: set[int] = field(default_factory=set)
    _doomed: set[int] = field(default_factory=set)
    _books: _Books = field(default_factory=_Books)

    @property
    def active(self) -> int:
        """Jobs that are waiting or running."""
        return len(self._tenant_of)

    def add(self, job: int, tenant: str) -> None:
        """Put a new job at the end of its tenant's line. Raises Overloaded when the queue is full."""
        if self.active >= self.capacity:
            raise Overloaded(f"{self.capacity} jobs are waiting already", retry_after=1)
        if job in self._tenant_of:
            raise ValueError(f"job {job} was added before")
        self._tenant_of[job] = tenant
        self._books.added += 1
        self._enqueue(job)

    def schedule(self) -> Plan | None:
        """Choose who advances now, or None when nobody waits."""
        if not self._turns:
            return None
        tenant = self._turns.popleft()
        line = self._lines[tenant]
        job = line.popleft()
        if line:
            self._turns.append(tenant)
        else:
            del self._lines[tenant]
        self._running.add(job)
        return Plan((job,))

    def update(self, outcome: Outcome) -> None:
        """Learn what became of the jobs of a plan; a job cancelled meanwhile does not come back."""
        for job in outcome.finished:
            self._leave(job)
            self._books.finished += 1
        for job in outcome.unfinished:
            self._running.remove(job)
            if job in self._doomed:
                self._leave(job)
                self._books.cancelled += 1
            else:
                self._enqueue(job)

    def cancel(self, job: int) -> bool:
        """Remove a waiting job at once, a running one at its next update. False when it is not known."""
        if job not in self._tenant_of:
            return False
        if job in self._running:
            self._doomed.add(job)
            return True
        tenant = self._tenant_of[job]
        line = self._lines[tenant]
        line.remove(job)
        if not line:
            del self._lines[tenant]
            self._turns.remove(tenant)
        self._leave(job)
        self._books.cancelled += 1
        return True

    def holds(self, job: int) -> bool:
        """Whether the job is waiting or running."""
        return job in self._tenant_of

    def check(self) -> None:
        """Raise ValueError unless every job is in exactly one place and the counts add up."""
        waiting = [job for line in self._lines.values() for job in line]
        _equal("jobs in two lines", len(waiting), len(set(waiting)))
        _equal("jobs waiting and running", set(waiting) & self._running, set())
        _equal("known jobs", set(waiting) | self._running, set(self._tenant_of))
        _equal("doomed jobs that do not run", self._doomed - self._running, set())
        _equal("tenants in turn", sorted(self._turns), sorted(self._lines))
        _equal("empty lines", [tenant for tenant, line in self._lines.items() if not line], [])
        gone = self._books.finished + self._books.cancelled
        _equal("jobs added", self._books.added, gone + self.active)

    def _enqueue(self, job: int) -> None:
        tenant = self._tenant_of[job]
        if tenant not in self._lines:
            self._lines[tenant] = deque()
            self._turns.append(tenant)
        self._lines[tenant].append(job)

    def _leave(self, job: int) -> None:
        del self._tenant_of[job]
        self._running.discard(job)
        self._doomed.discard(job)


def _equal(
    what: str, found: int | set[int] | Iterable[str], expected: int | set[int] | Iterable[str]
) -> None:
    if found != expected:
        raise ValueError(f"the scheduler's books do not balance: {what}: {found} instead of {expected}")
