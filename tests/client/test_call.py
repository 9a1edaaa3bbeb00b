"""Calls as values, and how their answers are read."""

import json
from typing import Any

import pytest

from rlstm_client._call import Call, Reply, answer, encode
from rlstm_client.errors import NotFoundError, RequestError, UnreadableAnswerError

JSON_TYPE = {"content-type": "application/json"}


def call(**settings: Any) -> Call[Any]:
    return Call(method="POST", path="/score", read=lambda data: data, **settings)


def reply(status: int, content: bytes, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status=status, headers=JSON_TYPE if headers is None else headers, content=content)


def test_members_that_are_none_are_not_sent() -> None:
    """The server's defaults hold for what the caller left out; falsehoods are sent."""
    body = encode({"a": None, "b": False, "c": 0, "d": "", "e": (1, 2), "f": {"g": None}})

    assert json.loads(body) == {"b": False, "c": 0, "d": "", "e": [1, 2], "f": {"g": None}}


def test_text_travels_as_utf8() -> None:
    """One character of text is not six of escapes."""
    assert encode({"text": "é🙂"}) == '{"text": "é🙂"}'.encode()


@pytest.mark.parametrize(
    ("value", "said"),
    [("a\ud83d", "D83D"), (float("nan"), "no JSON form"), (float("inf"), "no JSON form"), ({1, 2}, "set")],
)
def test_what_no_json_can_carry(value: Any, said: str) -> None:
    """Half a surrogate pair, NaN and the like are refused before anything is sent."""
    with pytest.raises(RequestError, match=said):
        encode({"value": value})


def test_headers() -> None:
    """A body has its type, every call its request id, and a key makes it safe to repeat."""
    keyed = call(content=b"{}", headers={"Idempotency-Key": "k"})

    assert keyed.all_headers["Content-Type"] == "application/json"
    assert keyed.all_headers["X-Request-Id"] == keyed.request_id
    assert "Content-Type" not in call().all_headers
    assert (keyed.keyed, call().keyed) == (True, False)
    assert call().request_id != call().request_id


def test_answers_that_are_no_errors() -> None:
    """JSON is parsed, plain text stays text, and 204 is nothing."""
    assert answer(call(), reply(200, b'{"a": 1}')) == {"a": 1}
    assert answer(call(), reply(200, b"up 1\n", {"content-type": "text/plain"})) == "up 1\n"
    assert answer(call(), reply(204, b"", {})) is None


@pytest.mark.parametrize(
    "bad",
    [reply(200, b"{"), reply(200, b"\xff"), reply(302, b"{}"), reply(101, b""), reply(200, b"[" * 100_000)],
)
def test_answers_that_cannot_be_read(bad: Reply) -> None:
    """Broken JSON or a redirect is an error of its own that keeps status and request id."""
    made = call()
    with pytest.raises(UnreadableAnswerError) as caught:
        answer(made, bad)

    assert (caught.value.status, caught.value.request_id) == (bad.status, made.request_id)


def test_a_refusal_is_raised() -> None:
    """A status of 400 or more is the typed error of its document."""
    with pytest.raises(NotFoundError):
        answer(call(), reply(404, b'{"type": "urn:rlstm:problem:not_found"}'))
