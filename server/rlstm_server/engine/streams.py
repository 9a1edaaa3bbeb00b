"""Continuing a session's text, from the event loop's side: keeping nothing, or keeping it chunk by chunk."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlstm_server.engine import requests
from rlstm_server.engine.generation import token_events
from rlstm_server.engine.keeping import Chunk, Progress, continue_session, keep_chunk, read_chunk
from rlstm_server.engine.messages import EndEvent, EngineLimits, GenerationEvent, SessionGenerate
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.session import Change, Changed, Sessions, Staged
from rlstm_server.engine.snapshot import SessionCopy
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.steps import Steps
from rlstm_server.errors import ServerError
from rlstm_server.store.base import new_operation_id


@dataclass(frozen=True, eq=False)
class SessionStreams:
    """Streams of events from sessions."""

    sessions: Sessions
    staging: Staging
    limits: EngineLimits

    async def continue_text(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue from the session's state as it is; nothing changes."""
        requests.check_generation(request.settings, self.limits)
        key = requests.session_key(request.caller.tenant, request.session)
        copy = await self.sessions.read(key, request.caller, request.min_version)
        progress = Progress(settings=request.settings, seed=_seed(request))
        steps = continue_session(self.staging, progress, copy)
        stream = self.sessions.runner.stream(steps, request.caller, copy.state.adapted.lineup.rows)
        with self.sessions.distrusting(key):
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, EndEvent):
                        self.sessions.metrics.tokens.labels("generated").inc(event.completion_tokens)
                    yield event

    async def keep_text(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue the session's text and keep it: every token is committed before it is an event."""
        requests.check_generation(request.settings, self.limits)
        key = requests.session_key(request.caller.tenant, request.session)
        arrived: asyncio.Queue[GenerationEvent | None] = asyncio.Queue()
        writer = _Writer(self, request, request.key or new_operation_id(), arrived)
        operation = self.sessions.enqueue(key, writer.operation_id, writer.work)
        operation.task.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (event := await arrived.get()) is not None:
                yield event
            await operation.wait()
        finally:
            operation.abandon()


@dataclass(eq=False)
class _Writer:
    """One text that is written into a session, a chunk a commit."""

    streams: SessionStreams
    request: SessionGenerate
    operation_id: str
    arrived: "asyncio.Queue[GenerationEvent | None]"
    version: int | None = None

    async def work(self, operation: Operation[None]) -> None:
        """Write chunk after chunk until the text is complete; the operation holds the session's turn."""
        progress = Progress(
            settings=self.request.settings,
            seed=_seed(self.request),
            learn=self.request.learn_from_output,
        )
        for number in range(self.request.settings.max_tokens + 1):
            changed = await self._chunk(operation, progress, number)
            chunk = _chunk_of(changed)
            for event in token_events(chunk.tokens, 0, progress.kept):
                self.arrived.put_nowait(event)
            progress.add(chunk)
            if chunk.finish_reason is not None:
                self.arrived.put_nowait(self._end(progress, chunk, replayed=changed.staged is None))
                return

    async def _chunk(self, operation: Operation[None], progress: Progress, number: int) -> Changed[Chunk]:
        change = Change(
            key=requests.session_key(self.request.caller.tenant, self.request.session),
            operation_id=f"{self.operation_id}#{number}",
            body_hash=_digest(self.request, number),
            caller=self.request.caller,
            if_match=self.request.if_match if number == 0 else None,
            redo=number == 0,
        )
        try:
            changed = await self.streams.sessions.change(operation, change, partial(self._plan, progress))
        except ServerError as error:
            if self.version is not None:
                # What the reader has seen is kept, whatever became of this chunk.
                error.applied = "yes"
                error.facts["version"] = self.version
            raise
        self.version = changed.version
        return changed

    async def _plan(self, progress: Progress, copy: SessionCopy) -> Steps[Any, Staged[Chunk]]:
        return keep_chunk(self.streams.staging, progress, copy)

    def _end(self, progress: Progress, chunk: Chunk, *, replayed: bool) -> EndEvent:
        if chunk.finish_reason is None:
            raise ValueError("the text is not complete")
        return EndEvent(
            choice=0,
            finish_reason=chunk.finish_reason,
            prompt_tokens=0,
            completion_tokens=progress.kept,
            seed=progress.seed,
            version=self.version,
            position=chunk.position,
            durability=self.streams.staging.durability,
            replayed=replayed,
        )


def _chunk_of(changed: Changed[Chunk]) -> Chunk:
    if changed.staged is not None:
        return changed.staged.answer
    if changed.replay is None:
        raise ValueError("a change is either staged or a replay")
    return read_chunk(changed.replay.answer or changed.replay.summary)


def _seed(request: SessionGenerate) -> int:
    """The seed; one drawn from the key is the same in every repeat of the request."""
    if request.settings.seed is not None:
        return request.settings.seed
    if request.key is None:
        return secrets.randbits(32)
    return int.from_bytes(hashlib.sha256(request.key.encode()).digest()[:4], "little")


def _digest(request: SessionGenerate, number: int) -> bytes:
    return requests.request_digest(
        "generate",
        session=request.session,
        settings=request.settings,
        learn=request.learn_from_output,
        chunk=number,
    )
