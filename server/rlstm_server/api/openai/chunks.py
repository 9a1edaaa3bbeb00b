"""A completion as a stream: chunks of one shape, a last one with the sums, and `[DONE]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rlstm_model.vocab import Vocab
from rlstm_server.api import problems
from rlstm_server.api.events import frame
from rlstm_server.api.openai.shapes import CompletionIn
from rlstm_server.api.openai.tokens import (
    Entry,
    Names,
    id_columns,
    logprob_columns,
    prompt_entries,
    token_entries,
)
from rlstm_server.api.openai.usage import usage
from rlstm_server.errors import ServerError
from rlstm_server.schemas import CompletionEvent, EndEvent, PromptEvent, TokenEvent

DONE: Final = b"data: [DONE]\n\n"

TOKENS: Final = 1_024
"""Of an echoed prompt in one chunk: a chunk is made while nobody else is served."""


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
            fields["logprobs"] = logprob_columns(entries, self._names)
        if self._body.return_token_ids:
            fields |= id_columns(ids, self._vocab)
        return fields

    def _chunk(self, number: int, text: str, **fields: Any) -> bytes:
        choice = {"index": number, "text": text, "finish_reason": None, "logprobs": None, **fields}
        told = {"usage": None} if self._tells_usage else {}
        return frame({**self._head, "choices": [choice], **told})
