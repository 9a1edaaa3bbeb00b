"""Continuing a session's text, from the event loop's side: keeping nothing, or keeping it chunk by chunk."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from rlstm_server.engine import requests
from rlstm_server.engine.backlog import Backlog
from rlstm_server.engine.billing import billed, paid
from rlstm_server.engine.keeping import CHUNK, Progress, continue_session
from rlstm_server.engine.marks import Mark, read_mark
from rlstm_server.engine.operation import Operation
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.writing import Writer
from rlstm_server.errors import InFlight, InvalidField, ServerError
from rlstm_server.schemas import EndEvent, EngineLimits, GenerationEvent, SessionGenerate
from rlstm_server.store.base import SessionKey, new_operation_id

KEPT_TOKENS: Final = 8_192
"""Of one kept text. Its chunks take half of the operation ids that a session remembers, at most: were more
than those written, a repeat of the request would not be known from its first chunk on, and be done twice."""


class _Running(NamedTuple):
    """A text that is being written for a reader, and what he asked for."""

    operation: Operation[None]
    digest: bytes


@dataclass(frozen=True, eq=False)
class SessionStreams:
    """Streams of events from sessions."""

    sessions: Sessions
    staging: Staging
    limits: EngineLimits
    _running: dict[tuple[SessionKey, str], _Running] = field(default_factory=dict)

    async def perform(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a session's text, and keep it where asked. See EngineInterface.generate_in_session."""
        stream = self.keep_text(request) if request.commit else self.continue_text(request)
        learns = request.commit and request.learn_from_output
        with billed(request.caller.allowance) as bill:
            async with aclosing(paid(stream, request.settings, bill, learns=learns)) as events:
                async for event in events:
                    yield event

    async def continue_text(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue from the session's state as it is; nothing changes."""
        requests.check_generation(request.settings, self.limits)
        if request.after is not None:
            raise InvalidField(
                "last-event-id", "last-event-id: needs commit: only kept text can be gone on with"
            )
        key = requests.session_key(request.caller.tenant, request.session)
        copy = await self.sessions.read(key, request.caller, request.min_version)
        progress = Progress(settings=request.settings, seed=_seed(request))
        steps = continue_session(progress, copy)
        stream = self.sessions.runner.stream(steps, request.caller, copy.state.adapted.expert_config.rows)
        with self.sessions.distrusting(key):
            async with aclosing(stream) as events:
                shown = 0
                async for event in events:
                    if isinstance(event, EndEvent):
                        self.sessions.metrics.tokens.labels("generated").inc(event.completion_tokens)
                        event = replace(event, identity=copy.state.served.identity)
                    elif shown and shown % CHUNK == 0:
                        await self._check_alive(key)
                    shown += 1
                    yield event

    async def keep_text(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue the session's text and keep it: every token is committed before it is an event."""
        requests.check_generation(request.settings, self.limits)
        requests.within("max_tokens of a text that is kept", request.settings.max_tokens, KEPT_TOKENS)
        key = requests.session_key(request.caller.tenant, request.session)
        after = _after(request)
        backlog: Backlog[GenerationEvent] = Backlog(self.limits)
        operation_id, seed = request.key or new_operation_id(), _seed(request)
        writer = Writer(self.sessions, self.staging, key, request, operation_id, seed, after, backlog)
        if after is not None:
            await self._take_over(writer)
        operation = self.sessions.enqueue(key, writer.operation_id, writer.work)
        self._note(writer, operation)
        operation.task.add_done_callback(lambda _: backlog.end())
        try:
            shown = 0
            while (event := await backlog.take()) is not None:
                if shown % CHUNK == 0 and backlog.waiting >= CHUNK:
                    await self._check_alive(key)  # what waits was committed long ago
                shown += 1
                yield event
            await operation.wait()
        except ServerError as error:
            writer.explain(error)
            raise
        finally:
            operation.abandon()

    async def _check_alive(self, key: SessionKey) -> None:
        """Raise Gone where the session was deleted or has expired: nobody reads on from it."""
        await self.sessions.store.load_head(key, with_state=False)

    async def _take_over(self, writer: Writer) -> None:
        """End the same text where it is still written for a reader whose connection is lost, unnoticed."""
        running = self._running.get((writer.key, writer.operation_id))
        if running is not None and running.digest == writer.digest(0):
            running.operation.abandon(partial(InFlight, "the text goes on in a newer request"))
            await asyncio.wait({running.operation.task})

    def _note(self, writer: Writer, operation: Operation[None]) -> None:
        place = (writer.key, writer.operation_id)
        self._running[place] = _Running(operation, writer.digest(0))
        operation.task.add_done_callback(lambda _: self._running.pop(place, None))


def _after(request: SessionGenerate) -> Mark | None:
    if request.after is None:
        return None
    if request.key is None:
        raise InvalidField(
            "last-event-id", "last-event-id: needs the idempotency-key that the text began with"
        )
    return read_mark(request.after, request.session, request.key)


def _seed(request: SessionGenerate) -> int:
    """The seed; one drawn from the key is the same in every repeat of the request."""
    if request.settings.seed is not None:
        return request.settings.seed
    if request.key is None:
        return secrets.randbits(32)
    return int.from_bytes(hashlib.sha256(request.key.encode()).digest()[:4], "little")
