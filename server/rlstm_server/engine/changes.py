"""Changes of a session: appends, which score and then learn, resets, settings, and going back to a snapshot.

Each is asked for on the event loop, computed on the device thread on a staged state, and committed in the
session's turn; a repeat is answered as the change was.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_server.engine import answers, requests
from rlstm_server.engine.answers import info_of, session_info
from rlstm_server.engine.queue import Charge, Task
from rlstm_server.engine.reading import Piece, read_passage, read_piece
from rlstm_server.engine.session import Sessions, Staged
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.engine.state import Place, SessionCopy, SessionState
from rlstm_server.engine.worker import Job
from rlstm_server.errors import InvalidField
from rlstm_server.schemas.sessions import (
    AppendAnswer,
    AppendRequest,
    ChangeAnswer,
    ResetRequest,
    ResetScope,
    RestoreRequest,
    SessionInfo,
    UpdateRequest,
)
from rlstm_server.settings import Limits
from rlstm_server.store.base import Replayed, SessionKey


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of sessions that exist."""

    sessions: Sessions
    snapshots: NamedSnapshots
    limits: Limits

    async def append(self, request: AppendRequest, top: int = 0) -> AppendAnswer:
        """Score, then learn; the `top` most probable tokens at each place are told, but not stored.

        Raises NotFound, Gone, VersionMismatch, Conflict, IdempotencyMismatch, InFlight.
        """
        body_hash = await requests.off_loop(len(request.passage), partial(requests.digest, request))

        async def work(task: Task[AppendAnswer]) -> AppendAnswer:
            done = await self.sessions.change(task, partial(self._plan_append, request, top, charge))
            if isinstance(done, Staged):
                return replace(done.answer, expires_at=done.expires_at_ms / 1000, timings=task.timings)
            charge.refund()
            stored = answers.read_append(done.summary, done.details)
            return replace(stored, replayed=True, expires_at=done.expires_at_ms / 1000, timings=task.timings)

        with self.sessions.taking(request.call.key, request.call.quota) as charge:
            return await self.sessions.enqueue(request.call, body_hash, work).wait()

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""

        async def plan(copy: SessionCopy) -> Job[Staged[SessionInfo]]:
            return partial(_stage, lambda: replace(copy, state=reset(copy.state, request.what)))

        return await self._change(request, plan)

    async def update(self, request: UpdateRequest) -> ChangeAnswer:
        """Change what was said of the session. Raises InvalidField when nothing is to change."""
        ttl_seconds, metadata, learning = request.ttl_seconds, request.metadata, request.learning
        if ttl_seconds is None and metadata is None and learning is None and request.note is None:
            raise InvalidField("body", "give at least one of ttl_seconds, metadata, learning and note")
        requests.check_metadata(metadata or {})
        requests.check_note(request.note or "", self.limits)

        async def plan(copy: SessionCopy) -> Job[Staged[SessionInfo]]:
            facts = copy.facts
            facts = replace(
                facts,
                ttl_ms=facts.ttl_ms if ttl_seconds is None else int(ttl_seconds * 1000),
                metadata=facts.metadata if metadata is None else metadata,
                learning=facts.learning if learning is None else learning,
            )
            return partial(
                _stage, lambda: replace(copy, facts=facts, state=copy.state.measured(request.note))
            )

        return await self._change(request, plan)

    async def restore(self, request: RestoreRequest) -> ChangeAnswer:
        """Go back to a named snapshot. Raises NotFound when there is none of this name."""

        async def plan(copy: SessionCopy) -> Job[Staged[SessionInfo]]:
            state, _ = await self.snapshots.open(copy.key, request.snapshot)
            return partial(_stage, lambda: replace(copy, state=state))

        return await self._change(request, plan)

    async def _plan_append(
        self, request: AppendRequest, top: int, charge: Charge, copy: SessionCopy
    ) -> Job[Staged[AppendAnswer]]:
        vocab, place = copy.state.served.vocab, copy.state.place
        read = partial(read_passage, vocab, request.passage, "", place=place, final=request.final)
        piece = await requests.off_loop(len(request.passage), read)
        requests.check_append(piece, self.limits)
        if request.note is not None:
            requests.check_note(request.note, self.limits)
        charge.add(tokens=len(piece.ids), learned=len(piece.ids) if request.learn else 0)
        return partial(_stage_append, copy, request, piece, top, self.sessions.durability)

    async def _change(
        self,
        request: ResetRequest | UpdateRequest | RestoreRequest,
        plan: Callable[[SessionCopy], Awaitable[Job[Staged[SessionInfo]]]],
    ) -> ChangeAnswer:
        """Commit a change that is answered with the session as it is then, to expire when the store says."""

        async def work(task: Task[ChangeAnswer]) -> ChangeAnswer:
            done = await self.sessions.change(task, plan)
            if isinstance(done, Staged):
                info = replace(done.answer, expires_at=done.expires_at_ms / 1000)
            else:
                info = await self._info(task.key, done)
            durability = self.sessions.durability
            return ChangeAnswer(info=info, durability=durability, replayed=isinstance(done, Replayed))

        with self.sessions.taking(request.call.key):
            return await self.sessions.enqueue(request.call, requests.digest(request), work).wait()

    async def _info(self, key: SessionKey, known: Replayed) -> SessionInfo:
        head = await self.sessions.store.load_head(key, with_state=False)
        present = session_info(head)
        # Metadata of long ago are stored no longer; the present ones are the best that is known.
        metadata = present.metadata if known.details is None else answers.parse(known.details or b"{}")
        return replace(answers.read_session(known.summary), expires_at=present.expires_at, metadata=metadata)


# ---- on the device thread ---------------------------------------------------------------------------------


async def _stage_append(
    copy: SessionCopy, request: AppendRequest, piece: Piece, top: int, durability: str
) -> Staged[AppendAnswer]:
    """Score a piece, then learn from it, unless the session's learning is off."""
    learn = request.learn and copy.facts.learning
    reading = await read_piece(copy.state, piece, learn=learn, top=top, spaces=request.spaces)
    state = reading.state.measured(request.note)
    answer = AppendAnswer(
        version=copy.revision.version + 1,
        position=state.adapted.position,
        durability=durability,
        replayed=False,
        expires_at=None,
        columns=reading.columns.asked(request.scores),
        totals=None if request.scores == "none" else reading.totals,
        updates=reading.updates,
        guards=reading.guards,
        weights=state.adapted.weights,
        norm_ratio=state.norm_ratio,
        pending=len(state.place.pending),
        learn=learn,
    )
    summary, details = answers.store_append(answer)
    after = replace(copy, state=state)
    return Staged(copy=after, answer=answer, summary=summary, details=details, readings=(reading,))


async def _stage(change: Callable[[], SessionCopy]) -> Staged[SessionInfo]:
    """A change without scores."""
    after = change()
    info = replace(info_of(after), version=after.revision.version + 1)
    summary, details = answers.store_session(info)
    return Staged(copy=after, answer=info, summary=summary, details=details)


def reset(state: SessionState, scope: ResetScope) -> SessionState:
    """Forget fast weights, recurrent state, or both; position and sums go on."""
    recurrent, fast_weights = scope in ("recurrent", "both"), scope in ("fast_weights", "both")
    return replace(
        state,
        adapted=state.evaluator.reset(state.adapted, fast_weights=fast_weights, recurrent=recurrent),
        place=_past_unread(state.place) if recurrent else state.place,
        loss_guard=LossGuard() if fast_weights else state.loss_guard,
    ).measured()


def _past_unread(place: Place) -> Place:
    """The place behind text that will never become tokens."""
    skipped = len(place.pending) + (1 if place.unfinished else 0)
    return Place(characters=place.characters + skipped)
