"""Continuing a session's text: shown only, or generated into the session, a commit every few tokens.

What is generated into a session is committed before anybody sees it. Each chunk is an operation of its own,
``key#0``, ``key#1``, ..., so a repeat of the request streams what is stored and goes on after it. Tokens that
are held back (they may begin a stop string) are not committed; the next chunk chooses them again, from the
same random numbers. A reader that says which event it had last gets what comes after it. The text goes on
exactly where it stopped, or not at all: when something else changed the session since, that is a conflict.
"""

import asyncio
import hashlib
import hmac
import itertools
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from rlstm_server.engine import requests
from rlstm_server.engine.buffer import Buffer
from rlstm_server.engine.generate import Generation, Released, StopStrings
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.queue import Task
from rlstm_server.engine.reading import Reading, read_passage, read_piece
from rlstm_server.engine.session import Sessions, Staged
from rlstm_server.engine.state import SessionCopy, SessionState
from rlstm_server.engine.worker import Job
from rlstm_server.errors import (
    Conflict,
    Draining,
    InFlight,
    InvalidField,
    ModelMismatch,
    ServerError,
    StateCorrupt,
)
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import (
    EndEvent,
    FinishReason,
    GenerationEvent,
    GenerationSettings,
    SessionGenerate,
    TokenEvent,
)
from rlstm_server.schemas.text import EngineIdentity
from rlstm_server.settings import Limits
from rlstm_server.store.base import MAX_SUMMARY_BYTES, Replayed, SessionKey, new_id

CHUNK: Final = 16
"""Tokens between two commits: so many at least, but at the end."""

MAX_TOKENS: Final = 2 * CHUNK
MAX_STORED_BYTES: Final = MAX_SUMMARY_BYTES - 256

ALIVE_SECONDS: Final = 0.2
"""How long a reader is shown text before its session is looked for again: one that is gone is not read on."""

COMMITTED_TOKENS: Final = 8_192
"""Of one text. Its chunks take half of the operation ids that a session remembers, at most: were more than
those generated, a repeat of the request would not be known from its first chunk on, and be done twice."""

_EVENT_ID: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})\.[0-9a-f]{16}")


# ---- event ids --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventId:
    """A token of a text in a session: its index, the number of its chunk, and the index that this begins at.

    Any replica finds its place by it without reading the text from its beginning. A digest ties it to the
    text.
    """

    index: int
    chunk: int
    first: int

    def write(self, session: str, operation_id: str) -> str:
        """The id as it is sent, for the text that this operation generates into this session."""
        plain = f"{self.index}.{self.chunk}.{self.first}"
        said = f"rlstm mark\0{session}\0{operation_id}\0{plain}"
        return f"{plain}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def read_event_id(written: str, session: str, operation_id: str) -> EventId:
    """Read what `write` wrote. Raises InvalidField when it is no event of this text."""
    if match := _EVENT_ID.fullmatch(written):
        event = EventId(*map(int, match.groups()))
        if hmac.compare_digest(event.write(session, operation_id), written) and event.first <= event.index:
            return event
    raise InvalidField("last-event-id", "last-event-id: no event of the text that this key stands for")


# ---- on the device thread ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Tokens that became part of the session, and whether the text is complete with them."""

    tokens: tuple[Released, ...]
    finish_reason: FinishReason | None
    position: int

    @classmethod
    def read(cls, stored: bytes) -> "Chunk":
        """A chunk that was committed. Raises StateCorrupt."""
        try:
            return _CHUNK.validate_json(stored)
        except ValidationError as error:
            raise StateCorrupt("a stored chunk cannot be read") from error

    def write(self) -> bytes:
        """What `read` reads."""
        return _CHUNK.dump_json(self)


_CHUNK: Final = TypeAdapter(Chunk)


@dataclass
class Progress:
    """How much of a text is committed so far: the number of its tokens, and which were `seen`."""

    settings: GenerationSettings
    seed: int
    learn: bool = False
    committed: int = 0
    seen: set[int] = field(default_factory=set)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk that is committed."""
        self.committed += len(chunk.tokens)
        self.seen.update(token.id for token in chunk.tokens)

    def continue_from(self, state: SessionState) -> Generation:
        """The text, going on from a session's state after what is committed of it already."""
        reader = state.evaluator.reader(state.adapted)
        after = state.place.unfinished or ((reader.cursor.last,) if state.adapted.position else ())
        return Generation(
            reader=reader,
            cursor=reader.cursor,
            settings=self.settings,
            seed=self.seed,
            choice=0,
            stops=StopStrings(state.served.vocab, self.settings.stop, after=after),
            seen=set(self.seen),
            index=self.committed,
        )


async def _show(
    progress: Progress, copy: SessionCopy, metrics: Metrics, put: Callable[[GenerationEvent], None]
) -> None:
    """Continue a session's text and commit nothing."""
    pending = await _read_pending(copy.state, learn=False)
    state = pending[0].state if pending else copy.state
    await progress.continue_from(state).write(put, metrics, identity=state.served.identity)


async def _generate_chunk(progress: Progress, copy: SessionCopy) -> Staged[Chunk]:
    """Generate the next chunk of a text and read it into the session."""
    learns = copy.facts.learning
    readings = await _read_pending(copy.state, learn=learns)
    state = readings[0].state if readings else copy.state
    text = progress.continue_from(state)
    released: list[Released] = []
    while len(released) < CHUNK and text.finish_reason is None:
        released += await text.decode()
    tokens = _fitting(released)
    if tokens:
        piece = read_passage(state.served.vocab, [token.id for token in tokens], "", place=state.place)
        readings.append(await read_piece(state, piece, learn=progress.learn and learns, own=True))
        state = readings[-1].state
    state = state.measured()
    chunk = Chunk(
        tokens=tokens,
        finish_reason=text.finish_reason if len(tokens) == len(released) else None,
        position=state.adapted.position,
    )
    after = replace(copy, state=state)
    return Staged(copy=after, answer=chunk, summary=chunk.write(), readings=readings)


async def _read_pending(state: SessionState, *, learn: bool) -> list[Reading]:
    """Read the word in progress, which generation ends, where there is one."""
    if not state.place.pending:
        return []
    piece = read_passage(state.served.vocab, "", "", place=state.place, final=True)
    return [await read_piece(state, piece, learn=learn)]


def _fitting(released: Sequence[Released]) -> tuple[Released, ...]:
    """As many tokens as a stored answer holds; what is cut off is chosen again by the next chunk."""
    tokens = tuple(released[:MAX_TOKENS])
    while len(tokens) > 1 and len(to_json(tokens)) > MAX_STORED_BYTES:
        tokens = tokens[: len(tokens) // 2]
    return tokens


# ---- on the event loop ------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Text:
    """The text of one request, generated into its session. `after` is what its reader has already.

    `version` is that of the last chunk. Of `served` nothing is known while all that was shown was stored.
    """

    sessions: Sessions
    key: SessionKey
    request: SessionGenerate
    after: EventId | None
    buffer: Buffer[GenerationEvent]

    def __post_init__(self) -> None:
        request = self.request
        self.operation_id = request.call.key or new_id()
        self.version: int | None = None
        self.progress = Progress(
            settings=request.settings, seed=_seed(request), learn=request.learn_from_output
        )
        self._served: ServedModel | None = None
        self._repeats = self.after is not None

    async def generate(self, task: Task[None]) -> None:
        """Chunk after chunk until the text is complete; the task holds the session's turn."""
        progress = self.progress
        for number in itertools.count(self._skip()):
            if self.sessions.draining:
                raise Draining("the server is shutting down; retry later")
            chunk = await self._chunk(task, number)
            for event in self._tokens(chunk, number):
                self.buffer.put(event)
            progress.add(chunk)
            if chunk.finish_reason is not None:
                self.buffer.put(await self._end(chunk, chunk.finish_reason))
                return
            task.check()  # nobody to wait for: the reader may have left during the commit
            await self.buffer.wait_until_empty()

    def digest(self, number: int) -> bytes:
        """What tells this request, and one chunk of it, from another with the same key."""
        return requests.digest(self.request, chunk=number)

    def explain(self, error: ServerError) -> None:
        """Let an error say that what was shown, or had been before, is kept whatever became of the rest."""
        if self.version is not None:
            error.applied = "yes"
            error.facts["version"] = self.version

    def _skip(self) -> int:
        """The chunk to begin with: that of the last event, where nothing of the ones before it is needed."""
        if self.after is None or self.request.settings.sampling.repetition_penalty != 1.0:
            return 0
        self.progress.committed = self.after.first
        return self.after.chunk

    async def _chunk(self, task: Task[None], number: int) -> Chunk:
        """A chunk, as it was stored when the text was generated before, or generated now.

        The first one may be asked for again; those after it only as long as all before were stored.
        """
        task.operation_id, task.body_hash = f"{self.operation_id}#{number}", self.digest(number)
        if number > 0:
            task.if_match, task.redo = None, False
        stored = await self.sessions.recall(task) if self._repeats else None
        if stored is None:
            if self.after is not None and number <= self.after.chunk:
                raise Conflict("the session does not remember this text any more")
            done = await self._generated(task)
            if isinstance(done, Staged):
                self._repeats, self.version = False, done.copy.revision.version
                return done.answer
            stored = done
        self._repeats, self.version = True, stored.version
        return Chunk.read(stored.summary)

    async def _generated(self, task: Task[None]) -> Staged[Chunk] | Replayed:
        """Generate a chunk; what is stored of it, where another replica with this request was faster."""
        try:
            return await self.sessions.change(task, self._plan)
        except Conflict:
            stored = await self.sessions.recall(task)
            if stored is None:
                raise
            return stored

    async def _plan(self, copy: SessionCopy) -> Job[Staged[Chunk]]:
        if self.version is not None and copy.revision.version != self.version:
            raise Conflict("the session was changed since the text broke off")
        self._served = copy.state.served
        return partial(_generate_chunk, self.progress, copy)

    def _tokens(self, chunk: Chunk, number: int) -> list[TokenEvent]:
        """The tokens of a chunk that the reader does not have."""
        had, first = -1 if self.after is None else self.after.index, self.progress.committed
        return [
            TokenEvent(
                choice=0,
                index=index,
                id=token.id,
                text=token.text,
                logprob=token.logprob,
                mark=EventId(index=index, chunk=number, first=first).write(
                    self.request.call.session, self.operation_id
                ),
            )
            for index, token in enumerate(chunk.tokens, start=first)
            if index > had
        ]

    async def _identity(self) -> EngineIdentity | None:
        """Of the session's model, None where that is not served here: all of the text was stored then."""
        if self._served is None:
            try:
                self._served = (await self.sessions.read(self.key)).state.served
            except ModelMismatch:
                return None
        return self._served.identity

    async def _end(self, chunk: Chunk, reason: FinishReason) -> EndEvent:
        return EndEvent(
            choice=0,
            finish_reason=reason,
            prompt_tokens=0,
            completion_tokens=self.progress.committed,
            seed=self.progress.seed,
            version=self.version,
            position=chunk.position,
            durability=self.sessions.durability,
            replayed=self._repeats,
            identity=await self._identity(),
        )


@dataclass(frozen=True, eq=False)
class SessionStreams:
    """Streams of events from sessions; `_under_way` are those whose text is generated now."""

    sessions: Sessions
    limits: Limits
    _under_way: dict[tuple[SessionKey, str, bytes], Task[None]] = field(default_factory=dict)

    async def generate(self, request: SessionGenerate) -> AsyncGenerator[Sequence[GenerationEvent], None]:
        """Continue a session's text, and commit it to the session where asked."""
        key, buffer = requests.session_key(request.call), Buffer[GenerationEvent](self.limits, request.stream)
        with self.sessions.taking(request.call.key if request.commit else None, request.call.quota) as charge:
            charge.generate(request.settings.max_tokens, learns=request.learn_from_output)
            requests.check_generation(request.settings, self.limits)
            stream = self._commit if request.commit else self._show
            async with aclosing(stream(request, key, buffer)) as batches:
                async for events in batches:
                    charge.show(events)
                    yield events

    async def _show(
        self, request: SessionGenerate, key: SessionKey, buffer: Buffer[GenerationEvent]
    ) -> AsyncGenerator[Sequence[GenerationEvent], None]:
        """Continue from the session's state as it is; nothing changes."""
        if request.call.after is not None:
            raise InvalidField(
                "last-event-id", "last-event-id: needs commit: only committed text can be gone on with"
            )
        copy = await self.sessions.read(key, request.min_version)
        progress = Progress(settings=request.settings, seed=_seed(request))
        job = partial(_show, progress, copy, self.sessions.metrics)
        rows = copy.state.adapted.expert_config.rows
        stream = self.sessions.worker.stream(job, request.call, buffer, rows)
        with self.sessions.distrusting(key):
            async with aclosing(stream) as batches:
                looked = time.monotonic()
                async for events in batches:
                    looked = await self._look(key, looked)
                    yield events

    async def _commit(
        self, request: SessionGenerate, key: SessionKey, buffer: Buffer[GenerationEvent]
    ) -> AsyncGenerator[Sequence[GenerationEvent], None]:
        """Continue the session's text and commit it: every token is stored before it is an event."""
        requests.within("max_tokens of committed text", request.settings.max_tokens, COMMITTED_TOKENS)
        after = _after(request)
        text = _Text(self.sessions, key, request, after, buffer)
        text_id = (key, text.operation_id, text.digest(0))
        if after is not None and (older := self._under_way.get(text_id)) is not None:
            # It is generated for a reader whose connection is lost, unnoticed.
            older.abandon(partial(InFlight, "the text goes on in a newer request"))
            await asyncio.wait({older.task})
        task = self._under_way[text_id] = self.sessions.enqueue(request.call, text.digest(0), text.generate)
        task.task.add_done_callback(lambda _: buffer.end())
        task.task.add_done_callback(lambda _: self._under_way.pop(text_id, None))
        try:
            looked = time.monotonic()
            while events := await buffer.take():
                looked = await self._look(key, looked)
                yield events
            await task.wait()
        except ServerError as error:
            text.explain(error)
            raise
        finally:
            task.abandon()

    async def _look(self, key: SessionKey, looked: float) -> float:
        """When the session was last seen: just now, or not long ago. Raises Gone."""
        if time.monotonic() - looked < ALIVE_SECONDS:
            return looked
        await self.sessions.store.load_head(key, with_state=False)
        return time.monotonic()


def _after(request: SessionGenerate) -> EventId | None:
    if request.call.after is None:
        return None
    if request.call.key is None:
        raise InvalidField(
            "last-event-id", "last-event-id: needs the idempotency-key that the text began with"
        )
    return read_event_id(request.call.after, request.call.session, request.call.key)


def _seed(request: SessionGenerate) -> int:
    """The seed; one drawn from the key is the same in every repeat of the request."""
    if request.settings.seed is not None:
        return request.settings.seed
    if request.call.key is None:
        return secrets.randbits(32)
    return int.from_bytes(hashlib.sha256(request.call.key.encode()).digest()[:4], "little")
