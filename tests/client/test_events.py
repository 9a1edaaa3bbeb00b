"""The decoder of server-sent events."""

import codecs
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import _calls
from rlstm_client._calls import Call
from rlstm_client._events import EventDecoder, EventReader, ServerSentEvent
from rlstm_client.errors import (
    APIError,
    DrainingError,
    InternalError,
    StreamInterruptedError,
    UnreadableAnswerError,
)
from rlstm_client.models import EndEvent, TokenEvent

LINES = st.sampled_from(
    [
        "data: é🙂",
        "data:x",
        "data",
        "event: token",
        "event:",
        "id: 7",
        ": ping",
        "retry: 9",
        "other: z",
        "",
        "",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"]))).map(
    lambda parts: "".join(line + end for line, end in parts).encode()
)


def call(choices: int = 1) -> Call[Any]:
    return replace(_calls.generate("a", {}, stream=True), request_id="r1", choices=choices)


def reference(stream: bytes) -> list[ServerSentEvent]:
    """Decode a whole stream at once, as the standard's prose says."""
    text = stream.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    events, event, data, last_id = [], "", [], ""
    for line in text.split("\n")[:-1]:
        if line == "":
            if data:
                events.append(ServerSentEvent(event=event or "message", data="\n".join(data), id=last_id))
            event, data = "", []
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last_id = value
    return events


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in pairwise(places)]


@given(STREAMS, st.lists(st.integers(0, 10_000)))
def test_a_stream_may_be_cut_anywhere(stream: bytes, cuts: list[int]) -> None:
    """Any cut of the bytes, also inside a character or a CRLF, gives the events of the whole."""
    decoder = EventDecoder()
    events = [event for piece in pieces_of(stream, cuts) for event in decoder.feed(piece)]

    assert events == reference(stream)


@given(STREAMS)
def test_an_event_is_there_as_soon_as_its_last_byte(stream: bytes) -> None:
    """Fed byte by byte, no event waits for a byte after the one that ends it."""
    decoder, seen = EventDecoder(), 0
    for end in range(1, len(stream) + 1):
        seen += len(decoder.feed(stream[end - 1 : end]))
        if stream[end - 1 : end] in b"\r\n":
            assert seen == len(reference(stream[:end]))


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """A stream may start with a byte order mark."""
    assert [e.data for e in EventDecoder().feed(codecs.BOM_UTF8 + b"data: a\n\n")] == ["a"]


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    """A broken byte becomes the replacement character; what follows is read."""
    events = EventDecoder().feed(b"data: \xff\n\ndata: b\n\n")

    assert [event.data for event in events] == ["�", "b"]


def test_a_typed_stream() -> None:
    """Tokens and the end become typed events; new kinds of events and new fields do no harm."""
    reader = EventReader(call())
    stream = (
        b": ping\n\n"
        b'event: token\ndata: {"text":"a","id":97,"index":1,"step":2,"logprob":-0.5,"novel":1}\n\n'
        b'event: novelty\ndata: {"x":1}\n\n'
        b'event: end\ndata: {"finish_reason":"stop","seed":7}\n\n'
    )
    events = list(reader.feed(stream))
    reader.finish()

    assert events == [
        TokenEvent(text="a", id=97, index=1, step=2, logprob=-0.5, extra={"novel": 1}),
        EndEvent(finish_reason="stop", seed=7),
    ]


def test_every_choice_has_to_end() -> None:
    """The end of one of two choices is not the end of the stream."""
    reader = EventReader(call(choices=2))
    end = b'event: end\ndata: {"finish_reason":"stop"}\n\n'
    list(reader.feed(end))
    with pytest.raises(StreamInterruptedError):
        reader.finish()

    list(reader.feed(end))
    reader.finish()


def test_an_error_event_is_raised_after_what_came_before_it() -> None:
    """Tokens in the same chunk are handed out, then the typed error is raised with the server's own words."""
    document = {"type": "urn:rlstm:problem:draining", "status": 503, "detail": "going down", "applied": "yes"}
    chunk = b'event: token\ndata: {"text":"a","id":1}\n\nevent: error\ndata: %s\n\n'
    events = EventReader(call()).feed(chunk % json.dumps(document).encode())

    assert next(events) == TokenEvent(text="a", id=1)
    with pytest.raises(DrainingError) as caught:
        next(events)
    assert (caught.value.applied, caught.value.status, caught.value.request_id) == ("yes", 503, "r1")


def test_an_error_event_of_an_unknown_kind() -> None:
    """A type of a newer server is still an API error; without a status it is the server's fault."""
    with pytest.raises(APIError) as caught:
        list(EventReader(call()).feed(b'event: error\ndata: {"type":"brand_new","detail":"d"}\n\n'))
    assert caught.value.status == 500
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("data", ["[1]", "not json", '"text"', '{"text":"a"}'])
def test_data_that_is_no_event(data: str) -> None:
    """A token event that is no object, or lacks its id, is named as unreadable."""
    with pytest.raises(UnreadableAnswerError):
        list(EventReader(call()).feed(f"event: token\ndata: {data}\n\n".encode()))
