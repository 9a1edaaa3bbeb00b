"""A change on its way into a session: what was asked for, what was computed, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rlstm_server.engine.description import SessionCopy, SessionFacts
from rlstm_server.engine.learning import Tally
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.record import write_record
from rlstm_server.engine.snapshot import SessionState, Snapshots, digest
from rlstm_server.engine.steps import Steps
from rlstm_server.schemas import Timings
from rlstm_server.store.base import Replayed, SessionKey

Answer = TypeVar("Answer")


class Staged(NamedTuple, Generic[Answer]):
    """A change that is computed and not yet committed.

    record  what was done (:mod:`rlstm_server.engine.record`)
    whole   the record alone does not lead to the state: the commit brings it, however large it is
    """

    state: SessionState
    record: Mapping[str, Any]
    answer: Answer
    stored_answer: bytes
    summary: bytes
    tally: Tally
    facts: SessionFacts
    whole: bool = False


class Written(NamedTuple, Generic[Answer]):
    """A staged change as a commit has it: its record, and the sealed state where that is small."""

    staged: Staged[Answer]
    record: bytes
    sealed: bytes | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that was asked for. `redo` allows doing the work again when another replica was faster."""

    key: SessionKey
    operation_id: str
    body_hash: bytes
    caller: Caller
    if_match: int | None = None
    redo: bool = True


class Changed(NamedTuple, Generic[Answer]):
    """A change that took effect: now (`staged`), or earlier (`replay`)."""

    staged: Staged[Answer] | None
    replay: Replayed | None
    copy: SessionCopy | None
    expires_at_ms: int | None
    timings: Timings

    @property
    def version(self) -> int:
        """The version that the change made."""
        if self.replay is not None:
            return self.replay.version
        if self.copy is None:
            raise ValueError("a change is either staged or a replay")
        return self.copy.position.version


def computed(
    snapshots: Snapshots, copy: SessionCopy, steps: Steps[Any, Staged[Answer]]
) -> Steps[Any, Written[Answer]]:
    """Compute a change, and make of it what is committed. Raises StateCorrupt where that is not finite."""
    staged = yield from steps
    state = staged.state
    record = write_record(
        staged.record,
        state.place,
        state.totals,
        numerics=state.served.numerics,
        state=(yield from digest(state)),
    )
    version = copy.position.version + 1
    return Written(staged, record, snapshots.pack(copy.key, version, state) if state.is_inline else None)
