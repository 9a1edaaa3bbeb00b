"""Server-sent events, decoded without input or output: bytes in, events out.

The decoder follows the WHATWG standard: lines end in CR, LF or CRLF, a line that starts with a colon is a
comment (the server's pings), a blank line ends an event, an event without data is none, and what is
unfinished at the end of the stream is dropped. A chunk may end anywhere, also inside a character.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlstm_client import errors
from rlstm_client._calls import Call
from rlstm_client.errors import StreamInterruptedError, UnreadableAnswerError
from rlstm_client.models import EndEvent, Event, TokenEvent, UnexpectedShape, decode, decode_object


@dataclass(frozen=True, kw_only=True)
class ServerSentEvent:
    """One event as it came over the wire."""

    event: str
    data: str
    id: str = ""


class EventDecoder:
    """Turns chunks of bytes into events; it remembers what is unfinished."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line = ""
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes."""
        events = (self._take(line) for line in self._lines(self._characters.decode(chunk)))
        return [event for event in events if event is not None]

    def _lines(self, text: str) -> Iterator[str]:
        # A CR ends its line at once, so that no event waits for a byte that may never come; an LF right
        # after it, perhaps in the next chunk, belongs to it and is dropped.
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        self._after_cr = text.endswith("\r") or (self._after_cr and not text)
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in whole:
            yield self._line + line
            self._line = ""
        self._line += rest

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        if not data:
            return None
        return ServerSentEvent(event=event or "message", data="\n".join(data), id=self._id)


class EventReader:
    """Turns the chunks of a ``generate`` stream into typed events, and its failures into errors.

    A stream may come over several connections, each of them opened with `call`.
    """

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._decoder = EventDecoder()
        self._open_choices = call.choices
        self._begun = False
        self._last_id = ""

    @property
    def call(self) -> Call[Any]:
        """The call whose answer is the rest of the stream."""
        return self._call.after(self._last_id) if self._last_id else self._call

    @property
    def complete(self) -> bool:
        """Whether every choice has had its end."""
        return self._open_choices <= 0

    @property
    def goes_on(self) -> bool:
        """Whether another connection may bring the rest, and none of it twice."""
        return not self._begun or (self._call.resumable and bool(self._last_id))

    def reconnected(self) -> None:
        """Call this when a new connection was opened: what the last one left unfinished is dropped."""
        self._decoder = EventDecoder()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events of this chunk; raise where the server reports an error.

        Raises:
            APIError: the stream holds an ``error`` event; what came before it was yielded.
            UnreadableAnswerError: an event's data is not what it should be.
        """
        for raw in self._decoder.feed(chunk):
            event = self._typed(raw)
            if event is not None:
                self._open_choices -= isinstance(event, EndEvent)
                self._begun, self._last_id = True, raw.id or self._last_id
                yield event

    def finish(self) -> None:
        """Call this when the connection has ended.

        Raises:
            StreamInterruptedError: a choice had no end event, so the text may not be whole.
        """
        if not self.complete:
            raise StreamInterruptedError(
                "the stream broke off before its end", applied="unknown", request_id=self._call.request_id
            )

    def _typed(self, raw: ServerSentEvent) -> Event | None:
        try:
            match raw.event:
                case "token":
                    return decode(TokenEvent, decode_object(raw.data))
                case "end":
                    return decode(EndEvent, decode_object(raw.data))
                case "error":
                    problem = {"request_id": self._call.request_id, **decode_object(raw.data)}
                    raise errors.from_problem(problem)
        except UnexpectedShape as error:
            raise UnreadableAnswerError(f"an event cannot be read: {error}", applied="unknown") from error
        return None  # an event of a newer server
