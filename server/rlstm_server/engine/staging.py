"""Changes computed on a staged state: what a commit needs, made on the device thread."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import orjson

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.watch import Watch
from rlstm_server.engine import answers
from rlstm_server.engine.learning import Reading, Tally, read_piece
from rlstm_server.engine.messages import (
    AdaptationChoice,
    AppendAnswer,
    AppendRequest,
    ResetScope,
    Timings,
)
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.session import Staged
from rlstm_server.engine.snapshot import SessionCopy, SessionState, Snapshots
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import Piece, Place
from rlstm_server.store.base import SessionKey


@dataclass(frozen=True, eq=False)
class Staging:
    """Computes changes of sessions of one served model, to be committed to `store`."""

    served: ServedModel
    snapshots: Snapshots
    store: MeteredStore

    @property
    def durability(self) -> str:
        """How safe a change is once it is committed."""
        return self.store.durability

    def adapter(self, state: SessionState) -> Adapter:
        """What a session's fast weights belong to."""
        return self.served.adapter(state.choice.kind, state.choice.coordinates)

    def measured(self, state: SessionState) -> SessionState:
        """A state that is to be committed, with the norm of its fast weights."""
        return replace(state, norm_ratio=self.served.norm_ratio(state.choice, state.adapted))

    def start(self, key: SessionKey, choice: AdaptationChoice) -> Steps[Any, tuple[SessionState, bytes]]:
        """The state of a new session, and the same sealed."""
        yield from ()
        adapter = self.served.adapter(choice.kind, choice.coordinates)
        state = SessionState.before_text(adapter, choice)
        return state, self.snapshots.pack(key, 0, state)

    def append(
        self, copy: SessionCopy, request: AppendRequest, piece: Piece
    ) -> Steps[Any, Staged[AppendAnswer]]:
        """Score a piece, then learn from it."""
        reading = yield from read_piece(self.adapter(copy.state), copy.state, piece, learn=request.learn)
        state = self.measured(reading.state)
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
        )
        return self.stage(
            copy,
            state,
            record=read_record("append", reading, learn=request.learn),
            answer=answer,
            stored=answers.encode(answer),
            summary=answers.summarise(answer),
            tally=reading.tally,
        )

    def reset(self, copy: SessionCopy, scope: ResetScope) -> Steps[Any, Staged[None]]:
        """Forget fast weights, recurrent state, or both; position and sums go on."""
        yield from ()
        before, recurrent = copy.state, scope in ("recurrent", "both")
        fast_weights = scope in ("fast_weights", "both")
        adapted = self.adapter(before).reset(before.adapted, fast_weights=fast_weights, recurrent=recurrent)
        state = self.measured(
            replace(
                before,
                adapted=adapted,
                place=_past_unread(before.place) if recurrent else before.place,
                watch=Watch() if fast_weights else before.watch,
            )
        )
        record = {"op": "reset", "scope": scope}
        return self.stage(copy, state, record=record, answer=None, stored=b"{}", summary=b"{}", tally=Tally())

    def stage(
        self,
        copy: SessionCopy,
        state: SessionState,
        *,
        record: dict[str, Any],
        answer: Any,
        stored: bytes,
        summary: bytes,
        tally: Tally,
    ) -> Staged[Any]:
        """Seal the state after a change, and put its digest into the record."""
        sealed = self.snapshots.pack(copy.key, copy.position.version + 1, state)
        record["state"] = hashlib.blake2b(sealed, digest_size=32).hexdigest()
        return Staged(state, sealed, orjson.dumps(record), answer, stored, summary, tally)


def read_record(operation: str, reading: Reading, *, learn: bool) -> dict[str, Any]:
    """What it takes to read the same tokens again: their ids, the learn flag, and what the guards decided."""
    return {
        "op": operation,
        "ids": reading.columns.ids,
        "learn": learn,
        "guards": reading.tally.guards,
        "pending": reading.state.place.pending,
    }


def _past_unread(place: Place) -> Place:
    """The place behind text that will never become tokens."""
    skipped = len(place.pending) + (1 if place.unfinished else 0)
    return Place(characters=place.characters + skipped)
