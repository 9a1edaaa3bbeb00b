"""What clients wanted, how they asked for it, and what they were told."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from rlstm_server.errors import ServerError

Outcome = Literal["answered", "refused", "unknown", "open"]


@dataclass(eq=False)
class Attempt:
    """One request. What nobody answered is `unknown`: the connection broke, or the client left.

    request  of its intent; a reader that comes back says in it which event came last
    events   of a stream, in the order they arrived
    floor    the version that no answer may lie below
    blind    whether the store was asked for a head and did not answer
    """

    intent: "Intent"
    request: Any
    replica: str
    began: float
    outcome: Outcome = "open"
    answer: Any = None
    error: ServerError | None = None
    ended: float | None = None
    events: list[Any] = field(default_factory=list)
    floor: int = 0
    blind: bool = False

    def __repr__(self) -> str:
        number = self.intent.attempts.index(self) + 1
        return f"{self.intent.name}/{number}"


@dataclass(eq=False)
class Intent:
    """One thing that a client wants to happen once, however often it asks. Without a key it asks once."""

    name: str
    kind: str
    session: str | None
    key: str | None
    request: Any
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether another attempt with the same key would tell nothing new."""
        return any(one.outcome == "answered" or is_final(one.error) for one in self.attempts)


FINAL = frozenset(
    {
        "not_found",
        "session_deleted",
        "session_expired",
        "version_mismatch",
        "idempotency_mismatch",
        "session_exists",
        "snapshot_exists",
        "invalid_field",
        "too_large",
    }
)
"""Errors that say the same however often one asks."""


def is_final(error: ServerError | None) -> bool:
    """Whether asking again is pointless."""
    if error is None:
        return False
    broken_off = error.code == "conflict" and error.applied == "yes"  # a text that others wrote into
    return error.code in FINAL or broken_off


ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def version_told(attempt: Attempt) -> int | None:
    """The newest version that an answer speaks of."""
    answer = attempt.answer
    if attempt.events:
        ends = [getattr(event, "version", None) for event in attempt.events]
        return max((version for version in ends if version is not None), default=None)
    match attempt.intent.kind:
        case "append" | "rank" | "info" | "export":
            return None if answer is None else answer.version
        case "create" | "reset" | "update" | "restore":
            return None if answer is None else answer.info.version
        case _:
            return None
