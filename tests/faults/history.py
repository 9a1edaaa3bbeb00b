"""What clients asked for and what they were told: all that a service is held to afterwards."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(eq=False)
class Asked:
    """One changing operation on a session, however often it was sent.

    outcome    open; acknowledged; refused: every answer said that it was not applied; unknown: nobody said
    reply      the document of the acknowledgement
    seen       token ids that the reader of a stream was shown, acknowledged or not
    """

    kind: str
    key: str
    body: dict
    if_match: int | None = None
    outcome: str = "open"
    version: int | None = None
    reply: dict | None = None
    seen: list = field(default_factory=list)


@dataclass(eq=False)
class Read:
    """A score that a client was given: of which version, and what it was."""

    version: int
    logprob: float


@dataclass(eq=False)
class Told:
    """One session as its clients know it.

    parent      of a fork: the session, and the version that it was taken at
    deleting    somebody asked for its end; `deleted`: and was told that it has come
    newest      the newest version that anybody was told of
    """

    id: str
    creation: dict
    parent: tuple["Told", int] | None = None
    asked: dict[str, Asked] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    deleting: bool = False
    deleted: bool = False
    newest: int = 0


class History:
    """Everything that all clients of one service were told."""

    def __init__(self):
        self.sessions = {}
        self.creations = set()
        self.wrong = []
        self.statuses = Counter()
        self.acknowledged = 0
        self.repeats = 0
        self.slowest_seconds = 0.0
        self._last = time.monotonic()
        self.outage_seconds = 0.0

    @property
    def living(self):
        """The sessions whose end nobody has asked for."""
        return [told for told in self.sessions.values() if not told.deleting]

    def acknowledge(self):
        """Count an operation that a client was told has happened."""
        now = time.monotonic()
        self.acknowledged += 1
        self.outage_seconds = max(self.outage_seconds, now - self._last)
        self._last = now

    def resume(self):
        """Begin to count an outage from now on."""
        self._last = time.monotonic()
