"""Sessions made from another: forks, and files that travel."""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Any

from rlstm_server.engine import requests
from rlstm_server.engine.creation import Creator, NewSession
from rlstm_server.engine.envelope import ExportKeys, Signed, open_envelope
from rlstm_server.engine.exports import Exported, ExportSpec, read_session, write_export
from rlstm_server.engine.named_snapshots import NamedSnapshots
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import ExportDisabled, ServerError
from rlstm_server.schemas import Ancestor, CreatedSession, ExportedSession, ForkRequest, ImportRequest
from rlstm_server.store.base import SessionKey, new_operation_id, new_session_id


@dataclass(frozen=True, eq=False)
class Copies:
    """Makes sessions from others; `keys` is None where files are not signed, and so not taken."""

    sessions: Sessions
    creator: Creator
    snapshots: NamedSnapshots
    keys: ExportKeys | None

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session. See EngineInterface.fork."""
        requests.check_facts(name=request.name, ttl_seconds=request.ttl_seconds, metadata=request.metadata)
        source = requests.session_key(request.caller.tenant, request.session)
        body_hash = requests.request_digest(
            "fork",
            session=request.session,
            snapshot=request.snapshot,
            name=request.name,
            ttl_seconds=request.ttl_seconds,
            metadata=request.metadata,
        )

        async def work(operation: Operation[CreatedSession]) -> CreatedSession:
            try:
                new = await self._forked(request, source, body_hash)
            except ServerError as error:
                # Made before, it does not go with its source.
                return await self.creator.made_before(
                    error, request.caller, request.key, body_hash, operation
                )
            return await self.creator.make(new, operation)

        return await self.sessions.start(work).wait()

    async def export(self, caller: Caller, session: str, min_version: int | None) -> ExportedSession:
        """Write a session as a file. See EngineInterface.export."""
        keys = self._signing_keys()
        copy = await self.sessions.read(requests.session_key(caller.tenant, session), caller, min_version)
        # A state is never written to, so it can be read beside the device thread, and as late as one likes.
        export = await asyncio.to_thread(write_export, copy, keys)
        return ExportedSession(
            session=session, version=copy.position.version, size=export.size, pieces=export.pieces
        )

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file. See EngineInterface.import_session."""
        keys = self._signing_keys()
        requests.check_facts(name=request.name, ttl_seconds=request.ttl_seconds)
        spec = ExportSpec(tenant=request.caller.tenant, models=self.creator.models)
        signed, digest = await asyncio.to_thread(_examined, request.data, keys)
        body_hash = requests.request_digest(
            "import", data=digest, name=request.name, ttl_seconds=request.ttl_seconds
        )

        async def work(operation: Operation[CreatedSession]) -> CreatedSession:
            ran = await self.sessions.runner.run(_read(signed, spec), request.caller)
            exported = ran.result
            self.creator.check_size(exported.state.served, exported.state.choice)
            facts = self.creator.facts(request.name, request.ttl_seconds, exported.metadata)
            facts = replace(facts, learning=exported.learning, forked_from=exported.ancestor)
            new = replace(self._new(request, body_hash, exported.state), facts=facts)
            self.sessions.cache.slots.own(new.key, new.state)
            return await self.creator.make(new, operation)

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
        return replace(self._new(request, body_hash, state), facts=facts, shared=True)

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

    def _signing_keys(self) -> ExportKeys:
        if self.keys is None:
            raise ExportDisabled
        return self.keys


def _examined(data: bytes, keys: ExportKeys) -> tuple[Signed, str]:
    """Verify a file, and take its digest."""
    return open_envelope(data, keys), hashlib.sha256(data).hexdigest()


def _read(signed: Signed, spec: ExportSpec) -> Steps[Any, Exported]:
    """Read a verified file on the device thread."""
    yield from ()
    return read_session(signed, spec)
