"""Who asks, and what the key that was shown may use up.

A charge may be larger than what is left: the key then waits until it is paid off. So a long text costs no
more waiting than the same text in pieces, and no rate forbids a text for its length.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from rlstm_server.errors import Forbidden, RateLimited

ScopeName = Literal["score", "generate", "sessions", "admin"]
ALL_SCOPES: Final[frozenset[ScopeName]] = frozenset({"score", "generate", "sessions", "admin"})
DEFAULT_TENANT: Final = "default"


class TokenBucket:
    """A quota of `rate` units of `what` a second, of which `burst` may come at once.

    One second's worth (at least one) where `burst` is None.
    """

    def __init__(
        self,
        what: str,
        rate: float,
        *,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._rate, self._clock = what, rate, clock
        self._capacity = max(1.0, rate if burst is None else burst)
        self._level, self._filled_at = self._capacity, clock()

    def check(self) -> None:
        """Raise RateLimited, which says how much was used and when there is more, unless one unit is left."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._level < 1.0:
            used = self._capacity - self._level
            raise RateLimited(
                f"{self._what}: {used:,.0f} used, at most {self._rate:,g} a second allowed",
                quota=self._what,
                given=round(used),
                limit=self._rate,
                retry_after=(1.0 - self._level) / self._rate,
            )

    def take(self, count: float = 1.0) -> None:
        """Use up `count` units, if one is left. Raises RateLimited."""
        self.check()
        self.use(count)

    def use(self, count: float) -> None:
        """Use up `count` units, whatever is left; a negative count gives them back."""
        self._level = min(self._capacity, self._level - count)


@dataclass(frozen=True, kw_only=True, eq=False)
class Quota:
    """What one key may use up; None is as much as it likes.

    requests                      a second
    tokens, learned, generated    tokens a second that are read, learned from and generated
    sessions, stored_bytes        what its tenant may keep, however it came about
    """

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    learned: TokenBucket | None = None
    generated: TokenBucket | None = None
    sessions: int | None = None
    stored_bytes: int | None = None


UNLIMITED = Quota()


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who asks: the tenant, what the key allows, and what is left of its quotas.

    `key_id` names the key in the audit log: the first digits of its digest.
    """

    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    scopes: frozenset[ScopeName] = ALL_SCOPES
    quota: Quota = UNLIMITED

    def require(self, *scopes: ScopeName) -> None:
        """Raise Forbidden unless the key has one of these scopes; none asks for nothing."""
        if scopes and not self.scopes.intersection(scopes):
            raise Forbidden(f"this key lacks the scope {' or '.join(scopes)}")


LOCAL: Final = Principal()
"""Who asks a server without keys: the user of this machine."""

NOBODY: Final = Principal(tenant="", scopes=frozenset())
"""Who asks for what is open: no tenant of any key."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Who asks, for which session, under which idempotency key, and at which version only.

    ``endpoint`` is the route's template from a closed set; it labels the queue-time metric. ``quota`` is what
    the key may use up, ``after`` the id of the last event that the reader of a stream that broke off has.
    """

    tenant: str
    request_id: str
    endpoint: str = "unknown"
    quota: Quota = UNLIMITED
    session: str = ""
    key: str | None = None
    if_match: int | None = None
    after: str | None = None
