"""Both clients, one after the other, against the fake server."""

from typing import Any

import httpx
import pytest

from rlstm_client import Client, errors
from rlstm_client.models import EndEvent, TokenEvent


def test_score(client: Any, server: Any) -> None:
    """A text comes back as columns and sums, with the names of the numbers."""
    result = client.score("ab", unit="bits")

    assert (result.model, result.unit, result.items[0].ids) == ("fake", "bits", (97, 98))
    assert result.items[0].totals.logprob == -2.0


def test_score_items(client: Any) -> None:
    """Items come back in their order, with their ids."""
    items = client.score(items=[{"id": "x", "text": "a"}, {"text": "bc"}], scores="totals").items

    assert [(item.id, item.totals.tokens, item.ids) for item in items] == [("x", 1, ()), ("1", 2, ())]


def test_operations(client: Any) -> None:
    """Health, information and metrics."""
    info = client.info()

    assert (client.live().status, client.ready().status, client.metrics()) == ("ready", "ready", "up 1\n")
    assert (info.model, info.limits, info.extra) == ({"name": "fake"}, {"items": 256}, {"novel": 1})


def test_generate(client: Any) -> None:
    """Without a stream the whole text comes at once; null log-probabilities are none."""
    generation = client.generate("a", seed=5)

    assert (generation.text, generation.seed, generation.logprobs) == ("héllo", 5, ())


def test_generate_as_a_stream(client: Any) -> None:
    """With a stream the events come one by one and end with an end."""
    *tokens, end = client.generate("a", stream=True)

    assert "".join(token.text for token in tokens) == "héllo"
    assert end == EndEvent(finish_reason="length")


def test_a_refused_stream_is_refused_at_once(client: Any, server: Any) -> None:
    """A wrong field is an error of the call, not of the first event."""
    server.refuse(422, "invalid_field", field="top_p")
    with pytest.raises(errors.InvalidFieldError) as caught:
        client.generate("a", stream=True)

    assert caught.value.facts == {"field": "top_p"}
    assert len(server.requests) == 1


def test_a_stream_is_opened_again_before_its_first_event(
    client: Any, server: Any, waits: list[float]
) -> None:
    """A connection that is lost before any event came costs a repetition, with the same body."""
    server.lose("request")
    server.faults.append(lambda _: server.event_stream([b": ping\n\n"], cut=True))
    events = list(client.generate("a", stream=True))

    assert len(events) == 6
    assert len({request.content for request in server.requests}) == 1
    assert len(waits) == 2


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_is_never_repeated_after_its_first_event(client: Any, server: Any, cut: bool) -> None:
    """What has been seen cannot be unseen: a stream that breaks off is an error after what it gave."""
    begun = [server.frame("token", {"text": "a", "id": 1})]
    server.faults.append(lambda _: server.event_stream(begun, cut=cut))
    events = iter(client.generate("a", stream=True))

    assert next(events) == TokenEvent(text="a", id=1)
    with pytest.raises(errors.NoAnswerError):
        next(events)
    assert len(server.requests) == 1


def test_an_error_event_that_may_pass_is_repeated_only_at_the_start(client: Any, server: Any) -> None:
    """An error as the first event is an answer like any other: what is not applied may be asked again."""
    document = {"type": "overloaded", "status": 503, "applied": "no", "detail": "x", "retry_after": 1}
    server.faults.append(lambda _: server.event_stream([server.frame("error", document)]))

    assert len(list(client.generate("a", stream=True))) == 6
    assert len(server.requests) == 2


def test_a_page_in_place_of_a_stream(client: Any, server: Any) -> None:
    """A success that is no stream of events is not iterated over."""
    server.faults.append(lambda _: httpx.Response(200, headers={"content-type": "text/html"}, content=b"<p>"))
    with pytest.raises(errors.UnreadableAnswerError, match="not text/event-stream"):
        client.generate("a", stream=True)


def test_closing_a_stream_early(client: Any, server: Any) -> None:
    """A closed stream gives no more events, and the client goes on working."""
    events = client.generate("a", stream=True)
    events.close()

    assert list(events) == []
    assert client.live().status == "ready"


def test_waits_follow_the_server(client: Any, server: Any, waits: list[float]) -> None:
    """A Retry-After is obeyed, and the call then succeeds."""
    server.refuse(503, "overloaded", retry_after=2)
    server.refuse(429, "rate_limited", retry_after=3)
    client.score("a")

    assert waits == [2.0, 3.0]


def test_retries_end(client: Any, server: Any) -> None:
    """After the last attempt the error is raised as it is."""
    for _ in range(9):
        server.lose("request")
    with pytest.raises(errors.ConnectionLostError):
        client.score("a")

    assert len(server.requests) == 4


def test_no_session_is_made_twice(client: Any, server: Any) -> None:
    """A create whose answer was lost is repeated with its key and gives the session that was made."""
    server.lose("answer")
    session = client.sessions.create(name="n")

    assert list(server.texts) == [session.id]
    assert (session.created.name, session.created.replayed) == ("n", True)


def test_the_key_of_the_api(server: Any) -> None:
    """The API key is a bearer token on every request."""
    transport = httpx.MockTransport(server)
    with (
        Client("http://host/base", api_key="secret", transport=transport) as client,
        pytest.raises(errors.NotFoundError),
    ):
        client.live()

    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].url.path == "/base/health/live"
