"""Appending to a session, from the event loop's side."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlstm_server.engine import answers, requests
from rlstm_server.engine.billing import Bill, billed
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.learning import read_piece
from rlstm_server.engine.queue import Task
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import Piece, read_passage
from rlstm_server.engine.transaction import Change, Changed, Staged
from rlstm_server.schemas import AppendAnswer, AppendRequest, EngineLimits, Timings
from rlstm_server.store.base import SessionKey, new_operation_id


@dataclass(frozen=True, eq=False)
class Appends:
    """Score, then learn, then commit."""

    sessions: Sessions
    limits: EngineLimits

    async def perform(self, request: AppendRequest) -> AppendAnswer:
        """Append in the session's turn. See EngineInterface.append."""
        key = requests.session_key(request.caller.tenant, request.session)
        change = Change(
            key=key,
            operation_id=request.key or new_operation_id(),
            body_hash=await requests.off_loop(
                requests.size_of(request.passage), partial(append_digest, request)
            ),
            caller=request.caller,
            if_match=request.if_match,
        )

        async def work(task: Task[AppendAnswer]) -> AppendAnswer:
            changed = await self.sessions.change(task, change, partial(self._plan, request, bill))
            if changed.replay is not None:
                bill.refund()
            return await self._answer(key, changed)

        with billed(request.caller.allowance) as bill:
            return await self.sessions.enqueue(key, change.operation_id, work).wait()

    async def _plan(
        self, request: AppendRequest, bill: Bill, copy: SessionCopy
    ) -> Steps[Any, Staged[AppendAnswer]]:
        read = partial(
            read_passage,
            copy.state.served.vocab,
            request.passage,
            "",
            place=copy.state.place,
            final=request.final,
        )
        piece = await requests.off_loop(requests.size_of(request.passage), read)
        requests.check_append(piece, self.limits)
        bill.charge(tokens=len(piece.ids), learned=len(piece.ids) if request.learn else 0)
        return stage_append(copy, request, piece, self.sessions.store.durability)

    async def _answer(self, key: SessionKey, changed: Changed[AppendAnswer]) -> AppendAnswer:
        if changed.staged is not None and changed.expires_at_ms is not None:
            expires_at = changed.expires_at_ms / 1000
            return replace(changed.staged.answer, expires_at=expires_at, timings=changed.timings)
        if changed.replay is None:
            raise ValueError("a change is either staged or a replay")
        head = await self.sessions.store.load_head(key, with_state=False)
        stored = answers.read_append(changed.replay.summary, changed.replay.details)
        return replace(stored, replayed=True, expires_at=head.expires_at_ms / 1000, timings=changed.timings)


def stage_append(
    copy: SessionCopy, request: AppendRequest, piece: Piece, durability: str
) -> Steps[Any, Staged[AppendAnswer]]:
    """Score a piece, then learn from it, unless the session's learning is off."""
    learn = request.learn and copy.facts.learning
    reading = yield from read_piece(copy.state, piece, learn=learn)
    state = reading.state.measured()
    answer = AppendAnswer(
        version=copy.position.version + 1,
        position=state.adapted.position,
        durability=durability,
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
    return Staged(state, answer, answers.store_append(answer), reading.tally, copy.facts)


def append_digest(request: AppendRequest) -> bytes:
    """Tell this append from another with the same key."""
    return requests.request_digest(
        "append",
        session=request.session,
        passage=request.passage,
        learn=request.learn,
        final=request.final,
        scores=request.scores,
    )
