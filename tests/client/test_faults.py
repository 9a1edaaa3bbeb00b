"""Both clients against the real application, while the network between loses requests and answers."""

import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlstm_client import _appends, errors
from rlstm_client._http import ArrivingFile

from .conftest import Parts

PIECE_BYTES = 64  # of 4,096, so that reading takes no time
LONG = "é" * 48  # two pieces
FIRST = "é" * 32  # the first of them
READING = {"learn": False}
FROZEN = {"experts": 1, "rate_scale": 0.0, "static": False}
OCTETS = {"content-type": "application/octet-stream"}
EVENTS = {"content-type": "text/event-stream"}
MEGABYTE = bytes(2**20)


@pytest.fixture
def session(client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new session, whose texts travel in short pieces."""
    monkeypatch.setattr(_appends, "PIECE_BYTES", PIECE_BYTES)
    return client.sessions.create(adaptation=FROZEN)


def frame(event: str, **data: Any) -> bytes:
    """Write one server-sent event."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def stream(*parts: bytes, cut: bool = False, **headers: str) -> httpx.Response:
    """An answer in these parts, whole or cut off by a lost connection."""
    return httpx.Response(200, headers=headers or EVENTS, stream=Parts(parts, cut=cut))


def problem(slug: str, status: int) -> bytes:
    """The event that ends a stream with an error."""
    return frame(
        "error", type=f"urn:rlstm:problem:{slug}", status=status, detail="x", applied="yes", version=2
    )


# ---- calls ------------------------------------------------------------------------------------------------


def test_waits_follow_the_server(client: Any, network: Any, waits: list[float]) -> None:
    """A Retry-After is obeyed, and the call then succeeds; after the last attempt the error is raised."""
    network.refuse(503, "overloaded", retry_after=2)
    network.refuse(429, "rate_limited", retry_after=3)
    client.score("a")
    assert waits == [2.0, 3.0]
    network.lose("request", 9)
    with pytest.raises(errors.ConnectionLostError):
        client.score("a")
    assert len(network.requests) == 3 + 4


def test_an_answer_that_may_have_been_lost_stays_open(client: Any, network: Any) -> None:
    """The answer is lost, then no server is reached: whether the text was appended is not known."""

    def refused(*_: Any) -> httpx.Response:
        raise httpx.ConnectError("refused")

    session = client.sessions.create()
    network.lose("answer")
    network.faults.extend([refused] * 3)
    with pytest.raises(errors.CannotConnectError) as caught:
        session.append("a")
    assert caught.value.applied == "unknown"


@pytest.mark.parametrize("fault", ["request", "answer"])
def test_an_append_is_never_sent_with_a_new_key(session: Any, network: Any, fault: str) -> None:
    """Whether request or answer was lost: the repetition has the same key and body, and counts once."""
    network.lose(fault, 2)
    answer = session.append("abc")
    sent = [request for request in network.requests if request.url.path.endswith("/append")]

    assert len({(request.headers["idempotency-key"], request.content) for request in sent}) == 1
    assert (len(sent), session.info().position, answer.version) == (3, 3, 1)
    assert (answer.replayed, len(answer.logprobs)) == (fault == "answer", 3)


@pytest.mark.parametrize(
    "verb", ["create", "fork", "snapshot", "restore", "update", "reset", "import_session"]
)
def test_a_lost_answer_is_asked_for_again_with_the_same_key(client: Any, network: Any, verb: str) -> None:
    """The repetition is word for word the same, so that it takes effect once."""
    session, file = client.sessions.create(), io.BytesIO()
    session.snapshot("here")
    session.export(file)
    file.seek(0)
    calls = {
        "create": client.sessions.create,
        "fork": session.fork,
        "snapshot": lambda: session.snapshot("there"),
        "restore": lambda: session.restore("here"),
        "update": lambda: session.update(ttl_seconds=9),
        "reset": session.reset,
        "import_session": lambda: client.sessions.import_session(file),
    }
    made = len(list(client.sessions.list()))
    network.lose("answer")
    calls[verb]()
    first, again = network.requests[-2:]

    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert (first.url, first.content) == (again.url, again.content)
    assert len(list(client.sessions.list())) == made + (verb in {"create", "fork", "import_session"})


def test_a_lost_delete_is_not_called_harmless(session: Any, network: Any) -> None:
    """It may have been done: no error says that it was not."""
    network.lose("answer", 4)
    with pytest.raises(errors.ConnectionLostError) as caught:
        session.delete()
    assert caught.value.applied == "unknown"


# ---- how far a text came ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_an_append_that_fails_half_way_says_how_far_it_came(session: Any, network: Any, lost: str) -> None:
    """What is in the session, and what may be: with its key that may be appended again, and is there once."""
    network.let_pass()
    network.lose(lost, 4)
    with pytest.raises(errors.ConnectionLostError) as caught:
        session.append(LONG, **READING)
    progress = caught.value.progress

    assert progress is not None
    assert LONG[: progress.characters] == FIRST
    assert progress.answer is not None
    assert (progress.answer.version, progress.key) == (1, network.keys[-1])
    assert session.append(progress.piece, idempotency_key=progress.key, **READING).replayed == (
        lost == "answer"
    )
    assert session.info().position == 96


def test_an_interrupted_append_says_how_far_it_came(session: Any, network: Any) -> None:
    """Ctrl-C too: the part that is in the session does not go unnoticed."""

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    network.let_pass()
    network.faults.append(interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.append(LONG, **READING)
    progress = vars(caught.value)["progress"]

    assert LONG[: progress.characters] == FIRST
    assert (progress.piece, progress.key) == (LONG[32:], network.keys[-1])


def test_a_text_may_be_appended_again_with_its_key(session: Any, network: Any) -> None:
    """A whole append under the caller's own key takes effect once, also after a failure half way."""
    network.let_pass()
    network.refuse(500, "internal_error")
    with pytest.raises(errors.InternalError):
        session.append(LONG, idempotency_key="mine", **READING)
    answer = session.append(LONG, idempotency_key="mine", **READING)

    assert (answer.version, answer.position, answer.replayed, len(answer.ids)) == (2, 96, True, 96)
    assert not session.append("a", idempotency_key="mine-1").replayed


def test_a_key_may_be_as_long_for_a_long_text_as_for_a_short_one(session: Any) -> None:
    """The pieces' keys are no longer than the text's, and one that is too long is found before the first."""
    with pytest.raises(errors.RequestError):
        session.append(LONG, idempotency_key="k" * 201)
    assert session.info().position == 0
    assert session.append(LONG, idempotency_key="k" * 200, **READING).position == 96


# ---- repeats whose scores are no longer stored ------------------------------------------------------------


def without_scores(request: httpx.Request, forward: Any) -> httpx.Response:
    """What a server answers to a repeat when it has dropped the scores of the first answer."""
    response = forward()
    content = json.loads(response.read())
    left = {
        name: content[name] for name in content if name not in {"totals", "ids", "logprobs", "starts", "ends"}
    }
    return httpx.Response(200, json={**left, "ids": None, "replayed": True, "scores_stored": False})


def test_scores_that_are_no_longer_stored_are_an_error(session: Any, network: Any) -> None:
    """It says that the text is in the session, and where that stands; no number stands for a token."""
    session.append("abc", idempotency_key="k")
    network.faults.append(without_scores)
    with pytest.raises(
        errors.ScoresNotStoredError, match="applied; its scores are no longer stored"
    ) as caught:
        session.append("abc", idempotency_key="k")

    assert (caught.value.applied, caught.value.facts) == ("yes", {"version": 1, "position": 3})
    session.append("abc", idempotency_key="of-none", scores="none")
    network.faults.append(without_scores)
    assert session.append("abc", idempotency_key="of-none", scores="none").replayed


def test_a_text_is_whole_in_the_session_although_its_scores_are_not(session: Any, network: Any) -> None:
    """The pieces behind one whose scores are gone are appended, and none of their scores moves forward."""
    network.let_pass()
    network.refuse(500, "internal_error")
    with pytest.raises(errors.InternalError):
        session.append(LONG, idempotency_key="mine", **READING)
    network.faults.append(without_scores)
    with pytest.raises(errors.ScoresNotStoredError) as caught:
        session.append(LONG, idempotency_key="mine", **READING)

    assert caught.value.facts == {"version": 2, "position": 96}
    assert session.info().position == 96


def test_a_generation_and_a_first_text_may_have_lost_theirs_too(
    client: Any, session: Any, network: Any
) -> None:
    """Each says so in its own way: an error, or the mark in the answer about the session that was made."""
    network.faults.append(without_scores)
    with pytest.raises(errors.ScoresNotStoredError):
        session.generate(commit=True, max_tokens=2)
    made = {"id": "s", "version": 1, "position": 3, "replayed": True}
    network.answer(
        httpx.Response(201, json={**made, "append": {"version": 1, "position": 3, "replayed": True}})
    )
    assert client.sessions.create(text="abc").created.append.scores_stored is False


def test_columns_that_are_too_short_are_no_answer(client: Any, session: Any, network: Any) -> None:
    """A number never stands for another token than its own: such an answer is refused."""

    def shortened(request: httpx.Request, forward: Any) -> httpx.Response:
        content = json.loads(forward().read())
        part = content["items"][0] if "items" in content else content
        part["logprobs"] = part["logprobs"][:-1]
        return httpx.Response(200, json=content)

    network.faults.extend([shortened, shortened])
    with pytest.raises(errors.UnreadableAnswerError, match="columns of 3 tokens"):
        session.append("abc")
    with pytest.raises(errors.UnreadableAnswerError, match="columns of 3 tokens"):
        client.score("abc")


# ---- streams of events ------------------------------------------------------------------------------------


def test_a_stream_that_is_refused(client: Any, network: Any) -> None:
    """A wrong field is an error in place of the first event; a proxy's page is no stream."""
    with pytest.raises(errors.InvalidFieldError) as caught:
        list(client.generate_stream("a", top_p=7.0))
    assert caught.value.facts["field"] == "top_p"
    network.answer(httpx.Response(200, headers={"content-type": "text/html"}, content=b"<p>"))
    with pytest.raises(errors.UnreadableAnswerError, match="not text/event-stream"):
        list(client.generate_stream("a"))


def test_a_stream_may_be_cut_anywhere(client: Any, network: Any) -> None:
    """Inside a character and at a line end; no other character ends a line, and a ping is no event."""
    text = "é\u2028🙂\x85"
    token = json.dumps({"text": text, "id": 1}, ensure_ascii=False)
    sent = f"event: token\ndata: {token}\n\n".encode() + frame("end", finish_reason="stop")
    whole = b": ping\r\n\r\n" + sent.replace(b"\n", b"\r\n")
    network.answer(stream(*(whole[at : at + 1] for at in range(len(whole)))))
    first, end = client.generate_stream("a")

    assert (first.text, end.finish_reason) == (text, "stop")


def test_a_stream_is_opened_again_before_its_first_event(
    client: Any, network: Any, waits: list[float]
) -> None:
    """A connection that is lost before any event came, or an error as the first one, costs a repetition."""
    overloaded = frame("error", type="overloaded", status=503, applied="no", detail="x", retry_after=1)
    network.lose("request")
    network.answer(stream(b": ping\n\n", cut=True), stream(overloaded))
    assert len(list(client.generate_stream("a", max_tokens=3))) == 4
    assert len({request.content for request in network.requests}) == 1
    assert len(waits) == 3


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_is_never_repeated_after_its_first_event(client: Any, network: Any, cut: bool) -> None:
    """What has been seen cannot be unseen: a stream that breaks off is an error after what it gave."""
    network.answer(stream(frame("token", text="a", id=1), cut=cut))
    events = iter(client.generate_stream("a"))

    assert next(events).text == "a"
    with pytest.raises(errors.NoAnswerError):
        next(events)
    assert len(network.requests) == 1


def breaking(events: int, last: bytes | None) -> Any:
    """Pass on what the server sends up to so many events, then break off, or end with an error."""

    def fault(request: httpx.Request, forward: Any) -> httpx.Response:
        response = forward()
        whole = [part + b"\n\n" for part in response.read().split(b"\n\n") if b"data:" in part]
        return stream(*whole[:events], *([last] if last else []), cut=last is None)

    return fault


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
def test_a_kept_text_whose_stream_breaks_off_goes_on(session: Any, network: Any, last: bytes | None) -> None:
    """The same request with the same key asks for what comes after the last event; nothing comes twice."""
    network.faults.extend([breaking(3, last), breaking(2, last)])
    events = list(session.generate_stream(commit=True, max_tokens=8, temperature=0.5, seed=3))
    sent = [request for request in network.requests if request.url.path.endswith("/generate")]

    assert [event.step for event in events[:-1]] == list(range(8))
    assert events[-1].position == session.info().position == 8
    assert [bool(request.headers.get("last-event-id")) for request in sent] == [False, True, True]
    assert len({(request.headers["idempotency-key"], request.content) for request in sent}) == 1


def test_attempts_without_progress_are_bounded(session: Any, network: Any, waits: list[float]) -> None:
    """A server that never gets further is given up; each event that comes starts the count anew."""
    options: dict[str, Any] = {"commit": True, "max_tokens": 8}
    network.faults.extend([breaking(count, None) for count in (1, 0, 0, 1, 0, 0, 1)])
    assert len(list(session.generate_stream(**options))) == 9
    assert len(waits) == 7
    network.faults.extend([breaking(4, None)] + [breaking(0, None)] * 9)
    with pytest.raises(errors.ConnectionLostError):
        list(session.generate_stream(**options))


@pytest.mark.parametrize(
    ("slug", "status", "error"),
    [
        ("conflict", 409, errors.ConflictError),
        ("session_deleted", 410, errors.SessionDeletedError),
        ("in_flight", 409, errors.InFlightError),
        ("durability_not_reached", 503, errors.DurabilityNotReachedError),
        ("internal_error", 500, errors.InternalError),
    ],
)
def test_what_cannot_go_on_is_told(session: Any, network: Any, slug: str, status: int, error: Any) -> None:
    """A text that another request changed, took over or ended is not asked for again."""
    network.faults.append(breaking(3, problem(slug, status)))
    with pytest.raises(error) as caught:
        list(session.generate_stream(commit=True, max_tokens=8))
    assert (caught.value.applied, caught.value.facts["version"]) == ("yes", 2)


@pytest.mark.parametrize("ids", [True, False])
def test_nothing_goes_on_that_could_come_twice(session: Any, network: Any, ids: bool) -> None:
    """Neither a text that the session does not keep, nor one whose events have no ids."""
    network.answer(stream(*([b"id: e0\n"] if ids else []), frame("token", text="a", id=1), cut=True))
    with pytest.raises(errors.ConnectionLostError):
        list(session.generate_stream(commit=not ids))


def test_a_break_after_the_end_is_none(session: Any, network: Any) -> None:
    """Once the end has come the text is whole, however the connection ends."""
    network.faults.append(breaking(9, None))
    assert len(list(session.generate_stream(commit=True, max_tokens=3))) == 4


# ---- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_breaks_off_is_fetched_again(
    session: Any, network: Any, tmp_path: Path, opened: bool
) -> None:
    """Nothing of the first part stays in what is written; one that never comes whole is not written."""
    path, file = tmp_path / "session.rlstm", io.BytesIO()
    to: Any = file if opened else path
    path.write_bytes(b"old")
    network.answer(*[stream(b"part", cut=True, **OCTETS) for _ in range(4)])
    with pytest.raises(errors.ConnectionLostError):
        session.export(to)
    network.refuse(409, "model_mismatch")
    with pytest.raises(errors.ModelMismatchError):
        session.export(to)
    network.answer(httpx.Response(200, headers={"content-type": "text/html"}, content=b"hi"))
    with pytest.raises(errors.UnreadableAnswerError):
        session.export(to)
    assert (file.getvalue(), [one.read_bytes() for one in tmp_path.iterdir()]) == (b"", [b"old"])
    network.answer(stream(b"a longer part", cut=True, **OCTETS), stream(b"the ", b"file", **OCTETS))
    session.export(to)
    assert (file.getvalue() if opened else path.read_bytes()) == b"the file"


@pytest.mark.parametrize("opened", [False, True])
def test_a_large_file_is_not_held_in_memory(session: Any, network: Any, tmp_path: Path, opened: bool) -> None:
    """64 MB pass through a few."""
    path = tmp_path / "session.rlstm"
    network.answer(stream(*[MEGABYTE] * 64, **OCTETS))
    tracemalloc.start()
    if opened:
        with path.open("wb") as file:
            session.export(file)
    else:
        session.export(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size == 64 * 2**20
    assert peak < 8 * 2**20


def test_a_device_is_written_into_and_a_link_leads_to_what_is_replaced(tmp_path: Path) -> None:
    """Neither gives its place to a file of ours."""
    device, link, file = tmp_path / "device", tmp_path / "link", tmp_path / "file"
    os.mkfifo(device)
    link.symlink_to(file)
    reading = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    for place in (device, link):
        with ArrivingFile(place) as arriving:
            arriving.partial.write(b"whole")
            arriving.keep()
    assert os.read(reading, 9) == file.read_bytes() == b"whole"
    os.close(reading)
    assert (device.is_fifo(), link.is_symlink()) == (True, True)


def test_a_file_has_its_name_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the name leads to the old file or to the whole new one."""
    done: list[Any] = []
    rename = Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(Path, "replace", lambda partial, to: (done.append("renamed"), rename(partial, to))[1])
    with ArrivingFile(tmp_path / "session.rlstm") as file:
        file.partial.write(b"whole")
        file.keep()
    assert done == [5, "renamed"]
