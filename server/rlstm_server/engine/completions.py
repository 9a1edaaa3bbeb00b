"""Reading prompts and continuing them: each from the weights as loaded, scored on the way; nothing is kept.

A prompt is read after the beginning of all text, or without it: then reading begins with the prompt's own
first token, which nothing is scored against. With an adaptation each prompt is learned from as it is read,
segment by segment, each scored with what came before it; what is generated after it is not learned from.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from rlstm_model.adaptation.evaluator import Reader
from rlstm_model.adaptation.state import Cursor
from rlstm_server.caller import Caller
from rlstm_server.engine import requests
from rlstm_server.engine.generate import Continuation, StopStrings, charged
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.quotas import charging
from rlstm_server.engine.reading import (
    EMPTY,
    Piece,
    TokenUsage,
    columns_of,
    read_context,
    read_passage,
    read_piece,
)
from rlstm_server.engine.score import ROWS_OF_REQUEST, score_text
from rlstm_server.engine.state import SessionState
from rlstm_server.engine.worker import Worker, gather
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import (
    CompletionEvent,
    CompletionRequest,
    GenerateRequest,
    GenerationEvent,
    GenerationSettings,
    PromptEvent,
)
from rlstm_server.schemas.text import AdaptationChoice, Columns, EngineLimits, FirstToken

Put = Callable[[CompletionEvent], None]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt's tokens, read after bos or without it. One without tokens is the beginning of all text."""

    piece: Piece
    after_bos: bool

    @property
    def first_token(self) -> FirstToken:
        """What the first token is scored against."""
        return "bos" if self.after_bos else "unscored"

    @property
    def tokens(self) -> int:
        """All that are read."""
        return len(self.piece.ids) + self.after_bos

    @property
    def scored(self) -> Piece:
        """What is scored: all, or all after the token that reading begins with."""
        rest = slice(0 if self.after_bos else 1, None)
        piece = self.piece
        return replace(piece, ids=piece.ids[rest], starts=piece.starts[rest], ends=piece.ends[rest])

    def begin(self, before_text: Cursor) -> Cursor:
        """Where reading begins: before any text, or with the prompt's own first token."""
        return before_text if self.after_bos else before_text._replace(last=self.piece.ids[0])


@dataclass(eq=False)
class _Order:
    """What all prompts of a request have in common. Without `top` none of their scores is told."""

    served: ServedModel
    settings: GenerationSettings
    metrics: Metrics
    choice: AdaptationChoice | None = None
    top: int | None = None

    def __post_init__(self) -> None:
        self.seed = secrets.randbits(32) if self.settings.seed is None else self.settings.seed

    @property
    def rows(self) -> int:
        """Rows that a prompt takes of a batch."""
        return 1 if self.choice is None else self.choice.expert_config.rows


@dataclass(frozen=True, eq=False)
class Completions:
    """Prompts continued, from the event loop's side."""

    models: Models
    worker: Worker
    limits: EngineLimits
    metrics: Metrics

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continuations of one prompt, token by token."""
        requests.check_generation(request.settings, self.limits)
        served = self.models.named(request.model)
        context = partial(read_context, served.vocab, request.passage, "prompt")
        piece = await requests.off_loop(requests.size_of(request.passage), context) or EMPTY
        requests.within("prompt tokens", len(piece.ids), self.limits.prompt_tokens)
        order = _Order(served, request.settings, self.metrics)
        prompt = Prompt(piece=piece, after_bos=True)
        async with aclosing(self._continue(order, [prompt], request.call, len(piece.ids))) as events:
            async for event in events:
                if not isinstance(event, PromptEvent):
                    yield event

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Prompts read and scored, a PromptEvent each, and their continuations, token by token."""
        requests.check_completion(request, self.limits)
        served = self.models.named(request.model)
        size = sum(requests.size_of(passage) for passage in request.prompts)
        prompts = await requests.off_loop(size, partial(self._prompts, served, request))
        choice = None if request.adaptation is None else served.choose(request.adaptation)
        order = _Order(served, request.settings, self.metrics, choice, request.top)
        count = sum(prompt.tokens for prompt in prompts)
        async with aclosing(self._continue(order, prompts, request.caller, count)) as events:
            async for event in events:
                yield event

    async def _continue(
        self, order: _Order, prompts: Sequence[Prompt], caller: Caller, count: int
    ) -> AsyncGenerator[CompletionEvent, None]:
        rows = min(len(prompts) * order.rows, ROWS_OF_REQUEST)
        most = len(prompts) * order.settings.choices * order.settings.max_tokens
        with charging(caller.quota) as charge:
            charge.add(tokens=count, learned=0 if order.choice is None else count)
            stream = self.worker.stream(partial(_complete_all, order, prompts), caller, rows)
            async with aclosing(charged(stream, most, charge)) as events:
                async for event in events:
                    yield event

    def _prompts(self, served: ServedModel, request: CompletionRequest) -> list[Prompt]:
        pieces = [
            EMPTY if passage.text == "" else read_passage(served.vocab, passage, f"prompt[{place}]")
            for place, passage in enumerate(request.prompts)
        ]
        prompts = [Prompt(piece=piece, after_bos=request.bos or not piece.ids) for piece in pieces]
        count = sum(prompt.tokens for prompt in prompts)
        requests.within("tokens of all prompts", count, self.limits.score_tokens)
        return prompts


# ---- on the device thread ---------------------------------------------------------------------------------


async def _complete_all(order: _Order, prompts: Sequence[Prompt], put: Put) -> None:
    """Complete all prompts, as many at once as a batch may hold rows of one request."""
    work = (_complete(order, place, prompt, put) for place, prompt in enumerate(prompts))
    await gather(work, max(1, ROWS_OF_REQUEST // order.rows))


async def _complete(order: _Order, place: int, prompt: Prompt, put: Put) -> None:
    """Read one prompt, tell what it scores, and continue it as often as was asked for."""
    usage = TokenUsage()
    if order.choice is None:
        columns, reader, cursor = await _read_frozen(order, prompt, usage)
    else:
        columns, reader = await _read_adapting(order, order.choice, prompt, usage)
        cursor = reader.cursor
    if order.top is not None:
        usage.count(order.metrics)
        put(_prompt_event(order.served, place, prompt, columns))
    del columns  # of a long prompt they are large
    ids, unfinished = prompt.piece.ids, prompt.piece.after.unfinished
    settings = order.settings
    texts = [
        Continuation(
            reader=reader,
            cursor=cursor,
            settings=settings,
            seed=order.seed,
            choice=choice,
            stops=StopStrings(order.served.vocab, settings.stop, after=unfinished or ids[-1:]),
            seen=set(ids),
            top=order.top or 0,
        )
        for choice in range(settings.choices)
    ]
    # Choices are numbered over all prompts; chance is not: see `Continuation`.
    first, tokens = place * len(texts), len(ids) if order.top is None else prompt.tokens
    work = (
        text.write(put, order.metrics, number=first + text.choice, prompt_tokens=tokens) for text in texts
    )
    await gather(work, len(texts))


async def _read_frozen(
    order: _Order, prompt: Prompt, usage: TokenUsage
) -> tuple[Columns | None, Reader, Cursor]:
    reader = order.served.reader
    piece, cursor = prompt.scored, prompt.begin(reader.cursor)
    if not piece.ids:
        return None, reader, cursor
    usage.scored = len(piece.ids)
    scored = await score_text(reader, cursor, piece.ids, order.top or 0)
    columns = None if order.top is None else columns_of(piece, scored.scores, None)
    return columns, reader, scored.cursor


async def _read_adapting(
    order: _Order, choice: AdaptationChoice, prompt: Prompt, usage: TokenUsage
) -> tuple[Columns, Reader]:
    fresh = SessionState.before_text(order.served, choice)
    begin = prompt.begin(fresh.adapted.now)
    state = replace(fresh, adapted=replace(fresh.adapted, now=begin, start=begin))
    reading = await read_piece(state, prompt.scored, usage, learn=True, top=order.top or 0)
    usage.scored = reading.totals.tokens
    return reading.columns, state.evaluator.reader(reading.state.adapted)


def _prompt_event(served: ServedModel, place: int, prompt: Prompt, columns: Columns | None) -> PromptEvent:
    piece = prompt.piece
    logprobs = () if columns is None else columns.logprobs
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    if columns is not None and columns.top is not None:
        rows = zip(columns.top.ids, columns.top.logprobs, strict=True)
        top = tuple(tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in rows)
    unscored = len(piece.ids) - len(logprobs)
    return PromptEvent(
        prompt=place,
        tokens=prompt.tokens,
        text=piece.text,
        unfinished=served.vocab.decode(piece.after.unfinished),
        first_token=prompt.first_token,
        ids=tuple(piece.ids),
        starts=tuple(piece.starts),
        logprobs=(None,) * unscored + logprobs,
        top=((),) * (len(piece.ids) - len(top)) + top,
    )
