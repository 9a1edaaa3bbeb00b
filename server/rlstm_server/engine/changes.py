"""Changes to a session that score nothing, from the event loop's side: resets, settings, ways back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from rlstm_server.engine import answers, requests
from rlstm_server.engine.description import SessionCopy, session_info
from rlstm_server.engine.named_snapshots import NamedSnapshots
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.staged import Change, Changed, Staged
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import InvalidField
from rlstm_server.schemas import ChangeAnswer, ResetRequest, RestoreRequest, SessionInfo, UpdateRequest
from rlstm_server.store.base import new_operation_id

Plan = Callable[[SessionCopy], Awaitable[Steps[Any, Staged[SessionInfo]]]]
Request = ResetRequest | UpdateRequest | RestoreRequest


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes that are answered with the session as it is then."""

    sessions: Sessions
    staging: Staging
    snapshots: NamedSnapshots

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""

        async def plan(copy: SessionCopy) -> Steps[Any, Staged[SessionInfo]]:
            return self.staging.reset(copy, request.scope)

        return await self._perform(request, "reset", plan, scope=request.scope)

    async def update(self, request: UpdateRequest) -> ChangeAnswer:
        """Change what was said of the session. Raises InvalidField when nothing is to change."""
        ttl_seconds, metadata, learning = request.ttl_seconds, request.metadata, request.learning
        if ttl_seconds is None and metadata is None and learning is None:
            raise InvalidField("body", "give at least one of ttl_seconds, metadata and learning")
        requests.check_facts(ttl_seconds=ttl_seconds, metadata=metadata)

        async def plan(copy: SessionCopy) -> Steps[Any, Staged[SessionInfo]]:
            facts = copy.facts
            return self.staging.update(
                copy,
                replace(
                    facts,
                    ttl_ms=facts.ttl_ms if ttl_seconds is None else int(ttl_seconds * 1000),
                    metadata=facts.metadata if metadata is None else metadata,
                    learning=facts.learning if learning is None else learning,
                ),
            )

        return await self._perform(
            request, "update", plan, ttl_seconds=ttl_seconds, metadata=metadata, learning=learning
        )

    async def restore(self, request: RestoreRequest) -> ChangeAnswer:
        """Go back to a named snapshot. Raises NotFound when there is none of this name."""

        async def plan(copy: SessionCopy) -> Steps[Any, Staged[SessionInfo]]:
            state, version = await self.snapshots.open(copy.key, request.snapshot, request.caller)
            return self.staging.restore(copy, state, version)

        return await self._perform(request, "restore", plan, snapshot=request.snapshot)

    async def _perform(self, request: Request, name: str, plan: Plan, **fields: Any) -> ChangeAnswer:
        """Commit in the session's turn; a repeat is answered as the change was."""
        change = Change(
            key=requests.session_key(request.caller.tenant, request.session),
            operation_id=request.key or new_operation_id(),
            body_hash=requests.request_digest(name, session=request.session, **fields),
            caller=request.caller,
            if_match=request.if_match,
        )

        async def work(operation: Operation[ChangeAnswer]) -> ChangeAnswer:
            changed = await self.sessions.change(operation, change, plan)
            return ChangeAnswer(
                info=await self._info(change, changed),
                durability=self.staging.durability,
                replayed=changed.staged is None,
            )

        return await self.sessions.enqueue(change.key, change.operation_id, work).wait()

    async def _info(self, change: Change, changed: Changed[SessionInfo]) -> SessionInfo:
        if changed.staged is not None and changed.expires_at_ms is not None:
            return replace(changed.staged.answer, expires_at=changed.expires_at_ms / 1000)
        if changed.replay is None:
            raise ValueError("a change is either staged or a replay")
        head = await self.sessions.store.load_head(change.key, with_state=False)
        present = session_info(change.key.session_id, head)
        if changed.replay.answer is not None:
            stored = answers.session_info(changed.replay.answer, present)
            return replace(stored, expires_at=present.expires_at)
        stored = answers.session_info(changed.replay.summary, present)
        return replace(stored, expires_at=present.expires_at, metadata=present.metadata)
