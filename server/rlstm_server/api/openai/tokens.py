r"""Tokens as strings, and the columns of their log-probabilities.

A string stands for one id and no other. What is no valid UTF-8 by itself is written byte by byte, as
`bytes:\x80`, and so is a token whose own text begins with `bytes:`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlstm_model.vocab import Vocab
from rlstm_server.schemas.generation import EndEvent, PromptEvent, TokenEvent, Usage
from rlstm_server.schemas.wire import column, laid_out

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
