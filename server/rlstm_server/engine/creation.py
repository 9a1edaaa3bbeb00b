"""Making a session, and appending its first text."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson

from rlstm_server.engine import answers, requests
from rlstm_server.engine.appends import Appends
from rlstm_server.engine.messages import (
    AdaptationChoice,
    AppendAnswer,
    AppendRequest,
    CreatedSession,
    CreateSession,
)
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshot import SessionCopy, SessionFacts, describe, info_of, session_info
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.text import read_passage
from rlstm_server.errors import DurabilityNotReached, IdempotencyMismatch, ServerError
from rlstm_server.store.base import (
    Created,
    Creation,
    CreationOutcome,
    CreationReplayed,
    SessionKey,
    new_operation_id,
    new_session_id,
)

FIRST: Final = "#first"
"""What makes the operation id of the first append out of that of the creation."""


@dataclass(frozen=True, eq=False)
class Creator:
    """Makes sessions; `default_ttl_seconds` is for those that name no time to live."""

    sessions: Sessions
    staging: Staging
    appends: Appends
    default_ttl_seconds: float

    async def perform(self, request: CreateSession) -> CreatedSession:
        """Make a session. See EngineInterface.create_session."""
        requests.check_create(request)
        choice = self._choose(request)
        await requests.off_loop(requests.size_of(request.first), partial(self._check_first, request))
        operation_id = request.key or new_operation_id()

        async def work(operation: Operation[CreatedSession]) -> CreatedSession:
            return await self._create(request, choice, operation_id, operation)

        made = await self.sessions.start(work).wait()
        if request.first is None:
            return made
        answer = await self._append_first(request, operation_id, made.info.id)
        head = await self.sessions.store.load_head(
            SessionKey(request.caller.tenant, made.info.id), with_state=False
        )
        return replace(made, info=session_info(made.info.id, head), append=answer)

    def _choose(self, request: CreateSession) -> AdaptationChoice:
        """How the session learns. Raises InvalidField, and TooLarge for a state too large for a commit."""
        served = self.staging.served
        choice = served.choose(request.adaptation)
        kind = f"{choice.kind} of {choice.coordinates:,} with {choice.experts} experts"
        requests.within(
            f"bytes of a session's state, {kind}",
            served.state_bytes(choice),
            self.appends.limits.state_bytes,
        )
        return choice

    def _check_first(self, request: CreateSession) -> None:
        """Refuse a first text that cannot be appended, before the session is made."""
        if request.first is not None:
            piece = read_passage(self.staging.served.vocab, request.first, "", final=False)
            requests.check_append(piece, self.appends.limits)

    async def _create(
        self,
        request: CreateSession,
        choice: AdaptationChoice,
        operation_id: str,
        operation: Operation[CreatedSession],
    ) -> CreatedSession:
        key = SessionKey(request.caller.tenant, new_session_id())
        ran = await self.sessions.runner.run(self.staging.start(key, choice), request.caller)
        state, sealed = ran.result
        seconds = self.default_ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
        facts = SessionFacts(
            name=request.name,
            created_at_ms=time.time_ns() // 1_000_000,
            ttl_ms=int(seconds * 1000),
            metadata=request.metadata,
        )
        creation = Creation(
            key=key,
            operation_id=operation_id,
            body_hash=creation_digest(request),
            name=request.name,
            info=describe(state, facts, len(sealed)),
            state=sealed,
            ttl_ms=facts.ttl_ms,
            answer=b"{}",
        )
        copy = SessionCopy(key=key, position=creation.position, state=state, facts=facts)
        expected = info_of(copy, len(sealed), facts.created_at_ms + facts.ttl_ms)
        outcome = await operation.commit(
            self.sessions.store.create(replace(creation, answer=orjson.dumps(expected)))
        )
        return self._settle(copy, len(sealed), outcome)

    def _settle(self, copy: SessionCopy, state_bytes: int, outcome: CreationOutcome) -> CreatedSession:
        metrics, durability = self.sessions.metrics, self.staging.durability
        if isinstance(outcome, CreationReplayed):
            metrics.replays.labels("replayed").inc()
            stored = answers.created_info(outcome.answer)
            return CreatedSession(info=stored, append=None, durability=durability, replayed=True)
        if not isinstance(outcome, Created):
            metrics.replays.labels("body_mismatch").inc()
            raise IdempotencyMismatch("the idempotency key was used with another request")
        metrics.sessions_created.inc()
        facts = replace(copy.facts, created_at_ms=outcome.head.created_at_ms)
        self.sessions.cache.put(replace(copy, facts=facts))
        info = info_of(replace(copy, facts=facts), state_bytes, outcome.head.expires_at_ms)
        return CreatedSession(info=info, append=None, durability=durability, replayed=False)

    async def _append_first(self, request: CreateSession, operation_id: str, session: str) -> AppendAnswer:
        """Append the first text; without a key to repeat the request with, a session without it is ended."""
        if request.first is None:
            raise ValueError("there is no first text")
        append = AppendRequest(
            caller=request.caller,
            session=session,
            passage=request.first,
            scores=request.scores,
            key=operation_id + FIRST,
        )
        try:
            return await self.appends.perform(append)
        except ServerError as error:
            if request.key is None and not isinstance(error, DurabilityNotReached):
                await self.sessions.store.delete(SessionKey(request.caller.tenant, session))
            raise


def creation_digest(request: CreateSession) -> bytes:
    """Tell this creation from another with the same key."""
    return requests.request_digest(
        "create",
        name=request.name,
        adaptation=request.adaptation,
        ttl_seconds=request.ttl_seconds,
        metadata=request.metadata,
        first=request.first,
        scores=request.scores,
    )
