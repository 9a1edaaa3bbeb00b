"""Sessions made from another: forks, and files that travel."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from rlstm_server.caller import Caller
from rlstm_server.engine import requests
from rlstm_server.engine.creation import Creator, NewSession
from rlstm_server.engine.models import Models
from rlstm_server.engine.queue import Task
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.engine.state import SessionCopy, SessionState, Unreadable, read, write
from rlstm_server.errors import ImportRejected, InputError, ModelMismatch, ServerError
from rlstm_server.schemas.sessions import (
    Ancestor,
    CreatedSession,
    ExportedSession,
    ForkRequest,
    ImportRequest,
)
from rlstm_server.schemas.text import MAX_RATE_SCALE
from rlstm_server.store.base import SessionKey, new_operation_id, new_session_id

_ROUNDING = 1.001
"""What a norm may be beyond its bound, when it is taken in another order."""


class Imported(NamedTuple):
    """A session as a file has it."""

    state: SessionState
    ancestor: Ancestor
    learning: bool
    metadata: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Copies:
    """Makes sessions from others."""

    sessions: Sessions
    creator: Creator
    snapshots: NamedSnapshots

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session. See Engine.fork."""
        requests.check_metadata(request.metadata or {})
        source = requests.session_key(request.caller.tenant, request.session)
        body_hash = requests.request_digest(
            "fork",
            session=request.session,
            snapshot=request.snapshot,
            name=request.name,
            ttl_seconds=request.ttl_seconds,
            metadata=request.metadata,
        )

        async def work(task: Task[CreatedSession]) -> CreatedSession:
            try:
                new = await self._forked(request, source, body_hash)
            except ServerError as error:
                # Made before, it does not go with its source.
                return await self.creator.made_before(error, request.caller, request.key, body_hash, task)
            return await self.creator.make(new, task)

        return await self.sessions.start(work).wait()

    async def export(self, caller: Caller, session: str, min_version: int | None = None) -> ExportedSession:
        """Write a session as a file. See Engine.export."""
        copy = await self.sessions.read(requests.session_key(caller.tenant, session), caller, min_version)
        data = await requests.off_loop(copy.state.nbytes, partial(write_file, copy), requests.STATE_BYTES)
        return ExportedSession(session=session, version=copy.position.version, data=data)

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file. See Engine.import_session."""
        size = len(request.data)
        digest = await requests.off_loop(size, lambda: hashlib.sha256(request.data).hexdigest())
        body_hash = requests.request_digest(
            "import",
            data=digest,
            name=request.name,
            ttl_seconds=request.ttl_seconds,
        )

        async def work(task: Task[CreatedSession]) -> CreatedSession:
            found = await requests.off_loop(size, partial(read_file, request.data, self.creator.models))
            self.creator.check_size(found.state.served, found.state.choice)
            facts = self.creator.facts(request.name, request.ttl_seconds, found.metadata)
            facts = replace(facts, learning=found.learning, forked_from=found.ancestor)
            new = replace(self._new(request, body_hash, found.state), facts=facts)
            return await self.creator.make(new, task)

        return await self.sessions.start(work).wait()

    async def _forked(self, request: ForkRequest, source: SessionKey, body_hash: bytes) -> NewSession:
        """The session that a fork makes of its source as that is now."""
        copy = await self.sessions.read(source, request.caller, request.min_version)
        state, ancestor = copy.state, Ancestor(session=request.session, version=copy.position.version)
        if request.snapshot is not None:
            state, version = await self.snapshots.open(source, request.snapshot, request.caller)
            ancestor = Ancestor(session=request.session, version=version, snapshot=request.snapshot)
        metadata = copy.facts.metadata if request.metadata is None else request.metadata
        facts = self.creator.facts(request.name, request.ttl_seconds, metadata)
        if request.ttl_seconds is None:
            facts = replace(facts, ttl_ms=copy.facts.ttl_ms)
        facts = replace(facts, learning=copy.facts.learning, forked_from=ancestor)
        return replace(self._new(request, body_hash, state), facts=facts)

    def _new(self, request: ForkRequest | ImportRequest, body_hash: bytes, state: SessionState) -> NewSession:
        return NewSession(
            caller=request.caller,
            key=SessionKey(request.caller.tenant, new_session_id()),
            operation_id=request.key or new_operation_id(),
            body_hash=body_hash,
            state=state,
            facts=self.creator.facts(request.name, request.ttl_seconds, {}),
            repeatable=request.key is not None,
            brought=True,
        )


def write_file(copy: SessionCopy) -> bytes:
    """A session as a file. Raises StateCorrupt for one that is not finite."""
    return write(
        copy.state,
        tenant="",
        session=copy.key.session_id,
        version=copy.position.version,
        learning=copy.facts.learning,
        metadata=dict(copy.facts.metadata),
    )


def read_file(data: bytes, models: Models) -> Imported:
    """The session in a file. Raises ImportRejected."""
    try:
        header, state = read(data, models)
        requests.check_metadata(header.metadata)
    except Unreadable as error:
        raise ImportRejected(f"the file is no session that this server can take: {error}") from None
    except ModelMismatch as error:
        raise ImportRejected(error.detail) from None
    except InputError:
        raise ImportRejected("the metadata are too long, or no text") from None
    state = state.measured()  # what a file says of its norms is not believed
    _check_bounds(state)
    ancestor = Ancestor(session=header.session, version=header.version)
    return Imported(state, ancestor, header.learning, header.metadata)


def _check_bounds(state: SessionState) -> None:
    """Raise ImportRejected for what no session comes to by reading."""
    most = state.evaluator.calibration.config.max_norm_ratio * _ROUNDING
    if state.adapted.rate_scale > MAX_RATE_SCALE or not state.norm_ratio <= most:
        raise ImportRejected("the state is out of bounds")
    if len(state.place.pending) > requests.MAX_PENDING:
        raise ImportRejected("the state holds back more text than a session may")
