"""One text that is written into a session, a chunk a commit, and shown as far as it is committed.

A text is begun, repeated or gone on with by the same request with the same key. What is stored of it is asked
for chunk by chunk and shown again, what is not is written; a reader who says which event he had last gets
what comes after it. The text goes on exactly where it stopped, or not at all: when the session was changed by
something else since, that is a conflict.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rlstm_server.engine import requests
from rlstm_server.engine.backlog import Backlog
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.keeping import Chunk, Progress, keep_chunk, read_chunk
from rlstm_server.engine.marks import Mark
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.staged import Change, Staged
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import Conflict, Draining, ModelMismatch, ServerError
from rlstm_server.schemas import EndEvent, EngineIdentity, GenerationEvent, SessionGenerate, TokenEvent
from rlstm_server.store.base import Replayed, SessionKey


class _Kept(NamedTuple):
    """A chunk that the session has, and whether it had it before it was asked for."""

    chunk: Chunk
    stored: bool


@dataclass(eq=False)
class Writer:
    """Writes the text of one request. `after` is what its reader has already, None for nothing."""

    sessions: Sessions
    staging: Staging
    key: SessionKey
    request: SessionGenerate
    operation_id: str
    seed: int
    after: Mark | None
    backlog: Backlog[GenerationEvent]
    version: int | None = None
    _served: ServedModel | None = None
    _repeats: bool = False

    async def work(self, operation: Operation[None]) -> None:
        """Write chunk after chunk until the text is complete; the operation holds the session's turn."""
        progress = Progress(
            settings=self.request.settings, seed=self.seed, learn=self.request.learn_from_output
        )
        self._repeats = self.after is not None
        for number in itertools.count(self._skip_to(progress)):
            if self.sessions.draining:
                raise Draining("the server is shutting down")
            kept = await self._chunk(operation, progress, number)
            events: list[GenerationEvent] = [*self._tokens(kept.chunk, progress.kept, number)]
            progress.add(kept.chunk)
            if kept.chunk.finish_reason is not None:
                events.append(await self._end(progress, kept))
            self.backlog.count(events)
            self.backlog.put(events)
            if kept.chunk.finish_reason is not None:
                return
            operation.check()  # nobody to wait for: the reader may have left during the commit
            await self.backlog.wait_for_reader()

    def explain(self, error: ServerError) -> None:
        """Let an error say that what was shown, or had been before, is kept whatever became of the rest."""
        if self.version is not None:
            error.applied = "yes"
            error.facts["version"] = self.version

    def _skip_to(self, progress: Progress) -> int:
        """The chunk to begin with: that of the last event, where nothing of the ones before it is needed."""
        if self.after is None or self.request.settings.sampling.repetition_penalty != 1.0:
            return 0
        progress.kept = self.after.first
        return self.after.chunk

    async def _chunk(self, operation: Operation[None], progress: Progress, number: int) -> _Kept:
        change = Change(
            key=self.key,
            operation_id=f"{self.operation_id}#{number}",
            body_hash=self.digest(number),
            caller=self.request.caller,
            if_match=self.request.if_match if number == 0 else None,
            redo=number == 0,
        )
        stored = await self.sessions.recall(change) if self._repeats else None
        if stored is None:
            if self.after is not None and number <= self.after.chunk:
                raise Conflict("the session does not remember this text any more")
            self._repeats = False
            written = await self._written(operation, change, progress)
            if isinstance(written, Chunk):
                return _Kept(written, stored=False)
            stored = written
        self._repeats = True
        self.version = stored.version
        return _Kept(read_chunk(stored.answer or stored.summary), stored=True)

    async def _written(
        self, operation: Operation[None], change: Change, progress: Progress
    ) -> Chunk | Replayed:
        """Write a chunk; what is stored of it, where another replica with this request was faster."""
        try:
            changed = await self.sessions.change(operation, change, partial(self._plan, progress))
        except Conflict:
            stored = await self.sessions.recall(change)
            if stored is None:
                raise
            return stored
        if changed.staged is None:
            if changed.replay is None:
                raise ValueError("a change is either staged or a replay")
            return changed.replay
        self.version = changed.version
        return changed.staged.answer

    async def _plan(self, progress: Progress, copy: SessionCopy) -> Steps[Any, Staged[Chunk]]:
        if self.version is not None and copy.position.version != self.version:
            raise Conflict("the session was changed since the text broke off")
        self._served = copy.state.served
        return keep_chunk(self.staging, progress, copy)

    def digest(self, number: int) -> bytes:
        """What tells this request, and one chunk of it, from another with the same key."""
        return requests.request_digest(
            "generate",
            session=self.request.session,
            settings=self.request.settings,
            learn=self.request.learn_from_output,
            chunk=number,
        )

    def _tokens(self, chunk: Chunk, first: int, number: int) -> list[TokenEvent]:
        """The tokens of a chunk that the reader does not have."""
        had = -1 if self.after is None else self.after.index
        return [
            TokenEvent(
                choice=0,
                index=index,
                id=token.id,
                text=token.text,
                logprob=token.logprob,
                mark=Mark(index=index, chunk=number, first=first).write(
                    self.request.session, self.operation_id
                ),
            )
            for index, token in enumerate(chunk.tokens, start=first)
            if index > had
        ]

    async def _identity(self) -> EngineIdentity | None:
        """Of the session's model, None where that is not served here: all of the text was stored then."""
        if self._served is None:
            try:
                self._served = (await self.sessions.read(self.key, self.request.caller)).state.served
            except ModelMismatch:
                return None
        return self._served.identity

    async def _end(self, progress: Progress, kept: _Kept) -> EndEvent:
        if kept.chunk.finish_reason is None:
            raise ValueError("the text is not complete")
        return EndEvent(
            choice=0,
            finish_reason=kept.chunk.finish_reason,
            prompt_tokens=0,
            completion_tokens=progress.kept,
            seed=progress.seed,
            version=self.version,
            position=kept.chunk.position,
            durability=self.staging.durability,
            replayed=kept.stored,
            identity=await self._identity(),
        )
