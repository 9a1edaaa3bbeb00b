"""POST /v1/completions: texts continued, scored, or both; /v1/engines/{model}/logprob: one after another.

A completion is one object or, as a stream, chunks of one shape, a last one with the sums, and `[DONE]`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Header, Response
from pydantic import Field

from rlstm_model.vocab import Vocab
from rlstm_server.api import problems
from rlstm_server.api.bodies import respond, strict_routes
from rlstm_server.api.dependencies import ContextDep, KeyedDep
from rlstm_server.api.generate import TOKEN_NUMBERS, Texts, frame, open_stream, take_in
from rlstm_server.api.openai.models import ModelPath, NamedModel, call_of, encode, resolve
from rlstm_server.api.openai.schemas import CompletionIn, CompletionOut, Documented, Lenient, envelopes
from rlstm_server.caller import Call
from rlstm_server.errors import InvalidField, ServerError, TooLarge
from rlstm_server.schemas.generation import (
    CompletionEvent,
    CompletionRequest,
    EndEvent,
    GenerationSettings,
    PromptEvent,
    TokenEvent,
    Usage,
)
from rlstm_server.schemas.text import EngineIdentity
from rlstm_server.schemas.wire import column, laid_out

DONE: Final = b"data: [DONE]\n\n"

TOKENS: Final = 1_024
"""Of an echoed prompt in one chunk: a chunk is made while nobody else is served."""

RetryCount = Annotated[str, Header(alias="x-stainless-retry-count", include_in_schema=False)]
"""What OpenAI's clients say of a request that they send again."""

STREAM_HEADERS = {"cache-control": "no-cache, no-store"}

routes = strict_routes("openai")
COMPLETION: Final[dict[str, Any]] = {
    "model": CompletionOut,
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
    "description": "One object; or, with `stream`, chunks of the same shape as data of events, then"
    " `[DONE]`. What fails after the first chunk is told as `error` before it.",
}


@routes.post(
    "/v1/completions",
    responses={200: COMPLETION, **envelopes(404, 415)},
    summary="Continue or score prompts",
)
async def complete(body: CompletionIn, context: KeyedDep, retries: RetryCount = "0") -> Response:
    """Continue prompts, score them, or both; a prompt knows of no other. Only `store` keeps anything."""
    context.trace.changes = bool(body.store)
    named = resolve(context, body.model)
    if body.store and context.call.key is None and retries != "0":
        raise InvalidField(
            "idempotency-key",
            "idempotency-key: this request was sent before, and may have been learned from; with a key of its"
            " own it is learned from once",
        )
    if body.scores_prompts:
        context.principal.require("score")
    if body.settings.max_tokens:
        context.principal.require("generate")
    numbers, limit = body.most_entries * (1 + body.top), context.limits.score_numbers
    if numbers > limit:
        raise TooLarge("n x tokens x (1 + logprobs) of all prompts", numbers, limit)
    context.held.expect(numbers + TOKEN_NUMBERS * body.most_entries)
    events = context.engine.complete(_request(body, named, await call_of(named, context)))
    head, vocab = _head(named), named.served.vocab
    if body.stream:
        headers = STREAM_HEADERS | body.warning
        return await open_stream(events, Chunks(head, body, vocab), context, headers)
    texts = await take_in(events, len(body.prompt) * body.choices)
    told = body.tells_prompts * sum(len(prompt.ids) for prompt in texts.prompts.values())
    entries = body.choices * told + texts.completion_tokens
    return await respond(
        lambda: {**head, **_fields(texts, body, vocab)},
        tokens=entries * (1 + body.top),
        version=texts.prompts[0].version,
        headers=body.warning,
    )


def _request(body: CompletionIn, named: NamedModel, call: Call) -> CompletionRequest:
    return CompletionRequest(
        call=call,
        model=named.served.name,
        prompts=body.prompt,
        settings=body.settings,
        bos=bool(body.add_special_tokens),
        top=body.top,
        adaptation=named.adaptation,
        store=bool(body.store),
        stream=bool(body.stream),
    )


def _head(named: NamedModel) -> dict[str, Any]:
    """Give what all objects of one answer have in common."""
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": named.id,
        "system_fingerprint": fingerprint(named.served.identity, named.id),
        "logprobs_mode": "raw",
    }


def fingerprint(identity: EngineIdentity, model: str) -> str:
    """Write in short what the numbers depend on: weights, vocabulary, calibration, and how sums are taken."""
    parts = (model, identity.fingerprint, identity.adaptation_fingerprint or "", identity.numerics)
    return f"fp_{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}"


def _fields(texts: Texts, body: CompletionIn, vocab: Vocab) -> dict[str, Any]:
    """Lay out choices and usage."""
    names = Names(vocab)
    choices = [_choice(texts, index, body, names) for index in range(len(texts.ends))]
    read = (prompt.tokens for prompt in texts.prompts.values())
    return {"choices": choices, "usage": usage(read, texts.ends.values())}


def _choice(texts: Texts, index: int, body: CompletionIn, names: Names) -> dict[str, Any]:
    prompt, tokens = texts.prompts[index // body.choices], texts.tokens[index]
    text = "".join(token.text for token in tokens)
    fields: dict[str, Any] = {
        "index": index,
        "text": prompt.text + (text if tokens else prompt.unfinished) if body.echo else text,
        "finish_reason": texts.ends[index].finish_reason,
        "logprobs": None,
        "first_token": prompt.first_token,
    }

    def entries() -> Iterator[Entry]:
        yield from prompt_entries(prompt) if body.echo else ()
        yield from token_entries(tokens, len(prompt.text))

    if body.logprobs is not None:
        fields["logprobs"] = logprob_columns(entries, names, body.logprobs)
    if body.prompt_logprobs is not None:
        fields["prompt_logprobs"] = ranked_logprobs(prompt, names, body.prompt_logprobs)
    if body.return_token_ids:
        ids = [*(prompt.ids if body.echo else ()), *(token.id for token in tokens)]
        fields |= id_columns(ids, names.vocab)
    return fields


class Chunks:
    """Writes the events of one completion. Chunks of several choices come in any order: `index` tells."""

    def __init__(self, head: Mapping[str, Any], body: CompletionIn, vocab: Vocab) -> None:
        self._head, self._body, self._vocab = head, body, vocab
        self._names = Names(vocab)
        self._prompts: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._unfinished: dict[int, str] = {}
        self._ends: list[EndEvent] = []
        options = body.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)

    def event(self, event: CompletionEvent) -> Iterable[bytes]:
        """Write an event: as many chunks as it takes, or none where it has nothing to say."""
        if isinstance(event, PromptEvent):
            yield from self._prompt(event)
        elif isinstance(event, TokenEvent):
            yield from self._token(event)
        else:
            yield from self._end(event)

    def end(self) -> Iterable[bytes]:
        """Write the sums, where they were asked for, and that all has been said."""
        if self._tells_usage:
            yield frame({**self._head, "choices": [], "usage": usage(self._prompts.values(), self._ends)})
        yield DONE

    def failure(self, error: ServerError, request_id: str) -> Iterable[bytes]:
        """Write what went wrong; the headers have told the request's id."""
        yield frame(problems.envelope(error))
        yield DONE

    def _prompt(self, prompt: PromptEvent) -> Iterator[bytes]:
        choices = self._body.choices
        numbers = range(prompt.prompt * choices, (prompt.prompt + 1) * choices)
        self._prompts[prompt.prompt] = prompt.tokens
        for number in numbers:
            self._offsets[number] = len(prompt.text)
            if self._body.echo:
                self._unfinished[number] = prompt.unfinished
                yield from self._echo(number, prompt)

    def _echo(self, number: int, prompt: PromptEvent) -> Iterator[bytes]:
        starts = range(0, len(prompt.ids), TOKENS) or range(1)
        for start in starts:
            stop = start + TOKENS
            begin = prompt.starts[start] if start else 0
            finish = prompt.starts[stop] if stop < len(prompt.ids) else len(prompt.text)
            fields = self._columns(prompt.ids[start:stop], partial(prompt_entries, prompt, start, stop))
            yield self._chunk(number, prompt.text[begin:finish], first_token=prompt.first_token, **fields)

    def _token(self, token: TokenEvent) -> Iterator[bytes]:
        offset = self._offsets[token.choice]
        self._offsets[token.choice] += len(token.text)
        self._unfinished.pop(token.choice, None)
        fields = self._columns([token.id], partial(token_entries, [token], offset))
        if token.text or fields:
            yield self._chunk(token.choice, token.text, **fields)

    def _end(self, end: EndEvent) -> Iterator[bytes]:
        self._ends.append(end)
        text = self._unfinished.pop(end.choice, "")
        yield self._chunk(end.choice, text, finish_reason=end.finish_reason)

    def _columns(self, ids: Sequence[int], entries: Callable[[], Iterable[Entry]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._body.logprobs is not None:
            fields["logprobs"] = logprob_columns(entries, self._names, self._body.logprobs)
        if self._body.return_token_ids:
            fields |= id_columns(ids, self._vocab)
        return fields

    def _chunk(self, number: int, text: str, **fields: Any) -> bytes:
        choice = {"index": number, "text": text, "finish_reason": None, "logprobs": None, **fields}
        told = {"usage": None} if self._tells_usage else {}
        return frame({**self._head, "choices": [choice], **told})


# ---- tokens as strings, and the columns of their log-probabilities -----------------------------------------

ESCAPED = "bytes:"
UNKNOWN = "<unk>"


class Entry(NamedTuple):
    """One token of an answer; `offset` in code points of prompt and completion."""

    id: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    offset: int


@dataclass(frozen=True)
class Names:
    """The strings of a vocabulary's tokens, each made once."""

    vocab: Vocab
    _known: dict[int, str] = field(default_factory=dict)

    def of(self, token: int) -> str:
        """Give the string of an id."""
        name = self._known.get(token)
        if name is None:
            name = self._known[token] = self._made(token)
        return name

    def _made(self, token: int) -> str:
        if token == self.vocab.unknown_id:
            return UNKNOWN
        data = self.vocab.token_bytes(token)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = ESCAPED
        if not text.startswith(ESCAPED):
            return text
        return ESCAPED + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_entries(prompt: PromptEvent, start: int = 0, stop: int | None = None) -> Iterable[Entry]:
    """Give entries of a prompt's tokens."""
    part = slice(start, stop)
    columns = (prompt.ids[part], prompt.logprobs[part], prompt.top[part], prompt.starts[part])
    return (Entry(*row) for row in zip(*columns, strict=True))


def token_entries(tokens: Iterable[TokenEvent], offset: int) -> Iterable[Entry]:
    """Give entries of new tokens, the first of which is at `offset`."""
    for token in tokens:
        yield Entry(token.id, token.logprob, token.top, offset + token.lost)
        offset += len(token.text)


def logprob_columns(entries: Callable[[], Iterable[Entry]], names: Names, top: int) -> dict[str, Any]:
    """Lay out log-probabilities, with `top` alternatives: four equally long arrays.

    The entries, a million or so, are never a list.
    """
    return {
        "tokens": column(names.of(entry.id) for entry in entries()),
        "token_logprobs": column(entry.logprob for entry in entries()),
        "top_logprobs": column(_alternatives(entry, names, top) for entry in entries()),
        "text_offset": column(entry.offset for entry in entries()),
    }


def id_columns(ids: Sequence[int], vocab: Vocab) -> dict[str, Any]:
    """Lay out ids and bytes: two more."""
    known = {token: list(vocab.token_bytes(token)) for token in set(ids)}
    return {"token_ids": column(ids), "token_bytes": column(known[token] for token in ids)}


def _alternatives(entry: Entry, names: Names, top: int) -> dict[str, float] | None:
    """Give the most probable tokens and the chosen one, whose number is that of `token_logprobs`."""
    if entry.logprob is None:
        return None
    best = {names.of(token): logprob for token, logprob in entry.top[:top]}
    return {**best, names.of(entry.id): entry.logprob}


def ranked_logprobs(prompt: PromptEvent, names: Names, top: int) -> Any:
    """Lay out a prompt's log-probabilities as vLLM does: by ids, its own and `top` others, or null."""

    def row(entry: Entry, rank: int | None) -> dict[str, Any] | None:
        if entry.logprob is None:
            return None
        best = ((token, logprob, place) for place, (token, logprob) in enumerate(entry.top[:top], start=1))
        told = [(entry.id, entry.logprob, rank), *(one for one in best if one[0] != entry.id)]
        return {
            str(token): {"logprob": logprob, "rank": place, "decoded_token": names.of(token)}
            for token, logprob, place in told
        }

    return column(itertools.starmap(row, zip(prompt_entries(prompt), prompt.ranks, strict=True)))


def usage(prompts: Iterable[int], ends: Iterable[EndEvent]) -> dict[str, Any]:
    """Count each prompt's tokens once, and every choice's new ones."""
    made = sum(end.completion_tokens for end in ends)
    return laid_out(Usage(prompt_tokens=sum(prompts), completion_tokens=made))


# ---- one text after another --------------------------------------------------------------------------------


class LogprobIn(Lenient):
    """A text, and the one before it."""

    context: str = Field(default="", description="Read first; empty: the beginning of all text.")
    continuation: str = Field(min_length=1, description="Scored after it; made into tokens apart from it.")


class LogprobOut(Documented):
    """The continuation's sum."""

    logprob: float = Field(description="Natural logarithm, of all tokens of the continuation together.")
    is_greedy: bool = Field(description="Whether each of them is the most probable one at its place.")
    num_tokens: int = Field(description="Of the continuation.")
    token_ids: list[int] = Field(description="Of the continuation; those of the two joined may be others.")
    input_tokens: int = Field(description="Of both texts; bos where the context is empty.")


@routes.post(
    "/v1/engines/{model_id}/logprob",
    responses={200: {"model": LogprobOut}, **envelopes(404, 415)},
    summary="Score a text after another",
)
async def logprob(model_id: ModelPath, body: LogprobIn, context: ContextDep) -> Response:
    """Score a continuation: the same numbers as those of an echoed completion."""
    named = resolve(context, model_id)
    vocab = named.served.vocab
    context.held.expect(2 * len(body.context.encode()) + 2 * len(body.continuation.encode()))
    call = await call_of(named, context)
    bos = [] if call.session else [vocab.bos_id]
    before = await encode(vocab, body.context, "context") if body.context else bos
    continuation = await encode(vocab, body.continuation, "continuation")
    ids = (*before, *continuation)
    request = CompletionRequest(
        call=call,
        model=named.served.name,
        prompts=(ids,),
        settings=GenerationSettings(max_tokens=0),
        top=1,
        adaptation=named.adaptation,
    )
    prompt = (await take_in(context.engine.complete(request), 1)).prompts[0]
    build = partial(_sum_fields, prompt, len(continuation))
    return await respond(build, tokens=len(ids), headers=body.warning)


def _sum_fields(prompt: PromptEvent, count: int) -> dict[str, Any]:
    own = slice(len(prompt.ids) - count, None)
    logprobs = [value for value in prompt.logprobs[own] if value is not None]
    best = (row[0][1] for row in prompt.top[own])
    return {
        "logprob": math.fsum(logprobs),
        "is_greedy": all(own >= other for own, other in zip(logprobs, best, strict=True)),
        "num_tokens": count,
        "token_ids": column(prompt.ids[own]),
        "input_tokens": prompt.tokens,
    }
