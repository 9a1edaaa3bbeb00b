"""Making a session of any origin, and appending the first text of a new one."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rlstm_server.engine import answers, requests
from rlstm_server.engine.answers import info_of, session_info
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.queue import Task
from rlstm_server.engine.quotas import StorageQuota
from rlstm_server.engine.reading import read_passage
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.state import OVERHEAD_BYTES, SessionCopy, SessionFacts, SessionState, check_size
from rlstm_server.errors import (
    Gone,
    IdempotencyMismatch,
    ModelMismatch,
    NotFound,
    RateLimited,
    ServerError,
    StoreFull,
)
from rlstm_server.schemas.sessions import (
    AppendAnswer,
    AppendRequest,
    CreatedSession,
    CreateSession,
    ForkRequest,
    ImportRequest,
    SessionInfo,
)
from rlstm_server.schemas.text import AdaptationChoice, EngineIdentity
from rlstm_server.store.base import (
    Created,
    Creation,
    CreationReplayed,
    Mismatch,
    Position,
    SessionKey,
    new_operation_id,
    new_session_id,
)

NewSession = CreateSession | ForkRequest | ImportRequest

FIRST: Final = "#first"
"""What makes the operation id of the first append out of that of the creation."""


@dataclass(frozen=True, eq=False)
class Creator:
    """Makes sessions; `default_ttl_seconds` is for those that name no time to live."""

    sessions: Sessions
    models: Models
    changes: Changes
    quota: StorageQuota
    default_ttl_seconds: float

    async def perform(self, request: CreateSession) -> CreatedSession:
        """Make a session. See Engine.create_session."""
        requests.check_metadata(request.metadata)
        body_hash = creation_digest(request)

        async def work(task: Task[CreatedSession]) -> CreatedSession:
            try:
                served, choice = await self._choose(request)
            except ServerError as error:
                # A server with other models, or another first one, may have made it.
                return await self.made_before(error, request, body_hash, task)
            facts = self.facts(request.name, request.ttl_seconds, request.metadata)
            return await self.make(task, request, body_hash, SessionState.before_text(served, choice), facts)

        made = await self.sessions.start(work).wait()
        if request.first is None:
            return made
        answer = await self._append_first(request, made.info.id)
        return replace(made, info=await self._present(request.call.tenant, made.info.id), append=answer)

    def facts(self, name: str | None, ttl_seconds: float | None, metadata: Mapping[str, Any]) -> SessionFacts:
        """What is said of a session that is made now."""
        seconds = self.default_ttl_seconds if ttl_seconds is None else ttl_seconds
        return SessionFacts(
            name=name,
            created_at_ms=time.time_ns() // 1_000_000,
            ttl_ms=int(seconds * 1000),
            metadata=metadata,
        )

    def check_size(self, served: ServedModel, choice: AdaptationChoice) -> None:
        """Raise TooLarge for a session whose state could become too large to be kept."""
        check_size(served.state_bytes(choice) + OVERHEAD_BYTES, self.changes.limits.state_bytes, choice)

    async def make(
        self,
        task: Task[CreatedSession],
        request: NewSession,
        body_hash: bytes,
        state: SessionState,
        facts: SessionFacts,
        *,
        brought: bool = False,
    ) -> CreatedSession:
        """Make a session of any origin, or find the one that the same request made before.

        `brought`: its state comes from elsewhere, another session or a file. Raises RateLimited for one too
        many of the tenant, SessionExists, StoreFull, IdempotencyMismatch, and Gone.
        """
        key = SessionKey(request.call.tenant, new_session_id())
        copy = SessionCopy(key=key, position=Position.first(key), state=state, facts=facts)
        described = answers.write_session(info_of(copy, facts.created_at_ms + facts.ttl_ms))
        size = state.served.state_bytes(state.choice)
        try:
            async with self.quota.reserve(request.call, size, sessions=1):
                writing = partial(self.sessions.states.serialize, key, 0, state)
                creation = Creation(
                    key=key,
                    operation_id=request.call.key or new_operation_id(),
                    body_hash=body_hash,
                    name=facts.name,
                    info=described,
                    state=await requests.off_loop(state.nbytes, writing, requests.STATE_BYTES),
                    ttl_ms=facts.ttl_ms,
                    answer=described,
                    brought=brought,
                )
                outcome = await task.commit(self.sessions.store.create(creation))
        except (RateLimited, StoreFull) as error:
            return await self.made_before(error, request, body_hash, task)
        if not isinstance(outcome, Created):
            return await self._repeated(key.tenant, outcome, task)
        task.took_effect = True
        self.sessions.metrics.sessions_created.inc()
        copy = replace(copy, facts=replace(facts, created_at_ms=outcome.head.created_at_ms))
        self.sessions.cache.put(copy)
        info = info_of(copy, outcome.head.expires_at_ms)
        return self._created(info, state.served.identity, replayed=False)

    async def made_before(
        self, error: ServerError, request: NewSession, body_hash: bytes, task: Task[CreatedSession]
    ) -> CreatedSession:
        """The session that the same creation made before; else the `error` that it came to now is raised.

        Raises IdempotencyMismatch, Gone.
        """
        tenant, outcome = request.call.tenant, None
        if request.call.key is not None:
            outcome = await self.sessions.store.recall_creation(tenant, request.call.key, body_hash)
        if outcome is None:
            error.settled = True
            raise error
        return await self._repeated(tenant, outcome, task)

    async def _choose(self, request: CreateSession) -> tuple[ServedModel, AdaptationChoice]:
        """The model and how it learns, where all that is asked for can be done with them."""
        served = self.models.named(request.model)
        choice = served.choose(request.learning)
        self.check_size(served, choice)
        await requests.off_loop(requests.size_of(request.first), partial(self._check_first, served, request))
        return served, choice

    def _check_first(self, served: ServedModel, request: CreateSession) -> None:
        """Refuse a first text that cannot be appended, before the session is made."""
        if request.first is not None:
            piece = read_passage(served.vocab, request.first, "", final=False)
            requests.check_append(piece, self.changes.limits)

    async def _repeated(
        self, tenant: str, outcome: CreationReplayed | Mismatch, task: Task[CreatedSession]
    ) -> CreatedSession:
        metrics = self.sessions.metrics
        if isinstance(outcome, Mismatch):
            metrics.replays.labels("body_mismatch").inc()
            raise IdempotencyMismatch("the idempotency key was used with another request")
        task.took_effect = True
        metrics.replays.labels("replayed").inc()
        head = await self.sessions.store.load_head(SessionKey(tenant, outcome.session_id), with_state=False)
        present = session_info(outcome.session_id, head)
        stored = answers.read_session(outcome.answer)
        # Only the store knows by its own clock when it was made.
        info = replace(stored, created_at=present.created_at, expires_at=present.expires_at)
        return self._created(info, self._identity(info), replayed=True)

    def _identity(self, info: SessionInfo) -> EngineIdentity | None:
        """Of a session's model; None where that is not served here, or the description does not say it."""
        if info.fingerprint is None:
            return None
        try:
            return self.models.with_identity(info.fingerprint, info.adaptation_fingerprint).identity
        except ModelMismatch:
            return None

    def _created(
        self, info: SessionInfo, identity: EngineIdentity | None, *, replayed: bool
    ) -> CreatedSession:
        return CreatedSession(
            info=info,
            identity=identity,
            append=None,
            durability=self.sessions.durability,
            replayed=replayed,
        )

    async def _present(self, tenant: str, session: str) -> SessionInfo:
        """Describe a session that was made with its first text: whatever fails now, it was."""
        try:
            head = await self.sessions.store.load_head(SessionKey(tenant, session), with_state=False)
            return session_info(session, head)
        except ServerError as error:
            error.applied = "yes"
            raise

    async def _append_first(self, request: CreateSession, session: str) -> AppendAnswer:
        """Append the first text; without a key to repeat the request with, a session without it is ended."""
        if request.first is None:
            raise ValueError("there is no first text")
        key = None if request.call.key is None else request.call.key + FIRST
        call = replace(request.call, session=session, key=key)
        append = AppendRequest(text=request.text, tokens=request.tokens, scores=request.scores).by(call)
        try:
            return await self.changes.append(append)
        except ServerError as error:
            if error.applied != "yes":
                await self._give_up(
                    SessionKey(request.call.tenant, session), error, keyed=request.call.key is not None
                )
            raise

    async def _give_up(self, key: SessionKey, error: ServerError, *, keyed: bool) -> None:
        """Let an error over the first text tell what is known of the session, which was made before."""
        if keyed:
            error.applied = "unknown"  # the same request again appends the text
            return
        try:
            await self.sessions.store.delete(key)
        except (Gone, NotFound):
            return
        except ServerError:
            error.applied = "unknown"


def creation_digest(request: CreateSession) -> bytes:
    """Tell this creation from another with the same key."""
    return requests.request_digest(
        "create",
        **({} if request.model is None else {"model": request.model}),
        name=request.name,
        adaptation=request.learning.model_dump(),
        ttl_seconds=request.ttl_seconds,
        metadata=request.metadata,
        first=request.first,
        scores=request.scores,
    )
