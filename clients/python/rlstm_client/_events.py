"""The events of a generation: typed, and asked for again where their stream broke off."""

from typing import Any

from rlstm_client import errors
from rlstm_client._calls import Call
from rlstm_client._http import ServerSentEvent
from rlstm_client.errors import StreamInterruptedError, UnreadableAnswerError
from rlstm_client.models import EndEvent, Event, TokenEvent, UnexpectedShape, decode, decode_object


class EventReader:
    """Turns what a ``generate`` stream sends into typed events, and its failures into errors.

    A stream may come over several connections, each of them opened with `call`.
    """

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
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

    def take(self, sent: ServerSentEvent) -> Event | None:
        """Return an event as it is told, None for one of a newer server's kind.

        Raises:
            APIError: it is an ``error`` event.
            UnreadableAnswerError: its data is not what it should be.
        """
        event = self._typed(sent)
        if event is not None:
            self._open_choices -= isinstance(event, EndEvent)
            self._begun, self._last_id = True, sent.id or self._last_id
        return event

    def finish(self) -> None:
        """Call this when the connection has ended.

        Raises:
            StreamInterruptedError: a choice had no end event, so the text may not be whole.
        """
        if not self.complete:
            raise StreamInterruptedError(
                "the stream broke off before its end", applied="unknown", request_id=self._call.request_id
            )

    def _typed(self, sent: ServerSentEvent) -> Event | None:
        try:
            match sent.event:
                case "token":
                    return decode(TokenEvent, decode_object(sent.data))
                case "end":
                    return decode(EndEvent, decode_object(sent.data))
                case "error":
                    problem = {"request_id": self._call.request_id, **decode_object(sent.data)}
                    raise errors.from_problem(problem)
        except UnexpectedShape as error:
            raise UnreadableAnswerError(f"an event cannot be read: {error}", applied="unknown") from error
        return None
