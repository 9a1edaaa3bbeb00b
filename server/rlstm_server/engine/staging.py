"""Changes computed on a staged state: what a commit needs, made on the device thread."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlstm_server.engine import answers
from rlstm_server.engine.description import SessionCopy, SessionFacts, info_of
from rlstm_server.engine.learning import Tally, read_piece
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.record import ReadingRecord
from rlstm_server.engine.replay import reset
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.staged import Staged
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import Piece
from rlstm_server.schemas import (
    AdaptationChoice,
    AppendAnswer,
    AppendRequest,
    ResetScope,
    SessionInfo,
    Timings,
)


@dataclass(frozen=True, eq=False)
class Staging:
    """Computes changes of sessions, to be committed to `store`."""

    store: MeteredStore

    @property
    def durability(self) -> str:
        """How safe a change is once it is committed."""
        return self.store.durability

    def start(self, served: ServedModel, choice: AdaptationChoice) -> Steps[Any, SessionState]:
        """The state of a new session."""
        yield from ()
        return SessionState.before_text(served, choice)

    def append(
        self, copy: SessionCopy, request: AppendRequest, piece: Piece
    ) -> Steps[Any, Staged[AppendAnswer]]:
        """Score a piece, then learn from it, unless the session's learning is off."""
        learn = request.learn and copy.facts.learning
        reading = yield from read_piece(copy.state, piece, learn=learn)
        state = reading.state.measured()
        answer = AppendAnswer(
            version=copy.position.version + 1,
            position=state.adapted.position,
            durability=self.durability,
            replayed=False,
            expires_at=None,
            columns=reading.columns if request.scores == "tokens" else None,
            totals=None if request.scores == "none" else reading.totals,
            updates=reading.tally.updates,
            guards=reading.tally.guard_counts,
            weights=state.adapted.weights,
            norm_ratio=state.norm_ratio,
            pending=len(state.place.pending),
            timings=Timings(),
            learn=learn,
        )
        return self.stage(
            copy,
            state,
            record=reading_record("append", reading.record),
            answer=answer,
            stored=answers.encode(answer),
            summary=answers.summarise(answer),
            tally=reading.tally,
        )

    def reset(self, copy: SessionCopy, scope: ResetScope) -> Steps[Any, Staged[SessionInfo]]:
        """Forget fast weights, recurrent state, or both; position and sums go on."""
        yield from ()
        state = reset(copy.state, scope).measured()
        return self._silent(copy, state, copy.facts, {"op": "reset", "scope": scope})

    def update(self, copy: SessionCopy, facts: SessionFacts) -> Steps[Any, Staged[SessionInfo]]:
        """Change what is said of the session; its state stays."""
        yield from ()
        record = {"op": "update", "ttl_ms": facts.ttl_ms, "learning": facts.learning}
        return self._silent(copy, copy.state, facts, record)

    def restore(
        self, copy: SessionCopy, state: SessionState, version: int
    ) -> Steps[Any, Staged[SessionInfo]]:
        """Put the state of an earlier version in place of the present one."""
        yield from ()
        return self._silent(copy, state, copy.facts, {"op": "restore", "of": version}, whole=True)

    def _silent(
        self,
        copy: SessionCopy,
        state: SessionState,
        facts: SessionFacts,
        record: Mapping[str, Any],
        *,
        whole: bool = False,
    ) -> Staged[SessionInfo]:
        """A change without scores: its answer is the session afterwards, to expire when the store says."""
        info = info_of(replace(copy, state=state, facts=facts), state.stored_bytes, 0)
        info = replace(info, version=copy.position.version + 1)
        return self.stage(
            copy,
            state,
            record=record,
            answer=info,
            stored=answers.encode_session(info),
            summary=answers.encode_session(replace(info, metadata={})),
            tally=Tally(),
            facts=facts,
            whole=whole,
        )

    def stage(
        self,
        copy: SessionCopy,
        state: SessionState,
        *,
        record: Mapping[str, Any],
        answer: Any,
        stored: bytes,
        summary: bytes,
        tally: Tally,
        facts: SessionFacts | None = None,
        whole: bool = False,
    ) -> Staged[Any]:
        """The state after a change, to be committed.

        `record` says what was done, as in :mod:`rlstm_server.engine.record`; `facts` replace the copy's.
        `whole`: the record alone does not lead to the state, so the commit brings it, however large it is.
        """
        return Staged(state, record, answer, stored, summary, tally, facts or copy.facts, whole)


def reading_record(operation: str, *readings: ReadingRecord) -> dict[str, Any]:
    """What it takes to read the same tokens again."""
    return {"op": operation, "readings": [reading.to_json() for reading in readings]}
