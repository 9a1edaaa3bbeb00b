"""Reading prompts and continuing them: each from the weights as loaded, scored on the way; nothing is kept.

A prompt is read after the beginning of all text, or without it: then reading begins with the prompt's own
first token, which nothing is scored against. With an adaptation each prompt is learned from as it is read,
segment by segment, each scored with what came before it; what is generated after it is not learned from.

In a session prompts are read after its text, with its weights. One that is to be stored is appended, so that
the session learns from it; its continuation is shown only.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial

from rlstm_model.adaptation.evaluator import Reader
from rlstm_model.adaptation.state import Cursor
from rlstm_server.engine import requests
from rlstm_server.engine.buffer import Buffer
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.generate import Generation, StopStrings
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.queue import Charge
from rlstm_server.engine.reading import (
    EMPTY,
    Piece,
    columns_of,
    read_context,
    read_passage,
    read_piece,
)
from rlstm_server.engine.score import ROWS_OF_REQUEST, score_text
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.state import START, SessionCopy, SessionState
from rlstm_server.engine.worker import gather
from rlstm_server.errors import Conflict, ModelNotFound
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import (
    CompletionEvent,
    CompletionRequest,
    GenerateRequest,
    GenerationSettings,
    PromptEvent,
)
from rlstm_server.schemas.sessions import AppendRequest
from rlstm_server.schemas.text import AdaptationChoice, Columns, FirstToken, Passage

Put = Callable[[CompletionEvent], None]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt's tokens, and what the first of them follows. `stored` are of one that was appended."""

    piece: Piece
    follows: FirstToken
    stored: Columns | None = None

    @property
    def tokens(self) -> int:
        """All that are read."""
        return len(self.piece.ids) + (self.follows == "bos")

    @property
    def scored(self) -> Piece:
        """What is scored: all, or all after the token that reading begins with."""
        rest = slice(1 if self.follows == "unscored" else 0, None)
        piece = self.piece
        return replace(piece, ids=piece.ids[rest], starts=piece.starts[rest], ends=piece.ends[rest])

    def begin(self, before_text: Cursor) -> Cursor:
        """Where reading begins: before any text, or with the prompt's own first token."""
        return before_text._replace(last=self.piece.ids[0]) if self.follows == "unscored" else before_text


@dataclass(eq=False)
class _Order:
    """What all prompts of a request have in common. Without `top` none of their scores is told.

    `copy` is of the session that they are read in; else `choice` learns from each.
    """

    served: ServedModel
    settings: GenerationSettings
    metrics: Metrics
    choice: AdaptationChoice | None = None
    top: int | None = None
    copy: SessionCopy | None = None

    def __post_init__(self) -> None:
        self.seed = secrets.randbits(32) if self.settings.seed is None else self.settings.seed

    @property
    def session(self) -> SessionState | None:
        """The state of the session."""
        return None if self.copy is None else self.copy.state

    @property
    def rows(self) -> int:
        """Rows that a prompt takes of a batch."""
        choice = self.choice if self.session is None else self.session.choice
        return 1 if choice is None else choice.expert_config.rows


@dataclass(frozen=True, eq=False)
class Completions:
    """Prompts continued, from the event loop's side."""

    models: Models
    sessions: Sessions
    changes: Changes

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[CompletionEvent], None]:
        """Continuations of one prompt, token by token."""
        limits = self.changes.limits
        requests.check_generation(request.settings, limits)
        served = self.models.named(request.model)
        context = partial(read_context, served.vocab, request.passage, "prompt")
        piece = await requests.off_loop(len(request.passage), context) or EMPTY
        requests.within("prompt tokens", len(piece.ids), limits.append_tokens)
        order = _Order(served, request.settings, self.sessions.metrics)
        prompt = Prompt(piece=piece, follows="bos")
        with self.sessions.taking(None, request.call.quota) as charge:
            charge.add(tokens=len(piece.ids))
            async with aclosing(self._continue(order, [prompt], request, charge)) as batches:
                async for events in batches:
                    charge.show(events)
                    yield events

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Sequence[CompletionEvent], None]:
        """Prompts read and scored, a PromptEvent each, and their continuations, token by token."""
        requests.check_completion(request, self.changes.limits)
        served = self.models.named(request.model)
        choice = None if request.adaptation is None else served.choose(request.adaptation)
        order = _Order(served, request.settings, self.sessions.metrics, choice, request.top)
        with ExitStack() as stack:
            key = request.call.key if request.store else None
            charge = stack.enter_context(self.sessions.taking(key, request.call.quota))
            if request.call.session:
                stack.enter_context(self.sessions.distrusting((await self._open(order, request)).key))
            size = sum(map(len, request.prompts))
            prompts = await requests.off_loop(size, partial(self._prompts, order, request))
            if request.store:
                prompts = [await self._store(order, request, prompts[0].piece)]
            count = sum(prompt.tokens for prompt in prompts if prompt.stored is None)
            charge.add(tokens=count, learned=0 if order.choice is None else count)
            async with aclosing(self._continue(order, prompts, request, charge)) as batches:
                async for events in batches:
                    charge.show(events)
                    yield events

    async def _open(
        self, order: _Order, request: CompletionRequest, version: int | None = None
    ) -> SessionCopy:
        """Read the newest state of the session. Raises NotFound, Gone; ModelNotFound for another model's."""
        copy = await self.sessions.read(requests.session_key(request.call), version)
        if copy.state.served is not order.served:
            raise ModelNotFound("model: the session belongs to another model, which `GET /sessions` tells")
        order.copy = copy
        return copy

    async def _store(self, order: _Order, request: CompletionRequest, piece: Piece) -> Prompt:
        """Append the prompt, once under its key, and give it with the scores that it had."""
        (passage,) = request.prompts
        given = {"text": passage} if isinstance(passage, str) else {"tokens": list(passage)}
        asked = AppendRequest(**given, final=True).by(request.call)
        answer = await self.changes.append(asked, request.top)
        columns = answer.columns
        if columns is None:
            forgotten = Conflict("the prompt was learned from; its scores are no longer stored")
            forgotten.applied = "yes"
            raise forgotten
        await self._open(order, request, answer.version)
        if piece.ids != list(columns.ids):  # the session was at another place, within a word
            starts = [start - columns.starts[0] for start in columns.starts]
            text = order.served.vocab.decode(columns.ids)
            piece = replace(piece, ids=list(columns.ids), starts=starts, text=text)
        return Prompt(piece=piece, follows="session", stored=columns)

    def _continue(
        self,
        order: _Order,
        prompts: Sequence[Prompt],
        request: GenerateRequest | CompletionRequest,
        charge: Charge,
    ) -> AsyncGenerator[Sequence[CompletionEvent], None]:
        charge.generate(len(prompts) * order.settings.choices * order.settings.max_tokens)
        buffer = Buffer[CompletionEvent](self.changes.limits, request.stream)
        rows = min(len(prompts) * order.rows, ROWS_OF_REQUEST)
        job = partial(_complete_all, order, prompts)
        return self.sessions.worker.stream(job, request.call, buffer, rows)

    def _prompts(self, order: _Order, request: CompletionRequest) -> list[Prompt]:
        prompts = [
            _prompt(order, passage, f"prompt[{number}]", bos=request.bos)
            for number, passage in enumerate(request.prompts)
        ]
        count = sum(prompt.tokens for prompt in prompts)
        requests.within("tokens of all prompts", count, self.changes.limits.score_tokens)
        return prompts


def _prompt(order: _Order, passage: Passage, field: str, *, bos: bool) -> Prompt:
    """Read a prompt where it begins; its spans count from its own beginning."""
    place = START if order.session is None else order.session.place
    if passage == "" and not place.pending:
        piece = replace(EMPTY, after=place)
    else:
        piece = read_passage(order.served.vocab, passage, field, place=place)
        if before := piece.after.characters - len(piece.text):
            piece = replace(piece, starts=[start - before for start in piece.starts])
    if order.session is not None:
        return Prompt(piece=piece, follows="session")
    return Prompt(piece=piece, follows="bos" if bos or not piece.ids else "unscored")


# ---- on the device thread ---------------------------------------------------------------------------------


async def _complete_all(order: _Order, prompts: Sequence[Prompt], put: Put) -> None:
    """Complete all prompts, as many at once as a batch may hold rows of one request."""
    work = (_complete(order, number, prompt, put) for number, prompt in enumerate(prompts))
    await gather(work, max(1, ROWS_OF_REQUEST // order.rows))


async def _complete(order: _Order, number: int, prompt: Prompt, put: Put) -> None:
    """Read one prompt, tell what it scores, and continue it as often as was asked for."""
    columns, reader, cursor = await _read(order, prompt)
    if order.top is not None:
        if columns is not None and prompt.stored is None:
            order.metrics.tokens.labels("scored").inc(len(columns.ids))
        put(_prompt_event(order, number, prompt, columns))
    del columns  # of a long prompt they are large
    ids, unfinished = prompt.piece.ids, prompt.piece.after.unfinished
    before = ids[-1:]
    if not before and order.session is not None and order.session.adapted.position:
        before = [cursor.last]
    settings = order.settings
    texts = [
        Generation(
            reader=reader,
            cursor=cursor,
            settings=settings,
            seed=order.seed,
            choice=choice,
            stops=StopStrings(order.served.vocab, settings.stop, after=unfinished or before),
            seen=set(ids),
            top=order.top or 0,
        )
        for choice in range(settings.choices)
    ]
    # Choices are numbered over all prompts; chance is not: see `Generation`.
    first, tokens = number * len(texts), len(ids) if order.top is None else prompt.tokens
    work = (
        text.write(put, order.metrics, number=first + text.choice, prompt_tokens=tokens) for text in texts
    )
    await gather(work, len(texts))


async def _read(order: _Order, prompt: Prompt) -> tuple[Columns | None, Reader, Cursor]:
    """Read a prompt: with the weights as loaded, learning from it, or after a session's text."""
    top, state = order.top or 0, order.session
    if state is None and order.choice is not None:
        state = SessionState.before_text(order.served, order.choice)
        begin = prompt.begin(state.adapted.now)
        start = begin.of(state.adapted.expert_config.learning)
        state = replace(state, adapted=replace(state.adapted, now=begin, start=start))
    if state is None:
        reader = order.served.reader
        piece, cursor = prompt.scored, prompt.begin(reader.cursor)
        if not piece.ids:
            return None, reader, cursor
        scored = await score_text(reader, cursor, piece.ids, top)
        columns = None if order.top is None else columns_of(piece, scored.scores, None)
        return columns, reader, scored.cursor
    if prompt.stored is not None:  # it was read when it was appended
        reader = state.evaluator.reader(state.adapted)
        return prompt.stored, reader, reader.cursor
    reading = await read_piece(state, prompt.scored, learn=order.session is None, top=top)
    reading.count(order.metrics)
    reader = state.evaluator.reader(reading.state.adapted)
    return reading.columns, reader, reader.cursor


def _prompt_event(order: _Order, number: int, prompt: Prompt, columns: Columns | None) -> PromptEvent:
    piece = prompt.piece
    logprobs = () if columns is None else columns.logprobs
    ranks = () if columns is None else columns.ranks
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    if columns is not None and columns.top is not None:
        rows = zip(columns.top.ids, columns.top.logprobs, strict=True)
        top = tuple(tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in rows)
    unscored = len(piece.ids) - len(logprobs)
    return PromptEvent(
        prompt=number,
        tokens=prompt.tokens,
        text=piece.text,
        unfinished=order.served.vocab.decode(piece.after.unfinished),
        first_token=prompt.follows,
        ids=tuple(piece.ids),
        starts=tuple(piece.starts),
        logprobs=(None,) * unscored + logprobs,
        ranks=(None,) * unscored + ranks,
        top=((),) * (len(piece.ids) - len(top)) + top,
        version=None if order.copy is None else order.copy.revision.version,
    )
