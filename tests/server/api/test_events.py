import asyncio
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest

from rlstm_server.api.generate import NamedEvents, open_stream
from rlstm_server.api.tracing import Trace
from rlstm_server.errors import Draining, Gone, InFlight, OutcomeUnknown, SlowConsumer, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import EndEvent, TokenEvent
from rlstm_server.settings import Limits

END = EndEvent(choice=0, finish_reason="length", prompt_tokens=1, completion_tokens=2, seed=0)


def token(index):
    return TokenEvent(choice=0, index=index, id=97, text="a", logprob=-1.0)


def describe(event):
    return {"end": True} if isinstance(event, EndEvent) else {"step": event.index}


class Source:
    """Events with pauses and faults between them, some at once; remembers whether it was closed."""

    def __init__(self, *steps):
        self.steps = steps
        self.closed = False

    async def events(self):
        """Give the steps one by one."""
        try:
            for step in self.steps:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step if isinstance(step, list) else [step]
        finally:
            self.closed = True


async def stream(source, trace, metrics=None, ping=5.0):
    limits = Limits(ping_seconds=ping)
    context = SimpleNamespace(trace=trace, metrics=metrics or Metrics(), limits=limits)
    return await open_stream(source.events(), NamedEvents(describe), context)


async def frames(source, trace=None, **options):
    """Run a stream to its end and give its frames as (event, data); a comment is (None, text)."""
    return [parsed(frame) for frame in await bodies(source, trace, **options)]


async def bodies(source, trace=None, **options):
    """Run a stream to its end and give the chunks of its body."""
    response = await stream(source, trace or Trace(request_id="r"), **options)
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))

    await response({"type": "http"}, None, send)
    return [frame for frame in sent if frame]


def parsed(frame):
    assert frame.endswith(b"\n\n")
    lines = frame.decode().strip().split("\n")
    if lines[0].startswith(":"):
        return None, lines[0]
    name, data = lines
    return name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))


async def test_a_silence_is_filled_with_comments():
    """Before the first token and between two; no event is lost by it."""
    found = await frames(Source(0.25, token(0), 0.25, token(1), END), ping=0.1)
    names = [name for name, _ in found]
    assert [name for name in names if name] == ["token", "token", "end"]
    assert names[0] is None
    assert None in names[names.index("token") : -2]


async def test_a_fault_before_the_first_event_is_an_error_with_a_status():
    """Nothing has been sent yet, so the answer can still be a problem document."""
    source = Source(StoreUnavailable("down"))
    with pytest.raises(StoreUnavailable):
        await stream(source, Trace(request_id="r"))
    assert source.closed


@pytest.mark.parametrize(
    ("after", "kind", "outcome"),
    [
        ([token(1), END], None, "ok"),
        ([], "internal_error", "server_error"),
        ([Draining("going down")], "draining", "rejected"),
        ([Gone("deleted")], "session_deleted", "client_error"),
        ([SlowConsumer("nobody reads")], "slow_consumer", "cancelled"),
        ([InFlight("the text goes on in a newer request")], "in_flight", "cancelled"),
        ([StoreUnavailable("down")], "store_unavailable", "rejected"),
        ([OutcomeUnknown("who knows")], "outcome_unknown", "server_error"),
        ([RuntimeError("canary")], "internal_error", "server_error"),
    ],
)
async def test_a_stream_ends_with_its_text_or_with_an_error(after, kind, outcome):
    """The status was sent long before. Of a fault of ours only the request is told."""
    trace, source = Trace(request_id="r9", status=200), Source(token(0), *after)
    first, *between, (name, last) = await frames(source, trace)
    assert (first, between) == (("token", {"step": 0}), [("token", {"step": 1})] if kind is None else [])
    told = last.get("type", "").rpartition(":")[2]
    assert (name, told) == (("end", "") if kind is None else ("error", kind))
    assert kind is None or last["request_id"] == "r9"
    assert "canary" not in str(last)
    assert isinstance(trace.fault, RuntimeError) == ("canary" in str(after))
    assert (trace.outcome, source.closed) == (outcome, True)


async def test_a_mark_is_the_id_of_its_event():
    """By it a reader says what he has; events without one have no id."""
    sent = await bodies(Source(replace(token(0), mark="0.0.0.ab"), token(1), END))
    assert [b"id: 0.0.0.ab\n" in frame for frame in sent] == [True, False, False]
    assert not any(b"id:" in frame for frame in sent[1:])


async def test_what_is_there_at_once_is_sent_at_once():
    """In one chunk of the body, every event whole."""
    alone = await bodies(Source(token(0), token(1), END))
    assert await bodies(Source([token(0), token(1)], END)) == [alone[0] + alone[1], alone[2]]


async def test_a_stream_left_early_closes_its_source():
    """The work behind it ends with its reader."""
    source = Source(token(0), 60.0, token(1))
    response = await stream(source, Trace(request_id="r"))
    arrived = asyncio.Event()

    async def send(message):
        if message.get("body"):
            arrived.set()

    work = asyncio.ensure_future(response({"type": "http"}, None, send))
    await arrived.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert source.closed


async def test_a_gap_is_between_two_tokens_of_one_choice():
    """Two choices that take turns: how fast each is read, and not how they happen to be mixed."""
    metrics = Metrics()
    mixed = [replace(token(index), choice=choice) for index in range(3) for choice in range(2)]
    await frames(Source(*mixed, END), metrics=metrics)
    text = metrics.exposition()[0].decode()
    assert "rlstm_time_to_first_token_seconds_count 1.0" in text
    assert "rlstm_inter_token_seconds_count 4.0" in text
