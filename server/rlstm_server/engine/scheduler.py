"""Which requests share the next batch step: arithmetic over tenants and rows, without threads or a clock.

A batch step has room for `budget` rows, and a request takes some of them: those of its experts, its texts,
its choices. Tenants are served in the order of the rows they have had (start-time fair queuing; Goyal et al.
1996), so that each gets an equal share of what is asked for; within a tenant requests take turns. A request
goes at most once a step, and then to the end of its tenant's queue: however long its text, it delays another
by its rows of one step. Nobody waits for a step to fill: whoever is there goes.

With T tenants, a request behind `a` rows of its own tenant waits for at most T (a + 2 m) / budget steps,
where m are the rows of the largest request.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from rlstm_server.errors import Overloaded

SHARE: Final = 3 / 4
"""How much of the queue one tenant may fill: the rest is for others who come."""


class Schedulable(Protocol):
    """Whose it is, and the rows that it takes of its next batch step."""

    @property
    def tenant(self) -> str:
        """Who has its share of the rows."""

    @property
    def rows(self) -> int:
        """At least one; they may change while it is in a step."""


RequestT = TypeVar("RequestT", bound=Schedulable)


StartTag: TypeAlias = tuple[int, int, str]
"""Where a tenant stands in their order: the rows that it had, fewest first; then first come; its name."""


@dataclass
class _Tenant(Generic[RequestT]):
    """`had` are the rows it was given, and what others had when it came; it has a `tag` while it waits."""

    had: int
    requests: int = 0
    queue: "deque[RequestT]" = field(default_factory=deque)
    tag: StartTag | None = None


@dataclass
class Scheduler(Generic[RequestT]):
    """A bounded, fair queue. `capacity` bounds the requests in it, `budget` the rows of a step.

    The last request of a step may go over the budget. `active` is how many wait or run.
    """

    capacity: int
    budget: int
    active: int = 0
    _tenants: dict[str, _Tenant[RequestT]] = field(default_factory=dict)
    _order: list[StartTag] = field(default_factory=list)
    _running: set[RequestT] = field(default_factory=set)
    _now: int = 0
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def requests(self) -> list[RequestT]:
        """All that wait or run."""
        return [*self._running, *(one for tenant in self._tenants.values() for one in tenant.queue)]

    @property
    def waiting(self) -> bool:
        """Whether any waits for the next step."""
        return bool(self._order)

    @property
    def wanted(self) -> int:
        """Rows that all of them ask for: over `budget`, so many steps pass until each has had its turn."""
        return sum(request.rows for request in self.requests)

    def add(self, request: RequestT, *, admitted: bool = False) -> None:
        """Put a request at the end of its tenant's queue. Raises Overloaded when the queue is full.

        One that was `admitted` before, in an earlier part of the same work, is not refused.
        """
        tenant = self._tenants.get(request.tenant) or _Tenant(self._now)
        if not admitted and self.active >= self.capacity:
            raise Overloaded(f"{self.capacity} jobs are waiting; retry later", retry_after=1)
        if not admitted and tenant.requests >= SHARE * self.capacity:
            raise Overloaded(f"{tenant.requests} jobs of this tenant are waiting; retry later", retry_after=1)
        self._tenants[request.tenant] = tenant
        tenant.requests += 1
        self.active += 1
        tenant.queue.append(request)
        self._wait(request.tenant, tenant)

    def schedule(self) -> list[RequestT]:
        """Take the requests of the next step; none when nobody waits. Each is then to be put `back`."""
        chosen: list[RequestT] = []
        rows = 0
        while self._order and rows < self.budget:
            had, _, name = self._order.pop(0)
            tenant = self._tenants[name]
            request = tenant.queue.popleft()
            chosen.append(request)
            rows += request.rows
            self._now, tenant.had, tenant.tag = had, had + request.rows, None
            self._wait(name, tenant)
        self._running.update(chosen)
        return chosen

    def back(self, request: RequestT, *, again: bool) -> None:
        """Take a request back after its step: to the end of its tenant's queue, or for good."""
        self._running.remove(request)
        tenant = self._tenants[request.tenant]
        if again:
            tenant.queue.append(request)
            self._wait(request.tenant, tenant)
        else:
            self._leave(request, tenant)

    def remove(self, request: RequestT) -> bool:
        """Remove a request that waits; False for one that is in a step, which is to come `back` first."""
        tenant = self._tenants.get(request.tenant)
        if tenant is not None and request in tenant.queue:
            tenant.queue.remove(request)
            if not tenant.queue and tenant.tag is not None:
                del self._order[bisect_left(self._order, tenant.tag)]
                tenant.tag = None
            self._leave(request, tenant)
        return request not in self._running

    def check(self) -> None:
        """Raise ValueError unless every request is in exactly one place and the counts add up."""
        requests = self.requests
        _equal("requests in two places", len(requests), len({*requests}))
        tags = sorted(tenant.tag for tenant in self._tenants.values() if tenant.tag is not None)
        _equal("tags of tenants", self._order, tags)
        for name, tenant in self._tenants.items():
            _equal("a tenant that waits", tenant.tag is not None, bool(tenant.queue))
            own = sum(request.tenant == name for request in requests)
            _equal("requests of a tenant", tenant.requests, own)
            _equal("a tenant that has requests", own > 0, True)
        _equal("all requests", self.active, len(requests))

    def _wait(self, name: str, tenant: _Tenant[RequestT]) -> None:
        """Put a tenant with a queue in their order. What was not asked for earlier is not owed now."""
        if tenant.queue and tenant.tag is None:
            tenant.had = max(tenant.had, self._now)
            tenant.tag = (tenant.had, next(self._numbers), name)
            insort(self._order, tenant.tag)

    def _leave(self, request: RequestT, tenant: _Tenant[RequestT]) -> None:
        tenant.requests -= 1
        self.active -= 1
        if not tenant.requests:
            del self._tenants[request.tenant]


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"the scheduler's counts do not agree: {what}: {found} instead of {expected}")
