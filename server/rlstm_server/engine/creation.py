"""Making a session: of nothing, with a first text, of another session, or of a file."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rlstm_server.caller import Call
from rlstm_server.engine import answers, requests
from rlstm_server.engine.answers import info_of, session_info
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.copies import read_file
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.queue import Task
from rlstm_server.engine.quotas import StorageQuota
from rlstm_server.engine.reading import read_passage
from rlstm_server.engine.session import Sessions, settled
from rlstm_server.engine.state import OVERHEAD_BYTES, SessionCopy, SessionFacts, SessionState, check_size
from rlstm_server.errors import Gone, ModelMismatch, NotFound, ServerError
from rlstm_server.schemas.sessions import (
    Ancestor,
    AppendAnswer,
    AppendRequest,
    CreatedSession,
    CreateSession,
    ForkRequest,
    ImportRequest,
    SessionInfo,
)
from rlstm_server.schemas.text import AdaptationChoice
from rlstm_server.store.base import (
    Creation,
    CreationReplayed,
    Revision,
    SessionKey,
    new_id,
)

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

    async def create(self, request: CreateSession) -> CreatedSession:
        """Make a session before any text; a first one is appended at once."""
        requests.check_metadata(request.metadata)

        async def begun() -> tuple[SessionState, SessionFacts]:
            served = self.models.named(request.model)
            choice = served.choose(request.learning)
            self._check_size(served, choice)
            check = partial(self._check_first, served, request)
            await requests.off_loop(len(request.first or ""), check)
            facts = self._facts(request.name, request.ttl_seconds, request.metadata)
            return SessionState.before_text(served, choice), facts

        made = await self._make(request.call, requests.digest(request), begun)
        if request.first is None:
            return made
        answer = await self._append_first(request, made.info.id)
        return replace(made, info=await self._present(request.call.tenant, made.info.id), append=answer)

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session, as it is or as it was at a named snapshot."""
        requests.check_metadata(request.metadata or {})
        source = requests.session_key(request.call)

        async def forked() -> tuple[SessionState, SessionFacts]:
            copy = await self.sessions.read(source, request.min_version)
            state, version = copy.state, copy.revision.version
            if request.snapshot is not None:
                state, version = await self.changes.snapshots.open(source, request.snapshot)
            metadata = copy.facts.metadata if request.metadata is None else request.metadata
            facts = self._facts(request.name, request.ttl_seconds, metadata)
            if request.ttl_seconds is None:
                facts = replace(facts, ttl_ms=copy.facts.ttl_ms)
            ancestor = Ancestor(session=source.session_id, version=version, snapshot=request.snapshot)
            return state, replace(facts, learning=copy.facts.learning, forked_from=ancestor)

        return await self._make(request.call, requests.digest(request), forked, brought=True)

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file. Raises ImportRejected."""
        size = len(request.data)
        data = await requests.off_loop(size, lambda: hashlib.sha256(request.data).hexdigest())

        async def imported() -> tuple[SessionState, SessionFacts]:
            reading = partial(read_file, request.data, self.models)
            header, state = await requests.off_loop(size, reading)
            self._check_size(state.served, state.choice)
            requests.check_note(state.note, self.changes.limits)
            facts = self._facts(request.name, request.ttl_seconds, header.metadata)
            ancestor = Ancestor(session=header.session, version=header.version)
            return state, replace(facts, learning=header.learning, forked_from=ancestor)

        return await self._make(request.call, requests.digest(request, data=data), imported, brought=True)

    def _facts(
        self, name: str | None, ttl_seconds: float | None, metadata: Mapping[str, Any]
    ) -> SessionFacts:
        """What is said of a session that is made now."""
        seconds = self.default_ttl_seconds if ttl_seconds is None else ttl_seconds
        now = time.time_ns() // 1_000_000
        return SessionFacts(name=name, created_at_ms=now, ttl_ms=int(seconds * 1000), metadata=metadata)

    def _check_size(self, served: ServedModel, choice: AdaptationChoice) -> None:
        """Raise TooLarge for a session whose state could become too large to be kept."""
        check_size(served.state_bytes(choice) + OVERHEAD_BYTES, self.changes.limits.state_bytes, choice)

    def _check_first(self, served: ServedModel, request: CreateSession) -> None:
        """Refuse a first text that cannot be appended, before the session is made."""
        if request.first is not None:
            piece = read_passage(served.vocab, request.first, "", final=False)
            requests.check_append(piece, self.changes.limits)

    async def _make(
        self,
        call: Call,
        body_hash: bytes,
        begin: Callable[[], Awaitable[tuple[SessionState, SessionFacts]]],
        *,
        brought: bool = False,
    ) -> CreatedSession:
        """Make a session, or find the one that the same request made before, whatever is refused now.

        It may have been made by a server with other models, of a source that has ended, or before the store
        or a quota was full. `brought`: its state comes from elsewhere. Raises RateLimited, StoreFull,
        SessionExists, IdempotencyMismatch, Gone, and whatever `begin` raises.
        """
        key = SessionKey(call.tenant, new_id())

        async def work(task: Task[CreatedSession]) -> CreatedSession:
            try:
                return await self._made(task, *await begin(), brought=brought)
            except ServerError as error:
                if call.key is None:
                    raise
                recall = partial(self.sessions.store.recall_creation, call.tenant, call.key, body_hash)
                return await self._repeated(task, await settled(error, recall))

        with self.sessions.taking(call.key):
            return await self.sessions.enqueue(call, body_hash, work, made=key).wait()

    async def _made(
        self, task: Task[CreatedSession], state: SessionState, facts: SessionFacts, *, brought: bool
    ) -> CreatedSession:
        key = task.key
        copy = SessionCopy(key=key, revision=Revision.first(key), state=state, facts=facts)
        described = answers.write_session(info_of(copy, facts.created_at_ms + facts.ttl_ms))
        size = state.served.state_bytes(state.choice)
        async with self.quota.reserve(task.call, size, sessions=1):
            writing = partial(self.sessions.states.serialize, key, 0, state)
            creation = Creation(
                key=key,
                operation_id=task.operation_id,
                body_hash=task.body_hash,
                name=facts.name,
                info=described,
                state=await requests.off_loop(state.nbytes, writing, requests.STATE_BYTES),
                ttl_ms=facts.ttl_ms,
                answer=described,
                brought=brought,
            )
            outcome = await task.commit(self.sessions.store.create(creation))
        if isinstance(outcome, CreationReplayed):
            return await self._repeated(task, outcome)
        task.took_effect = True
        self.sessions.metrics.sessions_created.inc()
        self.sessions.cache.put(replace(copy, facts=replace(facts, created_at_ms=outcome.created_at_ms)))
        return self._answer(session_info(outcome), replayed=False)

    async def _repeated(self, task: Task[CreatedSession], outcome: CreationReplayed) -> CreatedSession:
        task.took_effect = True
        self.sessions.metrics.replays.labels("replayed").inc()
        key = SessionKey(task.key.tenant, outcome.session_id)
        head = await self.sessions.store.load_head(key, with_state=False)
        # Only the store knows by its own clock when it was made.
        created_at, expires_at = head.created_at_ms / 1000, head.expires_at_ms / 1000
        info = replace(answers.read_session(outcome.answer), created_at=created_at, expires_at=expires_at)
        return self._answer(info, replayed=True)

    def _answer(self, info: SessionInfo, *, replayed: bool) -> CreatedSession:
        """The session as it was made; its model is told where that is served here."""
        try:
            served = self.models.with_identity(info.fingerprint, info.adaptation_fingerprint)
            identity = None if info.fingerprint is None else served.identity
        except ModelMismatch:
            identity = None
        durability = self.sessions.durability
        return CreatedSession(
            info=info, identity=identity, append=None, durability=durability, replayed=replayed
        )

    async def _present(self, tenant: str, session: str) -> SessionInfo:
        """Describe a session that was made with its first text: whatever fails now, it was."""
        try:
            head = await self.sessions.store.load_head(SessionKey(tenant, session), with_state=False)
            return session_info(head)
        except ServerError as error:
            error.applied = "yes"
            raise

    async def _append_first(self, request: CreateSession, session: str) -> AppendAnswer:
        """Append the first text; without a key to repeat the request with, a session without it is ended."""
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
