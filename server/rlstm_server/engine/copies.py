"""Sessions made from another: forks, and files that travel."""

import hashlib
from dataclasses import dataclass, replace
from functools import partial

from rlstm_server.caller import Call
from rlstm_server.engine import requests
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.models import Models
from rlstm_server.engine.queue import Task
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.engine.state import (
    Header,
    SessionCopy,
    SessionFacts,
    SessionState,
    Unreadable,
    read,
    write,
)
from rlstm_server.errors import ImportRejected, InputError, ModelMismatch, ServerError
from rlstm_server.schemas.sessions import (
    Ancestor,
    CreatedSession,
    ExportedSession,
    ForkRequest,
    ImportRequest,
)
from rlstm_server.schemas.text import MAX_RATE_SCALE
from rlstm_server.store.base import SessionKey

_ROUNDING = 1.001
"""What a norm may be beyond its bound, when it is taken in another order."""


@dataclass(frozen=True, eq=False)
class Copies:
    """Makes sessions from others."""

    sessions: Sessions
    creator: Creator
    snapshots: NamedSnapshots

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session. See Engine.fork."""
        requests.check_metadata(request.metadata or {})
        source = requests.session_key(request.call.tenant, request.call.session)
        body_hash = requests.request_digest(
            "fork",
            session=request.call.session,
            snapshot=request.snapshot,
            name=request.name,
            ttl_seconds=request.ttl_seconds,
            metadata=request.metadata,
        )

        async def work(task: Task[CreatedSession]) -> CreatedSession:
            try:
                state, facts = await self._forked(request, source)
            except ServerError as error:
                # Made before, it does not go with its source.
                return await self.creator.made_before(error, request, body_hash, task)
            return await self.creator.make(task, request, body_hash, state, facts, brought=True)

        return await self.sessions.start(work).wait()

    async def export(self, call: Call, min_version: int | None = None) -> ExportedSession:
        """Write a session as a file. See Engine.export."""
        copy = await self.sessions.read(requests.session_key(call.tenant, call.session), min_version)
        data = await requests.off_loop(copy.state.nbytes, partial(write_file, copy), requests.STATE_BYTES)
        return ExportedSession(session=call.session, version=copy.position.version, data=data)

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
            reading = partial(read_file, request.data, self.creator.models)
            header, state = await requests.off_loop(size, reading)
            self.creator.check_size(state.served, state.choice)
            requests.check_note(state.note, self.creator.changes.limits)
            facts = self.creator.facts(request.name, request.ttl_seconds, header.metadata)
            ancestor = Ancestor(session=header.session, version=header.version)
            facts = replace(facts, learning=header.learning, forked_from=ancestor)
            return await self.creator.make(task, request, body_hash, state, facts, brought=True)

        return await self.sessions.start(work).wait()

    async def _forked(self, request: ForkRequest, source: SessionKey) -> tuple[SessionState, SessionFacts]:
        """The session that a fork makes of its source as that is now."""
        copy = await self.sessions.read(source, request.min_version)
        state, ancestor = copy.state, Ancestor(session=request.call.session, version=copy.position.version)
        if request.snapshot is not None:
            state, version = await self.snapshots.open(source, request.snapshot)
            ancestor = Ancestor(session=request.call.session, version=version, snapshot=request.snapshot)
        metadata = copy.facts.metadata if request.metadata is None else request.metadata
        facts = self.creator.facts(request.name, request.ttl_seconds, metadata)
        if request.ttl_seconds is None:
            facts = replace(facts, ttl_ms=copy.facts.ttl_ms)
        return state, replace(facts, learning=copy.facts.learning, forked_from=ancestor)


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


def read_file(data: bytes, models: Models) -> tuple[Header, SessionState]:
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
    return header, state


def _check_bounds(state: SessionState) -> None:
    """Raise ImportRejected for what no session comes to by reading."""
    most = state.evaluator.calibration.config.max_norm_ratio * _ROUNDING
    if state.adapted.rate_scale > MAX_RATE_SCALE or not state.norm_ratio <= most:
        raise ImportRejected("the state is out of bounds")
    if len(state.place.pending) > requests.MAX_PENDING:
        raise ImportRejected("the state holds back more text than a session may")
