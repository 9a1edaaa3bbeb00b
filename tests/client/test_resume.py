"""A kept text whose stream breaks off goes on where it stopped, whatever broke it."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rlstm_client import errors

TEXT = "once upon a time"


def frames(after: str | None, *, until: int | None = None, ids: bool = True) -> list[bytes]:
    """The events of the text after the one with this id, and its end unless it is cut before."""
    start = 0 if after is None else int(after.removeprefix("e")) + 1
    made = [
        (f"id: e{step}\n" if ids else "").encode()
        + _event("token", step=step, id=97, text=TEXT[step], index=0)
        for step in range(start, len(TEXT) if until is None else until)
    ]
    return made if until is not None else [*made, _event("end", index=0, finish_reason="length", version=4)]


def _event(event: str, **data: Any) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def problem(slug: str, status: int) -> bytes:
    return _event(
        "error", type=f"urn:rlstm:problem:{slug}", status=status, detail="x", applied="yes", version=2
    )


@pytest.fixture
def keep(client: Any, server: Any) -> Callable[..., str]:
    """Give what has a text written by a server that breaks off as told, each time at a later token."""
    session = client.sessions.create()
    server.requests.clear()

    def broken(
        until: int, last: bytes | None, *, ids: bool = True
    ) -> Callable[[httpx.Request], httpx.Response]:
        def answer(request: httpx.Request) -> httpx.Response:
            shown = frames(request.headers.get("last-event-id"), until=until, ids=ids)
            return server.event_stream(shown + ([last] if last else []), cut=last is None)

        return answer

    def whole(request: httpx.Request) -> httpx.Response:
        return server.event_stream(frames(request.headers.get("last-event-id")))

    def text(*breaks: tuple[int, bytes | None], ids: bool = True, **options: Any) -> str:
        server.faults.extend(broken(until, last, ids=ids) for until, last in breaks)
        server.faults.append(whole)
        events = list(session.generate(stream=True, **({"commit": True} | options)))
        assert events[-1].version == 4
        return "".join(event.text for event in events[:-1])

    return text


@pytest.mark.parametrize(
    "last",
    [
        None,
        problem("draining", 503),
        problem("overloaded", 503),
        problem("store_unavailable", 503),
        problem("slow_consumer", 408),
        problem("outcome_unknown", 504),
    ],
)
def test_a_broken_stream_goes_on(keep: Callable[..., str], server: Any, last: bytes | None) -> None:
    """The same request with the same key asks for what comes after the last event; nothing comes twice."""
    assert keep((5, last), (9, last)) == TEXT
    sent = server.requests
    assert [request.headers.get("last-event-id") for request in sent] == [None, "e4", "e8"]
    assert len({(request.headers["idempotency-key"], request.content) for request in sent}) == 1


def test_attempts_without_progress_are_bounded(
    keep: Callable[..., str], server: Any, waits: list[float]
) -> None:
    """A server that never gets further is given up; each event that comes starts the count anew."""
    assert keep(*[(step, None) for step in (1, 1, 1, 2, 2, 2, 3)]) == TEXT
    assert len(waits) == 7
    with pytest.raises(errors.ConnectionLostError):
        keep(*[(4, None)] * 9)


def test_a_refusal_in_between_is_waited_for(
    keep: Callable[..., str], server: Any, waits: list[float]
) -> None:
    """Where the next connection is refused, the one after it still asks for the rest."""
    server.faults.append(lambda _: server.event_stream(frames(None, until=3), cut=True))
    server.refuse(503, "draining")
    server.lose("request")
    assert keep() == TEXT
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "e2", "e2", "e2"]


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (problem("conflict", 409), errors.ConflictError),
        (problem("session_deleted", 410), errors.SessionDeletedError),
        (problem("in_flight", 409), errors.InFlightError),
        (problem("durability_not_reached", 503), errors.DurabilityError),
        (problem("internal_error", 500), errors.InternalError),
    ],
)
def test_what_cannot_go_on_is_told(
    keep: Callable[..., str], server: Any, last: bytes, error: type[errors.APIError]
) -> None:
    """A text that another request changed, took over or ended is not asked for again."""
    with pytest.raises(error) as caught:
        keep((5, last))
    assert (caught.value.applied, caught.value.facts["version"]) == ("yes", 2)
    assert len(server.requests) == 1


@pytest.mark.parametrize("options", [{"commit": False}, {"ids": False}])
def test_nothing_goes_on_that_could_come_twice(
    keep: Callable[..., str], server: Any, options: dict[str, bool]
) -> None:
    """Neither a text that nobody keeps, nor one whose events have no ids."""
    with pytest.raises(errors.ConnectionLostError):
        keep((5, None), **options)
    assert len(server.requests) == 1


def test_a_break_after_the_end_is_none(client: Any, server: Any) -> None:
    """Once the end has come the text is whole, however the connection ends."""
    session = client.sessions.create()
    server.faults.append(lambda _: server.event_stream(frames(None), cut=True))
    events = list(session.generate(stream=True, commit=True))
    assert [event.text for event in events[:-1]] == list(TEXT)


def test_a_gathered_text_goes_on_too(client: Any, server: Any, waits: list[float]) -> None:
    """Without a stream the same call with the same key is sent again, also when part of the text is kept."""
    session = client.sessions.create()
    server.refuse(503, "draining", applied="yes", version=2)
    assert session.generate(commit=True).text == "h\u00e9llo"
    assert len({request.headers["idempotency-key"] for request in server.requests[1:]}) == 1
