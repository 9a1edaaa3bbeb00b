"""Appending to a session, from the event loop's side."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlstm_server.engine import answers, requests
from rlstm_server.engine.billing import Bill, billed
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.staged import Change, Changed, Staged
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import read_passage
from rlstm_server.schemas import AppendAnswer, AppendRequest, EngineLimits
from rlstm_server.store.base import SessionKey, new_operation_id


@dataclass(frozen=True, eq=False)
class Appends:
    """Score, then learn, then commit."""

    sessions: Sessions
    staging: Staging
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

        async def work(operation: Operation[AppendAnswer]) -> AppendAnswer:
            changed = await self.sessions.change(operation, change, partial(self._plan, request, bill))
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
        return self.staging.append(copy, request, piece)

    async def _answer(self, key: SessionKey, changed: Changed[AppendAnswer]) -> AppendAnswer:
        if changed.staged is not None and changed.expires_at_ms is not None:
            expires_at = changed.expires_at_ms / 1000
            return replace(changed.staged.answer, expires_at=expires_at, timings=changed.timings)
        if changed.replay is None:
            raise ValueError("a change is either staged or a replay")
        head = await self.sessions.store.load_head(key, with_state=False)
        stored = answers.append_answer(changed.replay.answer or changed.replay.summary)
        return replace(stored, replayed=True, expires_at=head.expires_at_ms / 1000, timings=changed.timings)


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
