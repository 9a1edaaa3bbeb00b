"""Which rows of the crash matrix a run hits. What is expected in each is in CRASH_MATRIX.md."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlstm_server.errors import Gone, ServerError, StoreFull, StoreUnavailable
from rlstm_server.store.base import Committed, Replayed, Stale
from simulated.network import Call
from simulated.replica import Replica
from simulated.storage import Applied
from simulated.told import ATTEMPT, Attempt

MATRIX: Final = Path(__file__).parent.parent / "CRASH_MATRIX.md"
ROWS: Final = tuple(re.findall(r"^\| `([a-z0-9-]+)` \|", MATRIX.read_text(), re.MULTILINE))

SHORT: Final = {"load_head": "load", "name_snapshot": "name"}
CRASHES: Final = {
    "name_snapshot": ("crash-name-sent", "crash-name-applied"),
    "read_snapshot": ("crash-reading-snapshot", "crash-reading-snapshot"),
}
"""Calls whose row does not depend on who made them: before they are applied, and after."""

CODES: Final = {
    "in_flight": "in-flight",
    "overloaded": "queue-full",
    "draining": "drain-refused",
    "durability_not_reached": "durability-missed",
}


@dataclass(eq=False)
class Watch:
    """Sees what happens in one world, and counts the rows."""

    world: Any
    hit: set[str] = field(default_factory=set)
    _broken: set[str] = field(default_factory=set)
    _paused: set[str] = field(default_factory=set)
    _stale: set[Attempt | None] = field(default_factory=set)
    _replayed: set[Attempt | None] = field(default_factory=set)
    _served: set[tuple[str, Any]] = field(default_factory=set)
    _taken_back: set[Any] = field(default_factory=set)

    def row(self, name: str) -> None:
        """Count a row. Raises ValueError for one that is not in the matrix."""
        if name not in ROWS:
            raise ValueError(f"the crash matrix has no row {name}")
        self.hit.add(name)

    def _try(self, name: str) -> None:
        if name in ROWS:
            self.hit.add(name)

    # ---- a replica dies, stands still, or drains --------------------------------------------------------

    def crashed(self, replica: Replica) -> None:
        """Look at everything that a replica is doing as it dies."""
        calls = self.world.network.in_flight(replica.host)
        for task, context in replica.host.tasks:
            attempt = context.get(ATTEMPT)
            if task.done() or attempt is None:
                continue
            if replica.draining:
                self.row("crash-draining")
            self._broken.add(attempt.intent.name)
            names = list(_chain(task))
            if "Network.call" in names:
                for call in calls:
                    if call.attempt is attempt:
                        self._crashed_calling(attempt, names, call)
            elif "Lock.acquire" in names:
                self.row("crash-queued")
            elif "Worker.run" in names:
                self._crashed_computing(attempt, names, computed=_is_ready(task))
            elif names and names[-1] == "Task.wait" and _is_ready(task):
                self.row("crash-untold")

    def _crashed_computing(self, attempt: Attempt, names: Sequence[str], *, computed: bool) -> None:
        if "Sessions.change" not in names or "Sessions._load" in names:
            return
        self.row("crash-computed" if computed else "crash-computing")
        if attempt in self._stale:
            self.row("crash-redo")
        if attempt.intent.kind == "generate":
            kept = any(change.attempt is attempt for change in self.world.storage.applied)
            self.row("crash-between-chunks" if kept else "crash-first-chunk")
        if attempt.intent.kind == "create":
            self.row("crash-before-first")

    def _crashed_calling(self, attempt: Attempt, names: Sequence[str], call: Call) -> None:
        sent, copies = call.phase == "sent", attempt.intent.kind in ("fork", "import")
        if call.name in CRASHES:
            self.row(CRASHES[call.name][0 if sent else 1])
        elif call.name == "create" and copies:
            self.row("crash-copy-made")
        elif call.name == "load_head" and "Sessions._load" in names:
            self.row("crash-loading" if sent else "crash-loaded")
        elif call.name == "load_head" and attempt in self._replayed:
            self.row("crash-replayed")
        elif call.name == "load_head" and attempt.intent.kind == "create":
            self.row("crash-after-first")
        elif call.name == "create":
            self.row("crash-create-sent" if sent else "crash-create-applied")
        elif call.name == "delete" and attempt.intent.kind == "delete":
            self.row("crash-delete-sent" if sent else "crash-delete-applied")
        elif call.name == "commit":
            self._try(f"crash-{call.what}")
            if not sent:
                self.row("crash-before-cache" if call.phase == "answered" else "crash-commit-applied")
            if not sent and call.what == "generate":
                self.row("crash-chunk-unseen")

    def dropped(self, call: Call) -> None:
        """A dead replica's message went down with it."""
        self._try(f"crash-{call.name}-unsent")

    def paused(self, replica: Replica) -> None:
        """A replica stands still."""
        self._paused.add(replica.host.name)
        if any(call.name == "commit" for call in self.world.network.in_flight(replica.host)):
            self.row("zombie-commit")

    def draining(self, replica: Replica) -> None:
        """A replica begins to drain."""
        if any(call.name == "commit" for call in self.world.network.in_flight(replica.host)):
            self.row("drain-commit")

    # ---- messages ---------------------------------------------------------------------------------------

    def seen(self, event: str, call: Call) -> None:
        """Something happened to a message."""
        short, outcome = SHORT.get(call.name, call.name), call.outcome
        if event == "sent" and self.world.storage.down:
            self.row("store-down")
        if (event == "sent" and call.fate == "refused") or event == "lost":
            self._try(f"{short}-{call.fate}")
        if event == "applied" and call.fate in ("unanswered", "reset"):
            self._try(f"{short}-unanswered")
        if event == "applied" and call.fate == "late" and not isinstance(outcome, Replayed | Stale):
            self._try(f"{short}-late")
        if event == "again":
            self._try(f"{short}-twice")
        if event == "refused" and isinstance(outcome, StoreFull):
            self._try(f"store-full-{call.name}")
        if event == "refused" and isinstance(outcome, Gone) and call.name == "commit":
            self._try(f"gone-{outcome.reason.removeprefix('session_')}")
        if event == "sent" and call.name == "load_head":
            self._seen_load(call)
        if call.name == "commit" and event in ("applied", "again"):
            self._seen_commit(call)

    def _seen_load(self, call: Call) -> None:
        key = call.args[0]
        small = self.world.profile.cache_bytes < 1_000
        if small and call.kwargs.get("known") is None and (call.host.name, key) in self._served:
            self.row("cache-evicted")

    def _seen_commit(self, call: Call) -> None:
        commit, outcome = call.args[0], call.outcome
        if isinstance(outcome, Committed):
            self._served.add((call.host.name, commit.key))
            if not call.host.alive:
                self.row("crash-commit-sent")
            return
        if isinstance(outcome, Stale | Replayed) and call.fate in ("late", "twice"):
            if outcome.current.version > commit.position.version:
                self.row("commit-overtaken")
        elif isinstance(outcome, Stale):
            self._stale.add(call.attempt)
            self.row("zombie-stale" if call.host.name in self._paused else "race-redo")
            if commit.expects in self._taken_back:
                self.row("failover-future")
        elif isinstance(outcome, Replayed) and call.attempt is not None:
            self._replayed.add(call.attempt)
            if sum(other.outcome == "open" for other in call.attempt.intent.attempts) > 1:
                self.row("race-same-key")

    def failed_over(self, lost: Sequence[Applied]) -> None:
        """The second server has taken over."""
        self._taken_back |= {change.after for change in lost if change.after is not None}
        if self.world.storage.durability == "replica":
            self.row("failover-replica")
        elif lost:
            self.row("failover-back")

    # ---- answers ----------------------------------------------------------------------------------------

    def told(self, attempt: Attempt) -> None:
        """A client was told something, or its connection broke."""
        if attempt.left is not None:
            self.row(f"client-left-{attempt.left}")
        if attempt.error is not None:
            self._told_error(attempt, attempt.error)
        if attempt.outcome == "answered" and attempt.intent.key is not None:
            self._told_again(attempt)

    def _told_error(self, attempt: Attempt, error: ServerError) -> None:
        kind, code = attempt.intent.kind, error.code
        if code in CODES:
            self.row(CODES[code])
        elif code == "outcome_unknown" and kind not in ("create", "delete"):
            self.row(
                "commit-unknown-down" if isinstance(error.__cause__, StoreUnavailable) else "commit-unknown"
            )
        elif code == "conflict":
            self.row("race-mid-stream" if error.applied == "yes" else "race-conflict")
        elif code == "idempotency_mismatch":
            self.row("key-misused")
        elif code == "version_mismatch" and getattr(attempt.intent.request, "if_match", None) is not None:
            self.row("if-match-moved")
        elif code in ("session_deleted", "session_expired") and isinstance(error, Gone):
            self._try(f"gone-{error.reason.removeprefix('session_')}")

    def _told_again(self, attempt: Attempt) -> None:
        earlier = attempt.intent.attempts[: attempt.intent.attempts.index(attempt)]
        if any(one.outcome == "answered" for one in earlier):
            self.row("repeat-answered")
        if attempt.intent.name in self._broken and earlier:
            self.row("repeat-after-crash")
        if attempt.intent.kind == "generate" and any(
            one.events and one.outcome != "answered" for one in earlier
        ):
            self.row("stream-marked" if attempt.request.call.after is not None else "stream-resumed")


def _chain(task: "asyncio.Task[Any]") -> Iterator[str]:
    """The functions that a task is in, from the outermost to the one that waits."""
    item: Any = task.get_coro()
    while item is not None:
        code = getattr(item, "cr_code", None)
        if code is None:
            return
        yield code.co_qualname
        item = item.cr_await


def _is_ready(task: "asyncio.Task[Any]") -> bool:
    """Whether what a task waited for is there, and it has not gone on yet."""
    waits = task._fut_waiter
    return waits is None or waits.done()
