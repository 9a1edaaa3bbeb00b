"""Long text becomes appends of at most 4,096 bytes, and their answers one answer. No input, no output.

A piece never ends inside a character. Each has its own idempotency key, so a repetition after a lost answer
repeats one piece and no more.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from rlstm_client import _wire
from rlstm_client._call import Call
from rlstm_client.errors import AppendProgress, RequestError
from rlstm_client.models import AppendResult, Totals

PIECE_BYTES = 4096
REMEMBERED_KEYS = 1024
"""How many of a session's keys a server knows again: what has more pieces cannot be repeated as a whole."""
_COLUMNS = ("ids", "logprobs", "static_logprobs", "ranks", "entropies", "starts", "ends")


def cut(text: str, piece_bytes: int = PIECE_BYTES) -> list[str]:
    """Cut a text into pieces of at most ``piece_bytes`` (4 or more) UTF-8 bytes; "" is one empty piece.

    Raises:
        RequestError: the text holds a lone surrogate; the message says where.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is no text: a lone surrogate at character {error.start}") from error
    pieces, start = [], 0
    while len(data) - start > piece_bytes:
        end = start + piece_bytes
        while data[end] & 0xC0 == 0x80:  # a continuation byte: the cut would fall inside a character
            end -= 1
        pieces.append(data[start:end].decode())
        start = end
    return [*pieces, data[start:].decode()]


def cut_ids(ids: Sequence[int]) -> list[Sequence[int]]:
    """Cut ids into pieces of at most `PIECE_BYTES`; no ids are one empty piece."""
    return [ids[start : start + PIECE_BYTES] for start in range(0, max(len(ids), 1), PIECE_BYTES)]


class PieceBuffer:
    """Gathers a stream of texts into pieces.

    gather_bytes  text is held until there is this much of it; 1 sends everything at once
    hold_last     holds the newest piece until the next exists, so that the last one can be marked as final
    piece_bytes   how long a piece is at most
    """

    def __init__(self, gather_bytes: int, *, hold_last: bool, piece_bytes: int = PIECE_BYTES) -> None:
        self._gather_bytes = gather_bytes
        self._held_pieces = 1 if hold_last else 0
        self._piece_bytes = piece_bytes
        self._parts: list[str] = []
        self._bytes = 0
        self._pieces: list[str] = []
        self._before = 0
        self._plan: AppendPlan | None = None

    def feed(self, text: str) -> list[str]:
        """Take a text and return the pieces that are to be sent now."""
        if text:
            self._parts.append(text)
            self._bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._bytes >= self._gather_bytes:
            self._gather()
        return [self._pieces.pop(0) for _ in range(len(self._pieces) - self._held_pieces)]

    def finish(self) -> list[tuple[str, bool]]:
        """Return the pieces that are left, each with whether it is the last."""
        self._gather()
        pieces, self._pieces = self._pieces, []
        return [(piece, index == len(pieces)) for index, piece in enumerate(pieces, 1)]

    def plan(self, session_id: str, piece: str, **options: Any) -> "AppendPlan":
        """Return the plan of a piece, to be carried out before the next one's."""
        plan = AppendPlan(session_id, piece, **options)
        self._before, self._plan = self.progress().characters, plan
        return plan

    def progress(self) -> AppendProgress:
        """Return how much of the whole stream is in the session, and what is on its way."""
        if self._plan is None:
            return AppendProgress(answer=None, characters=0)
        last = self._plan.progress()
        return replace(last, answer=None, characters=self._before + last.characters)

    def _gather(self) -> None:
        if self._parts:
            self._pieces += cut("".join(self._parts), self._piece_bytes)
        self._parts, self._bytes = [], 0


class AppendPlan:
    """The calls that append one text, or ids, and the sum of their answers.

    Iterate over the plan, send each call and `add` its answer before taking the next: with ``if_match`` every
    piece must find the session as the piece before left it. A key given by the caller names the whole text:
    the whole append may be repeated with it. It is the key of a text of one piece. The keys of several are
    derived from it, all of the text and its options: one that another text or another key could have would
    let a server take the one append for a repeat of the other, and lose it.
    """

    def __init__(
        self,
        session_id: str,
        text: str | Sequence[int],
        *,
        final: bool | None = None,
        if_match: int | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> None:
        self._pieces: Sequence[str | Sequence[int]] = cut(text) if isinstance(text, str) else cut_ids(text)
        self._text = text
        self._final = final
        self._if_match = if_match
        self._key = idempotency_key if idempotency_key is None else _wire.checked_key(idempotency_key)
        self._session_id = session_id
        self._options = options
        self._answers: list[AppendResult] = []
        self._on_its_way: Call[AppendResult] | None = None
        if idempotency_key is not None and len(self._pieces) > REMEMBERED_KEYS:
            raise RequestError(
                f"one key cannot name a text of {len(self._pieces):,} pieces, since a server knows only"
                f" {REMEMBERED_KEYS:,} keys again: append it in parts, each with a key of its own"
            )

    def __iter__(self) -> Iterator[Call[AppendResult]]:
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            call = _wire.append(
                self._session_id,
                text=piece if isinstance(piece, str) else None,
                tokens=None if isinstance(piece, str) else piece,
                final=self._final if index == last else None,
                if_match=self._version(),
                idempotency_key=self._key,
                **self._options,
            )
            if self._key is not None and last:
                call = replace(call, headers={**call.headers, "Idempotency-Key": self._piece_key(index)})
            self._on_its_way = call
            yield call

    def add(self, answer: AppendResult) -> None:
        """Take the answer of the call that was iterated last."""
        self._answers.append(answer)
        self._on_its_way = None

    def progress(self) -> AppendProgress:
        """Return how far the text has come."""
        done, call = len(self._answers), self._on_its_way
        return AppendProgress(
            answer=self.result if self._answers else None,
            characters=sum(len(piece) for piece in self._pieces[:done]),
            piece=None if call is None else self._pieces[done],
            key=None if call is None else call.headers["Idempotency-Key"],
        )

    @property
    def result(self) -> AppendResult:
        """The answers so far as one."""
        return combine(self._answers)

    def _version(self) -> int | None:
        if self._if_match is None or not self._answers:
            return self._if_match
        return self._answers[-1].version

    def _piece_key(self, index: int) -> str:
        return _digest([self._key, index, len(self._pieces), self._whole])

    @cached_property
    def _whole(self) -> str:
        """The digest of all that is appended. If-Match is no part of it: a repeat is one at any version."""
        text = self._text
        body = {"text": text} if isinstance(text, str) else {"tokens": [*text]}
        options = {"final": self._final, **self._options}
        return _digest(body | {name: value for name, value in options.items() if value is not None})


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value's one JSON form, which is the same in every client."""
    written = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()


@contextmanager
def telling(progress: Callable[[], AppendProgress]) -> Iterator[None]:
    """Have whatever is raised, interruptions too, say in ``error.progress`` how far an append had come."""
    try:
        yield
    except BaseException as error:
        vars(error)["progress"] = progress()
        raise


def combine(answers: Sequence[AppendResult]) -> AppendResult:
    """Return one answer for the pieces of a text: columns joined, totals summed, the rest as at the end."""
    if len(answers) == 1:
        return answers[0]
    columns: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(answer, name) for answer in answers)) for name in _COLUMNS
    }
    return replace(
        answers[-1],
        **columns,
        replayed=any(answer.replayed for answer in answers),
        updates=sum(answer.updates for answer in answers),
        guards=dict(sum((Counter(answer.guards) for answer in answers), Counter())),
        totals=_summed([answer.totals for answer in answers]),
    )


def _summed(parts: Sequence[Totals | None]) -> Totals | None:
    totals = [part for part in parts if part is not None]
    if len(totals) < len(parts):
        return None
    return Totals(
        logprob=math.fsum(part.logprob for part in totals),
        tokens=sum(part.tokens for part in totals),
        bytes=sum(part.bytes for part in totals),
        words=_sum([part.words for part in totals]),
        perplexity=_perplexity(totals),
        bits_per_byte=_per_byte([part.bits_per_byte for part in totals], totals),
        unknown=sum(part.unknown for part in totals),
        static_logprob=_sum([part.static_logprob for part in totals]),
        static_bits_per_byte=_per_byte([part.static_bits_per_byte for part in totals], totals),
        gain=_sum([part.gain for part in totals]),
        extra=totals[-1].extra,
    )


def _sum(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)


def _per_byte(rates: Sequence[float | None], totals: Sequence[Totals]) -> float | None:
    num_bytes = sum(part.bytes for part in totals)
    weighted = [rate * part.bytes for rate, part in zip(rates, totals, strict=True) if rate is not None]
    return math.fsum(weighted) / num_bytes if num_bytes and len(weighted) == len(totals) else None


def _perplexity(totals: Sequence[Totals]) -> float | None:
    tokens = sum(part.tokens for part in totals)
    logs = [part.tokens * math.log(part.perplexity) for part in totals if part.perplexity]
    return math.exp(math.fsum(logs) / tokens) if tokens and len(logs) == len(totals) else None
