"""Events of a generation, as they are read."""

from dataclasses import replace
from typing import Any

import pytest

from rlstm_client import _calls
from rlstm_client._calls import Call
from rlstm_client._events import EventReader
from rlstm_client._http import ServerSentEvent
from rlstm_client.errors import (
    APIError,
    InternalError,
    StreamInterruptedError,
    UnreadableAnswerError,
)
from rlstm_client.models import EndEvent, TokenEvent

END = ServerSentEvent(event="end", data='{"finish_reason":"stop","seed":7}')


def call(choices: int = 1) -> Call[Any]:
    return replace(_calls.generate("a", {}, stream=True), request_id="r1", choices=choices)


def test_a_typed_stream() -> None:
    """Tokens and the end become typed events; new kinds of events and new fields do no harm."""
    reader = EventReader(call())
    token = '{"text":"a","id":97,"index":1,"step":2,"logprob":-0.5,"novel":1}'
    sent = [ServerSentEvent(event="token", data=token), ServerSentEvent(event="new", data="x"), END]
    events = [reader.take(each) for each in sent]
    reader.finish()

    assert events == [
        TokenEvent(text="a", id=97, index=1, step=2, logprob=-0.5, extra={"novel": 1}),
        None,
        EndEvent(finish_reason="stop", seed=7),
    ]


def test_every_choice_has_to_end() -> None:
    """The end of one of two choices is not the end of the stream."""
    reader = EventReader(call(choices=2))
    reader.take(END)
    with pytest.raises(StreamInterruptedError):
        reader.finish()

    reader.take(END)
    reader.finish()


def test_an_error_event_of_an_unknown_kind() -> None:
    """A type of a newer server is still an API error; without a status it is the server's fault."""
    with pytest.raises(APIError) as caught:
        EventReader(call()).take(ServerSentEvent(event="error", data='{"type":"brand_new","detail":"d"}'))

    assert caught.value.status == 500
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("data", ["[1]", "not json", '"text"', '{"text":"a"}'])
def test_data_that_is_no_event(data: str) -> None:
    """A token event that is no object, or lacks its id, is named as unreadable."""
    with pytest.raises(UnreadableAnswerError):
        EventReader(call()).take(ServerSentEvent(event="token", data=data))
