"""Reading prompts and continuing them: each from the weights as loaded, scored on the way; nothing is kept.

A prompt is read after the beginning of all text, or without it: then reading begins with the prompt's own
first token, which nothing is scored against. With an adaptation each prompt is learned from as it is read,
segment by segment, each scored with what came before it; what is written after it is not learned from.
"""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from rlstm_model.adaptation.batch_step import NextToken
from rlstm_model.adaptation.evaluator import Cursor
from rlstm_model.adaptation.reader import Reader
from rlstm_model.scoring import score_log_probs
from rlstm_model.vocab import Vocab
from rlstm_server.engine import requests
from rlstm_server.engine.billing import billed, paid
from rlstm_server.engine.generation import Continuation
from rlstm_server.engine.learning import Tally, alternatives, columns_of, read_piece
from rlstm_server.engine.models import Models
from rlstm_server.engine.runner import Runner
from rlstm_server.engine.scoring import ROWS_OF_REQUEST, score_text
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.steps import Ask, Steps, performed, together
from rlstm_server.engine.stops import StopStrings
from rlstm_server.engine.text import START, Piece, read_passage
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import (
    AdaptationChoice,
    Columns,
    CompletionEvent,
    CompletionRequest,
    EndEvent,
    EngineLimits,
    FirstToken,
    GenerationSettings,
    Passage,
    PromptEvent,
    TokenEvent,
)


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


class Read(NamedTuple):
    """A prompt was read: its scores, what reads on after it, and how it is counted."""

    columns: Columns | None
    reader: Reader
    cursor: Cursor
    tally: Tally


class Counted(NamedTuple):
    """An event of a prompt, and how its reading is counted."""

    event: PromptEvent
    tally: Tally


ReadPrompt: TypeAlias = Callable[[Prompt], Steps[Any, Read]]
Made: TypeAlias = Counted | TokenEvent | EndEvent


@dataclass(frozen=True, eq=False)
class Completions:
    """Completions of prompts, from the event loop's side."""

    models: Models
    runner: Runner
    limits: EngineLimits
    metrics: Metrics

    async def perform(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Read and continue. See EngineInterface.complete."""
        requests.check_completion(request, self.limits)
        served = self.models.named(request.model)
        size = sum(requests.size_of(passage) for passage in request.prompts)
        prompts = await requests.off_loop(size, partial(self._prompts, served, request))
        choice = None if request.adaptation is None else served.choose(request.adaptation)
        steps = _steps(served, request, prompts, choice)
        rows = 1 if choice is None else choice.expert_config.rows
        with billed(request.caller.allowance) as bill:
            count = sum(prompt.tokens for prompt in prompts)
            bill.charge(tokens=count, learned=0 if choice is None else count)
            stream = self.runner.stream(steps, request.caller, min(len(prompts) * rows, ROWS_OF_REQUEST))
            choices = request.settings.choices * len(prompts)
            charged = paid(self._counted(stream), replace(request.settings, choices=choices), bill)
            async with aclosing(charged) as events:
                async for event in events:
                    yield event

    def _prompts(self, served: ServedModel, request: CompletionRequest) -> list[Prompt]:
        asked = request.prompts
        pieces = [_piece(served.vocab, passage, f"prompt[{place}]") for place, passage in enumerate(asked)]
        prompts = [Prompt(piece=piece, after_bos=request.bos or not piece.ids) for piece in pieces]
        count = sum(prompt.tokens for prompt in prompts)
        requests.within("tokens of all prompts", count, self.limits.score_tokens)
        return prompts

    async def _counted(self, stream: AsyncGenerator[Made, None]) -> AsyncGenerator[CompletionEvent, None]:
        """Pass events on, and count what was done for them."""
        async with aclosing(stream) as made:
            async for event in made:
                if isinstance(event, Counted):
                    event.tally.count(self.metrics)
                    yield event.event
                    continue
                if isinstance(event, EndEvent):
                    self.metrics.tokens.labels("generated").inc(event.completion_tokens)
                yield event


class _Order(NamedTuple):
    """What all prompts of a request have in common."""

    vocab: Vocab
    settings: GenerationSettings
    seed: int
    top: int


def _piece(vocab: Vocab, passage: Passage, field: str) -> Piece:
    if passage.text == "":
        return Piece(ids=[], starts=[], ends=[], bytes=0, words=0, unknown=0, text="", after=START)
    return read_passage(vocab, passage, field)


def _steps(
    served: ServedModel,
    request: CompletionRequest,
    prompts: Sequence[Prompt],
    choice: AdaptationChoice | None,
) -> Steps[Made, list[None]]:
    """The works of all prompts, as many at once as a round may hold rows of one request."""
    settings = request.settings
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    if choice is None:
        read: ReadPrompt = partial(_read_static, served.reader, request.top)
        at_once = ROWS_OF_REQUEST
    else:
        read = partial(_read_adapting, served, choice, request.top)
        at_once = max(1, ROWS_OF_REQUEST // choice.expert_config.rows)
    jobs = (
        _complete(_Order(served.vocab, settings, seed, request.top), place, prompt, read)
        for place, prompt in enumerate(prompts)
    )
    return together(jobs, at_once)


# ---- on the device thread ---------------------------------------------------------------------------------


def _read_static(reader: Reader, top: int, prompt: Prompt) -> Steps[Any, Read]:
    piece, cursor = prompt.scored, prompt.begin(reader.cursor)
    if not piece.ids:
        return Read(None, reader, cursor, Tally())
    sliced = yield from score_text(reader, cursor, piece.ids, top)
    columns = columns_of(piece, sliced.scores, None)
    return Read(columns, reader, sliced.cursor, Tally(scored=len(piece.ids)))


def _read_adapting(
    served: ServedModel, choice: AdaptationChoice, top: int, prompt: Prompt
) -> Steps[Any, Read]:
    fresh = SessionState.before_text(served, choice)
    begin = prompt.begin(fresh.adapted.now)
    state = replace(fresh, adapted=replace(fresh.adapted, now=begin, start=begin))
    reading = yield from read_piece(state, prompt.scored, learn=True, top=top)
    reader = state.evaluator.reader(reading.state.adapted)
    tally = Tally.of_items([reading.tally])
    return Read(reading.columns, reader, reader.cursor, tally)


def _complete(order: _Order, place: int, prompt: Prompt, read: ReadPrompt) -> Steps[Made, None]:
    """Read one prompt, tell what it scores, and continue it as often as was asked for."""
    done = yield from read(prompt)
    yield Ask((), [Counted(_prompt_event(order.vocab, place, prompt, done.columns), done.tally)])
    done = done._replace(columns=None)  # of a long prompt they are large
    ids, unfinished = prompt.piece.ids, prompt.piece.after.unfinished
    texts = [
        Continuation(
            reader=done.reader,
            cursor=done.cursor,
            settings=order.settings,
            seed=order.seed,
            choice=choice,
            stops=StopStrings(order.vocab, order.settings.stop, after=unfinished or ids[-1:]),
            seen=set(ids),
        )
        for choice in range(order.settings.choices)
    ]
    first = place * len(texts)
    yield from together((_write(text, first, order.top, prompt.tokens) for text in texts), len(texts))


def _prompt_event(vocab: Vocab, place: int, prompt: Prompt, columns: Columns | None) -> PromptEvent:
    piece = prompt.piece
    logprobs = () if columns is None else columns.logprobs
    top = () if columns is None or columns.top is None else columns.top
    unscored = len(piece.ids) - len(logprobs)
    return PromptEvent(
        prompt=place,
        tokens=prompt.tokens,
        text=piece.text,
        unfinished=vocab.decode(piece.after.unfinished),
        first_token=prompt.first_token,
        ids=tuple(piece.ids),
        starts=tuple(piece.starts),
        logprobs=(None,) * unscored + logprobs,
        top=((),) * (len(piece.ids) - len(top)) + top,
    )


def _write(text: Continuation, first: int, top: int, prompt_tokens: int) -> Steps[Made, None]:
    """Choose token after token. Events are numbered over all prompts; chance is not: see `Continuation`."""
    shown, tops = 0, deque[tuple[tuple[int, float], ...]]()
    events: Sequence[Made] = ()
    while text.finish_reason is None:
        following = yield from performed(text.turn, events)
        released = text.choose(following)
        tops.append(_best(following, text.cursor.last, top))
        events = [
            TokenEvent(
                choice=first + text.choice,
                index=index,
                id=token.id,
                text=token.text,
                logprob=token.logprob,
                top=tops.popleft(),
            )
            for index, token in enumerate(released, start=shown)
        ]
        shown += len(released)
    end = EndEvent(
        choice=first + text.choice,
        finish_reason=text.finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=shown,
        seed=text.seed,
    )
    yield Ask((), [*events, end])


def _best(following: NextToken, chosen: int, top: int) -> tuple[tuple[int, float], ...]:
    """The most probable tokens at a place, best first."""
    if not top:
        return ()
    targets_1 = torch.tensor([chosen], device=following.log_probs_V.device)
    rows = alternatives(score_log_probs(following.log_probs_V[None], targets_1, top))
    return rows[0] if rows else ()
