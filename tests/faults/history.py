"""What clients asked for and what they were told: all that a service is held to afterwards."""

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

    parent      of a fork: the session, the version that it was taken at, and whether it learns: its source's
                setting when it was made, also where its state is an older one
    snapshots   names of versions, acknowledged
    deleting    somebody asked for its end; `deleted`: and was told that it has come
    forked      somebody asked for a fork of it
    newest      the newest version that anybody was told of
    """

    id: str
    creation: dict
    parent: "tuple[Told, int, bool] | None" = None
    asked: dict[str, Asked] = field(default_factory=dict)
    snapshots: dict[str, int] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    deleting: bool = False
    deleted: bool = False
    forked: bool = False
    newest: int = 0

    def acknowledged(self, kind):
        """The operations of a kind that somebody was told have happened."""
        return [one for one in self.asked.values() if one.outcome == "acknowledged" and one.kind == kind]


class History:
    """Everything that all clients of one service were told.

    wrong       answers that cannot be, one sentence each
    waits       how long each answer took, in seconds
    """

    def __init__(self):
        self.sessions = {}
        self.creations = set()
        self.wrong = []
        self.statuses = Counter()
        self.waits = []
        self.acknowledged = 0

    @property
    def living(self):
        """The sessions whose end nobody has asked for."""
        return [told for told in self.sessions.values() if not told.deleting]

    def acknowledge(self):
        """Count an operation that a client was told has happened."""
        self.acknowledged += 1
