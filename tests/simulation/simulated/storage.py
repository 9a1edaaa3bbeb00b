"""The store of the simulated world: one MemoryStore that may be down, full, or fall back to an earlier state.

Every change that it applies is written down beside it, with the attempt of a client that it was for. What
clients were told is later compared with that.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Final

from rlstm_server.store.base import (
    Commit,
    Committed,
    Creation,
    Durability,
    Head,
    NamedSnapshot,
    Retention,
    Revision,
    SessionKey,
)
from rlstm_server.store.memory_store import MemoryStore
from simulated.loop import SimulatedLoop
from simulated.told import Attempt

EPOCH_MS: Final = 1_700_000_000_000


@dataclass(eq=False)
class Applied:
    """A change of a session: its creation, a commit, or its end.

    before, after  the revisions that it leads from and to; None where it has none
    at_s           when it was applied
    name           of a snapshot
    lost           a failover took it back
    """

    call: str
    key: SessionKey
    attempt: Attempt | None
    before: Revision | None = None
    after: Revision | None = None
    change: Commit | Creation | None = None
    expires_at_ms: int = 0
    name: str | None = None
    lost: bool = False
    at_s: float = 0.0


@dataclass(eq=False)
class Storage:
    """See the module. There is a second server, which has everything unless it was held back."""

    loop: SimulatedLoop
    limits: Retention
    durability: Durability
    store: MemoryStore = field(init=False)
    applied: list[Applied] = field(default_factory=list)
    down: bool = False
    failovers: int = 0
    _behind: tuple[MemoryStore, int] | None = None

    def __post_init__(self) -> None:
        self.store = MemoryStore(limits=self.limits, clock_ms=self.clock_ms)

    def clock_ms(self) -> int:
        """The store's clock: nobody else's decides when a session ends."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], attempt: Attempt | None) -> Any:
        """Do what a replica asks, at once and as a whole."""
        before = self._revision(args[0].key) if name == "commit" else None
        outcome = finished(getattr(self.store, name)(*args, **kwargs))
        if isinstance(outcome, Committed):
            commit: Commit = args[0]
            after, expires = outcome.revision, outcome.expires_at_ms
            self._note(Applied("commit", commit.key, attempt, before, after, commit, expires))
        elif isinstance(outcome, Head) and name == "create":
            creation: Creation = args[0]
            after, expires = outcome.revision, outcome.expires_at_ms
            self._note(Applied("create", creation.key, attempt, None, after, creation, expires))
        elif isinstance(outcome, NamedSnapshot):
            revision = Revision(outcome.version, args[2].chain)
            self._note(Applied("name", args[0], attempt, after=revision, name=outcome.name))
        elif name == "drop_snapshot":
            self._note(Applied("unname", args[0], attempt, name=args[1]))
        elif name == "delete":
            self._note(Applied("delete", args[0], attempt))
        return outcome

    def fill(self) -> None:
        """Take no byte more."""
        self.store._max_bytes = max(1, self.store._used_bytes)

    def make_room(self) -> None:
        """Take everything again."""
        self.store._max_bytes = 0

    def hold_back(self) -> None:
        """From now on the second server receives nothing."""
        if self._behind is None:
            self._behind = (self._copied(self.store), len(self.applied))

    def catch_up(self) -> None:
        """The second server has everything."""
        self._behind = None

    @property
    def replicated(self) -> int:
        """How many of the changes the second server has."""
        return len(self.applied) if self._behind is None else self._behind[1]

    def fail_over(self) -> None:
        """Go on with what the second server has."""
        kept, count = self._behind or (self.store, len(self.applied))
        self.store, self._behind = kept, None
        for change in self.applied[count:]:
            change.lost = True
        self.failovers += 1

    def _copied(self, store: MemoryStore) -> MemoryStore:
        return copy.deepcopy(store, {id(self): self})

    def _revision(self, key: SessionKey | None) -> Revision | None:
        session = None if key is None else self.store._sessions.get(key)
        return None if session is None else session.head.revision

    def _note(self, change: Applied) -> None:
        change.at_s = self.loop.time()
        self.applied.append(change)


def finished(call: Any) -> Any:
    """The outcome of a call that never waits."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    call.close()
    raise AssertionError("a call of the store in memory waits for something")
