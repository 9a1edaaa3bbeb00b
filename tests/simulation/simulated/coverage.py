"""What a run has met: the fates of calls, the calls at which replicas died, and what clients were told."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from simulated.network import FAULTS, Call

CHANGES: Final = ("create", "commit", "delete", "name_snapshot")
READS: Final = ("load_head", "recall", "read_snapshot", "named_snapshots")
TOLD: Final = (
    *("answered", "unknown", "conflict", "draining", "durability_not_reached", "idempotency_mismatch"),
    *("in_flight", "outcome_unknown", "overloaded", "session_deleted", "session_expired"),
    *("snapshot_exists", "store_full", "store_unavailable", "version_mismatch"),
)
ROWS: Final = frozenset(
    {
        *(f"{call} {fate}" for call, fate in product((*CHANGES, *READS), FAULTS)),
        *(f"died: {call} {phase}" for call, phase in product(CHANGES, ("sent", "applied", "answered"))),
        *(f"died: {call} sent" for call in ("load_head", "recall")),
        *(f"told {what}" for what in TOLD),
        *(f"event {kind}" for kind in ("down", "full", "drain", "failover")),
    }
)
"""What ten thousand seeds must have met."""


def rows_of(trace: list[tuple[float, str, tuple[Any, Any]]]) -> Iterator[str]:
    """What the lines of a trace tell of."""
    for _, event, (what, more) in trace:
        if isinstance(what, Call):
            yield f"died: {what.name} {more}" if event == "died" else f"{what.name} {what.fate}"
        elif event == "told":
            yield f"told {getattr(more, 'code', more)}"
        elif event == "event":
            yield f"event {what}"
