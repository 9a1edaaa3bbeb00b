"""Long text becomes appends, or frames of a stream, and their answers one answer. No input, no output.

A piece has at most 4,096 bytes and never ends inside a character. Each has its own idempotency key, so a
repetition after a lost answer repeats one piece and no more. Frames are pieces of text that never ends: they
are numbered, kept until they are acknowledged, and sent again under the same number.
"""

import hashlib
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from rlstm_client import _calls, errors
from rlstm_client._calls import Call, encode, new_key, scores_not_stored
from rlstm_client.errors import AppendProgress, RequestError, UnreadableAnswerError
from rlstm_client.models import (
    COLUMNS,
    AppendResult,
    Totals,
    UnexpectedShape,
    check_columns,
    decode_object,
)
from rlstm_client.options import StreamAppendOptions

PIECE_BYTES: Final = 4096
REMEMBERED_KEYS: Final = 1024
"""How many of a session's keys a server knows again: what has more pieces cannot be repeated as a whole."""

WINDOW: Final = 8
"""Frames under way: as many answers the server's store keeps whole, for a frame that is sent again."""

FRAME_BYTES: Final = 1024
"""Of text in a frame: the answer about so many bytes is short enough to be kept whole, columns and all."""


def cut(text: str, piece_bytes: int) -> list[str]:
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


class AppendPlan:
    """The calls that append one text, or ids, and the sum of their answers.

    Iterate over the plan, send each call and `add` its answer before taking the next: with ``if_match`` every
    piece must find the session as the piece before left it. A key given by the caller names the whole text:
    the whole append may be repeated with it. It is the key of a text of one piece. The keys of several are
    derived from it, all of the text and its options: one that another text or another key could have would
    let a server take the one append for a repeat of the other, and lose it.
    """

    def __init__(self, session_id: str, text: str | Sequence[int], given: Mapping[str, Any]) -> None:
        _calls.changing(given)  # refuses a key that none can be
        named = ("final", "note", "if_match", "idempotency_key")
        self._final, self._note, self._if_match, self._key = (given.get(name) for name in named)
        self._options = {name: value for name, value in given.items() if name not in named}
        self._pieces: Sequence[str | Sequence[int]] = (
            cut(text, PIECE_BYTES) if isinstance(text, str) else cut_ids(text)
        )
        self._text = text
        self._session_id = session_id
        self._answers: list[AppendResult] = []
        self._on_its_way: Call[AppendResult] | None = None
        if self._key is not None and len(self._pieces) > REMEMBERED_KEYS:
            raise RequestError(
                f"one key cannot name a text of {len(self._pieces):,} pieces, since a server knows only"
                f" {REMEMBERED_KEYS:,} keys again: append it in parts, each with a key of its own"
            )

    def __iter__(self) -> Iterator[Call[AppendResult]]:
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            options = {
                **self._options,
                "final": self._final if index == last else None,
                "note": self._note if index == last else None,
                "if_match": self._version(),
                "idempotency_key": self._piece_key(index) if self._key is not None and last else self._key,
            }
            body = {"text" if isinstance(piece, str) else "tokens": piece}
            self._on_its_way = _calls.append(self._session_id, body, options)
            yield self._on_its_way

    def add(self, answer: AppendResult) -> None:
        """Take the answer of the call that was iterated last."""
        self._answers.append(answer)
        self._on_its_way = None

    def progress(self) -> AppendProgress:
        """Return how far the text has come."""
        done, call = len(self._answers), self._on_its_way
        return AppendProgress(
            answer=combine(self._answers) if self._answers else None,
            characters=sum(len(piece) for piece in self._pieces[:done]),
            piece=None if call is None else self._pieces[done],
            key=None if call is None else call.headers["Idempotency-Key"],
        )

    @property
    def result(self) -> AppendResult:
        """The answers as one.

        Raises:
            ScoresNotStoredError: of a part of the text, which was appended before, the scores are not known.
        """
        return with_scores(combine(self._answers))

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
        options = {"final": self._final, "note": self._note, **self._options}
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


def with_scores(answer: AppendResult) -> AppendResult:
    """Return an answer that has its scores; of one that has none the error says what is known."""
    if not answer.scores_stored:
        raise scores_not_stored({"version": answer.version, "position": answer.position})
    return answer


def combine(answers: Sequence[AppendResult]) -> AppendResult:
    """Return one answer for the pieces of a text: columns joined, totals summed, the rest as at the end.

    Where the scores of a piece are no longer stored those of the text are not known.

    Raises:
        UnreadableAnswerError: the columns do not have an entry for each token.
    """
    if len(answers) == 1:
        return answers[0]
    stored = all(answer.scores_stored for answer in answers)
    columns: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(answer, name) for answer in answers if stored))
        for name in COLUMNS
    }
    whole = replace(
        answers[-1],
        **columns,
        replayed=any(answer.replayed for answer in answers),
        scores_stored=stored,
        updates=sum(answer.updates for answer in answers),
        guards=dict(sum((Counter(answer.guards) for answer in answers), Counter())),
        totals=_summed([answer.totals for answer in answers]) if stored else None,
    )
    try:
        check_columns(whole, None if whole.totals is None else whole.totals.tokens)
    except UnexpectedShape as error:
        raise UnreadableAnswerError(str(error), applied="yes") from error
    return whole


_NO_SUMS: Final = {"perplexity", "bits_per_byte", "static_bits_per_byte", "extra"}
_SUMS: Final = [each.name for each in fields(Totals) if each.name not in _NO_SUMS]


def _summed(parts: Sequence[Totals | None]) -> Totals | None:
    totals = [part for part in parts if part is not None]
    if len(totals) < len(parts):
        return None
    return Totals(
        **{name: _sum([getattr(part, name) for part in totals]) for name in _SUMS},
        perplexity=_perplexity(totals),
        bits_per_byte=_per_byte([part.bits_per_byte for part in totals], totals),
        static_bits_per_byte=_per_byte([part.static_bits_per_byte for part in totals], totals),
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


class _Frame(NamedTuple):
    seq: int
    text: str
    content: str


class Frames:
    """The frames of one stream into a session, and the answers to them, which come in the same order."""

    def __init__(self, session_id: str, *, learn: bool | None = None, **options: Any) -> None:
        _calls.checked(options, StreamAppendOptions)
        self._learn = learn
        self._name = new_key()
        self._open: deque[_Frame] = deque()
        self._sent = 0
        self._characters = 0
        given = {"stream": self._name} | {name: value for name, value in options.items() if value is not None}
        self.call: Call[AppendResult] = Call(
            method="POST",
            path=f"{_calls.session_path(session_id, 'stream')}?{urlencode(given)}",
            read=partial(_calls.read_append, options.get("scores")),
            headers={"Idempotency-Key": self._name},
            resumable=True,
        )

    @property
    def unacknowledged(self) -> list[str]:
        """What is to be sent again on a new connection, in this order."""
        return [frame.content for frame in self._open]

    def make(self, text: str, *, final: bool = False) -> str:
        """Number a text and give the frame to send."""
        self._sent += 1
        body = {"seq": self._sent, "text": text, "learn": self._learn, "final": final or None}
        frame = _Frame(self._sent, text, encode(body).decode())
        self._open.append(frame)
        return frame.content

    def take(self, message: str | bytes) -> AppendResult | None:
        """Read what the server sent: the answer to the oldest frame, or None where it only greets.

        Raises:
            APIError: what the server closes the connection for.
            ScoresNotStoredError: the frame took effect once, and its scores are not known any more.
            UnreadableAnswerError: the answer is not what this client expects.
        """
        try:
            return self._take(decode_object(message))
        except UnexpectedShape as error:
            raise UnreadableAnswerError(f"a frame cannot be read: {error}", applied="unknown") from error

    def _take(self, fields: dict[str, Any]) -> AppendResult | None:
        match fields.get("type"):
            case "ready":
                return None
            case "error":
                problem = fields.get("problem")
                raise errors.from_problem(problem if isinstance(problem, dict) else {})
            case "scores" if self._open and fields.get("seq") == self._open[0].seq:
                known = {name: value for name, value in fields.items() if name not in ("type", "seq")}
                answer = self.call.read(known)
                self._characters += len(self._open.popleft().text)
                return with_scores(answer)
        raise UnexpectedShape("the server acknowledged what was not sent")

    def progress(self) -> AppendProgress:
        """Say how much of the whole stream is in the session for certain, and what is on its way."""
        under_way = [(frame.text, f"stream:{self._name}:{frame.seq}") for frame in self._open]
        piece, key = under_way[0] if under_way else (None, None)
        return AppendProgress(
            answer=None, characters=self._characters, piece=piece, key=key, following=under_way[1:]
        )
