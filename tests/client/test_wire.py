"""The builders of the calls."""

import json
from typing import Any

import pytest

from rlstm_client import _wire
from rlstm_client._call import Call
from rlstm_client.errors import RequestError


def body(call: Call[Any]) -> Any:
    return json.loads(call.content or b"null")


def sent(call: Call[Any]) -> tuple[str, str, Any]:
    return call.method, call.path, body(call)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (_wire.score("a", unit="bits"), ("POST", "/score", {"text": "a", "unit": "bits"})),
        (_wire.score(tokens=[1]), ("POST", "/score", {"tokens": [1]})),
        (_wire.score(items=({"text": "a"},)), ("POST", "/score", {"items": [{"text": "a"}]})),
        (_wire.generate("", seed=0), ("POST", "/generate", {"prompt": "", "seed": 0})),
        (_wire.generate("a", stream=True), ("POST", "/generate", {"prompt": "a", "stream": True})),
        (_wire.info(), ("GET", "/info", None)),
        (_wire.live(), ("GET", "/health/live", None)),
        (_wire.ready(), ("GET", "/health/ready", None)),
        (_wire.metrics(), ("GET", "/metrics", None)),
        (_wire.create_session(name="n"), ("POST", "/sessions", {"name": "n"})),
        (_wire.list_sessions(), ("GET", "/sessions", None)),
        (_wire.get_session("s1"), ("GET", "/sessions/s1", None)),
        (_wire.delete_session("s1"), ("DELETE", "/sessions/s1", None)),
        (
            _wire.append("s1", "a", learn=False),
            ("POST", "/sessions/s1/append", {"text": "a", "learn": False}),
        ),
        (
            _wire.score_candidates("s1", ["a", {"id": "x", "text": "b", "given": 1}], weights={"lm": 2}),
            (
                "POST",
                "/sessions/s1/score",
                {"candidates": [{"text": "a"}, {"id": "x", "text": "b", "given": 1}], "weights": {"lm": 2}},
            ),
        ),
        (_wire.generate_in_session("s1", commit=True), ("POST", "/sessions/s1/generate", {"commit": True})),
        (_wire.reset_session("s1", what="both"), ("POST", "/sessions/s1/reset", {"what": "both"})),
        (_wire.update_session("s1", learning=False), ("PATCH", "/sessions/s1", {"learning": False})),
        (_wire.take_snapshot("s1", "n"), ("POST", "/sessions/s1/snapshots", {"name": "n"})),
        (_wire.list_snapshots("s1"), ("GET", "/sessions/s1/snapshots", None)),
        (_wire.drop_snapshot("s1", "n"), ("DELETE", "/sessions/s1/snapshots/n", None)),
        (_wire.restore_session("s1", "n"), ("POST", "/sessions/s1/restore", {"snapshot": "n"})),
        (_wire.fork_session("s1", snapshot="n"), ("POST", "/sessions/s1/fork", {"snapshot": "n"})),
        (_wire.export_session("s1"), ("GET", "/sessions/s1/export", None)),
    ],
)
def test_what_is_sent(call: Call[Any], expected: tuple[str, str, Any]) -> None:
    """Method, path and body of each call."""
    assert sent(call) == expected


def test_calls_that_change_a_session_carry_a_key() -> None:
    """Each changing call has a key of its own; the caller's own key is taken."""
    changing = [
        _wire.create_session(),
        _wire.append("s", "a"),
        _wire.append("s", "a"),
        _wire.generate_in_session("s", commit=True),
        _wire.reset_session("s"),
    ]
    keys = {call.headers["Idempotency-Key"] for call in changing}

    assert len(keys) == len(changing)
    assert _wire.append("s", "a", idempotency_key="mine").headers == {"Idempotency-Key": "mine"}


def test_calls_that_change_nothing_carry_none() -> None:
    """Reading needs no key."""
    reading = [
        _wire.score("a"),
        _wire.generate_in_session("s"),
        _wire.score_candidates("s", ["a"]),
        _wire.info(),
    ]

    assert [call.keyed for call in reading] == [False] * 4


@pytest.mark.parametrize("option", [{"if_match": 0}, {"idempotency_key": "k"}])
def test_what_is_of_a_kept_text_only_is_not_dropped(option: dict[str, Any]) -> None:
    """Who asks for a version, or for once, of a text that nobody keeps is told that neither holds."""
    with pytest.raises(RequestError, match="commit"):
        _wire.generate_in_session("s", **option)
    assert _wire.generate_in_session("s", commit=True, **option).keyed


def test_the_expected_version_is_an_etag() -> None:
    """If-Match is the version in quotes."""
    assert _wire.append("s", "a", if_match=0).headers["If-Match"] == '"0"'


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a b", "é", "a" * 129, "a\n"])
def test_an_id_that_is_none(session_id: str) -> None:
    """No id can change the path, and the error says what was wrong."""
    with pytest.raises(RequestError, match="is not a session id"):
        _wire.get_session(session_id)


@pytest.mark.parametrize("key", ["", "a b", "é", "a" * 256, "a\nb"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    """A key is visible ASCII."""
    with pytest.raises(RequestError, match="idempotency key"):
        _wire.append("s", "a", idempotency_key=key)


def test_a_misspelt_option_is_refused() -> None:
    """An option that does not exist is an error here, not a field that the server has to refuse."""
    with pytest.raises(TypeError, match="tempreature"):
        _wire.generate("a", tempreature=1)


def test_a_stream_of_several_choices() -> None:
    """The reader of a stream knows how many ends to wait for."""
    assert (_wire.generate("a", n=3).choices, _wire.generate("a").choices) == (3, 1)
