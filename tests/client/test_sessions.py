"""Sessions of both clients."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rlstm_client import errors

LONG = "é" * 5000  # 10,000 bytes: three pieces


def keys(server: Any) -> list[str]:
    return [r.headers["idempotency-key"] for r in server.requests if r.url.path.endswith("/append")]


def test_append(client: Any) -> None:
    """An append tells what the text cost, static and adapted, and where the session stands."""
    session = client.sessions.create()
    answer = session.append("abc")

    assert (answer.version, answer.position, answer.updates, answer.durability) == (1, 3, 1, "fsync")
    assert (answer.totals.static_logprob, answer.totals.logprob, answer.totals.gain) == (-6.0, -3.0, 3.0)
    assert session.info().version == 1


def test_a_long_text_travels_in_pieces(client: Any, server: Any) -> None:
    """The server gets pieces with keys of their own; the caller sees one text and one answer."""
    session = client.sessions.create()
    answer = session.append(LONG, scores="tokens")

    assert server.texts[session.id] == LONG
    assert (answer.version, len(answer.ids), answer.totals.bytes) == (3, 10_000, 10_000)
    assert answer.totals.bits_per_byte == pytest.approx(1.4426950408889634)
    assert len(set(keys(server))) == 3


@pytest.mark.parametrize("fault", ["request", "answer"])
def test_an_append_is_never_sent_with_a_new_key(client: Any, server: Any, fault: str) -> None:
    """Whether request or answer was lost: the repetition has the same key and body, and counts once."""
    session = client.sessions.create()
    server.lose(fault)
    server.lose(fault)
    answer = session.append("abc")
    sent = [request for request in server.requests if request.url.path.endswith("/append")]

    assert len({(request.headers["idempotency-key"], request.content) for request in sent}) == 1
    assert (len(sent), server.texts[session.id], answer.version) == (3, "abc", 1)
    assert answer.replayed is (fault == "answer")


def test_an_append_that_fails_half_way_says_how_far_it_came(client: Any, server: Any) -> None:
    """What is in the session and what is not can be told apart, and the text goes on from there."""
    session = client.sessions.create()
    server.let_pass()
    server.refuse(500, "internal_error")
    with pytest.raises(errors.InternalError) as caught:
        session.append(LONG)
    progress = caught.value.progress

    assert progress is not None
    assert server.texts[session.id] == LONG[: progress.characters] == "é" * 2048
    assert progress.answer is not None
    assert (progress.answer.version, progress.key) == (1, keys(server)[-1])
    session.append(progress.piece, idempotency_key=progress.key)
    session.append(LONG[progress.characters + len(progress.piece) :])
    assert server.texts[session.id] == LONG


def test_a_piece_whose_answer_was_lost_is_in_once(client: Any, server: Any) -> None:
    """Nobody could tell whether it is in the session: with its key it may be appended again."""
    session = client.sessions.create()
    server.let_pass()
    for _ in range(4):
        server.lose("answer")
    with pytest.raises(errors.ConnectionLostError) as caught:
        session.append(LONG)
    progress = caught.value.progress

    assert progress is not None
    assert server.texts[session.id] == LONG[: progress.characters] + str(progress.piece)
    assert session.append(progress.piece, idempotency_key=progress.key).replayed
    assert server.texts[session.id] == LONG[: progress.characters] + str(progress.piece)


def test_an_interrupted_append_says_how_far_it_came(client: Any, server: Any) -> None:
    """Ctrl-C too: the part that is in the session does not go unnoticed."""

    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    session = client.sessions.create()
    server.let_pass()
    server.faults.append(interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.append(LONG)
    progress = vars(caught.value)["progress"]

    assert server.texts[session.id] == LONG[: progress.characters] == "\u00e9" * 2048
    assert (progress.piece, progress.key) == ("\u00e9" * 2048, keys(server)[-1])


def test_two_keys_of_which_one_looks_derived_are_two(client: Any, server: Any) -> None:
    """Whatever keys a caller chooses, no text is taken for a piece of another and dropped."""
    session = client.sessions.create()
    session.append("a" * 8192, idempotency_key="part")
    answer = session.append("a" * 4096, idempotency_key="part-1")

    assert not answer.replayed
    assert server.texts[session.id] == "a" * 12_288


def test_a_text_may_be_appended_again_with_its_key(client: Any, server: Any) -> None:
    """A whole append under the caller's own key takes effect once, also after a failure half way."""
    session = client.sessions.create()
    server.let_pass()
    server.refuse(500, "internal_error")
    with pytest.raises(errors.InternalError):
        session.append(LONG, idempotency_key="mine")
    answer = session.append(LONG, idempotency_key="mine")

    assert server.texts[session.id] == LONG
    assert (answer.version, answer.replayed) == (3, True)


def test_if_match(client: Any, server: Any) -> None:
    """Another version than expected is told with the current one, and nothing is appended."""
    session = client.sessions.create()
    session.append("a", if_match=0)
    with pytest.raises(errors.VersionMismatchError) as caught:
        session.append("b", if_match=0)

    assert (caught.value.current_version, server.texts[session.id]) == (1, "a")
    session.append(LONG, if_match=1)
    assert session.info().version == 4


def test_an_empty_append_is_the_servers_to_refuse(client: Any) -> None:
    """An empty text is an error, not a success without effect."""
    with pytest.raises(errors.InvalidFieldError):
        client.sessions.create().append("")


def test_text_that_is_no_text_is_never_sent(client: Any, server: Any) -> None:
    """A lone surrogate far inside a long text is found before its first piece is sent."""
    session = client.sessions.create()
    with pytest.raises(errors.RequestError):
        session.append("a" * 9000 + "\ud800")

    assert server.texts[session.id] == ""


def test_a_key_may_be_as_long_for_a_long_text_as_for_a_short_one(client: Any, server: Any) -> None:
    """The pieces' keys are no longer than the text's, and one that is too long is found before the first."""
    session = client.sessions.create()
    with pytest.raises(errors.RequestError):
        session.append(LONG, idempotency_key="k" * 201)

    assert server.texts[session.id] == ""
    session.append(LONG, idempotency_key="k" * 200)
    assert server.texts[session.id] == LONG


def test_a_stream_of_texts(client: Any, server: Any) -> None:
    """Texts from an iterable are gathered into pieces and answered one by one."""
    session = client.sessions.create()
    answers = list(session.append_stream(iter(["ab", "", "cde", "f"]), gather_bytes=4, final=True))

    assert [answer.position for answer in answers] == [5, 6]
    assert server.texts[session.id] == "abcdef"
    assert b'"final": true' in server.requests[-1].content
    assert b'"final": true' not in server.requests[-2].content


def test_a_stream_that_fails_says_how_far_it_came(client: Any, server: Any) -> None:
    """The characters of all pieces before count, and the answers to them were handed out."""
    session = client.sessions.create()
    stream = iter(session.append_stream(["ab", "cd"], gather_bytes=1))
    assert next(stream).position == 2
    server.refuse(500, "internal_error")
    with pytest.raises(errors.InternalError) as caught:
        next(stream)

    assert caught.value.progress == errors.AppendProgress(
        answer=None, characters=2, piece="cd", key=keys(server)[-1]
    )


def texts(end: Exception | str) -> Iterator[str]:
    yield from ["\u00e9" * 3000, "e" * 5000]
    if isinstance(end, Exception):
        raise end
    yield end


@pytest.mark.parametrize("end", [OSError("the disk is gone"), "\ud800"])
def test_a_stream_that_does_not_come_to_its_end_says_how_far_it_came(
    client: Any, server: Any, end: Exception | str
) -> None:
    """Whether its source fails or gives what is no text: it is told what is in the session."""
    session = client.sessions.create()
    with pytest.raises((OSError, errors.RequestError)) as caught:
        list(session.append_stream(texts(end)))
    progress = vars(caught.value)["progress"]

    assert progress == errors.AppendProgress(answer=None, characters=len(server.texts[session.id]))
    assert progress.characters > 3000


def test_an_empty_stream(client: Any, server: Any) -> None:
    """No texts, no requests."""
    session = client.sessions.create()

    assert list(session.append_stream([], final=True)) == []
    assert keys(server) == []


def test_ranking(client: Any) -> None:
    """Candidates keep their order and their ids; the best is the one of rank 1, also without adaptation."""
    ranking = client.sessions.create().score(["long one", {"id": "x", "text": "short"}])

    assert [(c.id, c.rank, c.static_rank) for c in ranking.candidates] == [("0", 2, 1), ("x", 1, 2)]
    assert (ranking.best.id, ranking.static_best.id) == ("x", "0")
    assert [(c.static_logprob, c.static_score, c.gain) for c in ranking.candidates] == [
        (-62.0, -62.0, 54.0),
        (-65.0, -65.0, 60.0),
    ]


def test_generate_in_a_session(client: Any, server: Any) -> None:
    """Both forms work; only what is kept carries a key."""
    session = client.sessions.create()
    session.generate()
    events = list(session.generate(stream=True, commit=True))

    assert "".join(getattr(event, "text", "") for event in events) == "héllo"
    assert ["idempotency-key" in request.headers for request in server.requests[1:]] == [False, True]


def test_listing_goes_through_all_pages(client: Any) -> None:
    """Five sessions on pages of two come as five."""
    ids = [client.sessions.create().id for _ in range(5)]

    assert [info.id for info in client.sessions.list()] == ids
    assert len(client.sessions.page(limit=2).sessions) == 2


def test_finding_by_name(client: Any) -> None:
    """A handle, or None where nobody has the name."""
    session = client.sessions.create()

    assert client.sessions.find(session.id).id == session.id
    assert client.sessions.find("nobody") is None


def test_an_older_server_finds_nobody_else(client: Any, server: Any) -> None:
    """It answers the question that it does not know with all sessions: the first of them is another's."""
    client.sessions.create()
    server.faults.append(lambda request: server.respond(httpx.Request("GET", request.url.join("/sessions"))))

    assert client.sessions.find("nobody") is None


def test_reset(client: Any) -> None:
    """A reset answers with the session."""
    session = client.sessions.create()

    assert session.reset(what="fast_weights").id == session.id


def test_delete(client: Any) -> None:
    """Deleting is final and may be repeated; afterwards the session says that it was deleted."""
    session = client.sessions.create()
    session.delete()
    session.delete()
    with pytest.raises(errors.SessionDeletedError) as caught:
        session.append("a")

    assert caught.value.facts == {"reason": "deleted"}


def test_a_handle_on_a_session_of_another_time(client: Any) -> None:
    """A handle is made from an id alone; an unknown id is the server's to refuse, an impossible one ours."""
    made = client.sessions.create()
    made.append("ab")

    assert client.sessions.get(made.id).info().position == 2
    with pytest.raises(errors.NotFoundError):
        client.sessions.get("unknown").info()
    with pytest.raises(errors.RequestError):
        client.sessions.get("../admin")
