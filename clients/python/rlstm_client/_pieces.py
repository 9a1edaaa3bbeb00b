"""Long text becomes appends of at most 4,096 bytes, and their answers one answer. No input, no output.

A piece never ends inside a character. Each has its own idempotency key, so a repetition after a lost answer
repeats one piece and no more.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from rlstm_client import _wire
from rlstm_client._call import Call
from rlstm_client.errors import AppendProgress, RequestError
from rlstm_client.models import AppendResult, Totals

PIECE_BYTES = 4096
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


class PieceBuffer:
    """Gathers a stream of texts into pieces.

    gather_bytes  text is held until there is this much of it; 1 sends everything at once
    hold_last     holds the newest piece until the next exists, so that the last one can be marked as final
    """

    def __init__(self, gather_bytes: int, *, hold_last: bool) -> None:
        self._gather_bytes = gather_bytes
        self._held_pieces = 1 if hold_last else 0
        self._parts: list[str] = []
        self._bytes = 0
        self._pieces: list[str] = []
        self._acknowledged = 0

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

    def acknowledge(self, piece: str) -> None:
        """Note that a piece is in the session."""
        self._acknowledged += len(piece)

    def progress(self, failed: AppendProgress | None) -> AppendProgress | None:
        """Return how far the stream had come when a piece failed, of which ``failed`` tells."""
        return failed and replace(failed, characters=self._acknowledged + failed.characters)

    def _gather(self) -> None:
        if self._parts:
            self._pieces += cut("".join(self._parts))
        self._parts, self._bytes = [], 0


class AppendPlan:
    """The calls that append one text, and the sum of their answers.

    Iterate over the plan, send each call and `add` its answer before taking the next: with ``if_match`` every
    piece must find the session as the piece before left it. A key given by the caller names the whole text:
    the pieces' keys are derived from it, so the whole append may be repeated with it.
    """

    def __init__(
        self,
        session_id: str,
        text: str,
        *,
        final: bool | None = None,
        if_match: int | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> None:
        self._pieces = cut(text)
        self._final = final
        self._if_match = if_match
        self._key = idempotency_key
        self._session_id = session_id
        self._options = options
        self._answers: list[AppendResult] = []
        if (last_key := self._piece_key(len(self._pieces) - 1)) is not None:
            _wire.checked_key(last_key)  # the longest: nothing is sent of a text whose end could not be

    def __iter__(self) -> Iterator[Call[AppendResult]]:
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            yield _wire.append(
                self._session_id,
                piece,
                final=self._final if index == last else None,
                if_match=self._version(),
                idempotency_key=self._piece_key(index),
                **self._options,
            )

    def add(self, answer: AppendResult) -> None:
        """Take the answer of the call that was iterated last."""
        self._answers.append(answer)

    def progress(self, failed: Call[AppendResult]) -> AppendProgress:
        """Return how far the text had come when this call failed."""
        return AppendProgress(
            answer=self.result if self._answers else None,
            characters=sum(len(piece) for piece in self._pieces[: len(self._answers)]),
            key=failed.headers["Idempotency-Key"],
        )

    @property
    def result(self) -> AppendResult:
        """The answers so far as one."""
        return combine(self._answers)

    def _version(self) -> int | None:
        if self._if_match is None or not self._answers:
            return self._if_match
        return self._answers[-1].version

    def _piece_key(self, index: int) -> str | None:
        return f"{self._key}-{index}" if self._key is not None and index else self._key


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
