"""Calls as values: what is sent, and when a call is sent again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import _calls, errors
from rlstm_client._calls import Call, Retries, encode, repeatable
from rlstm_client.errors import RequestError
from rlstm_client.models import ServerInfo

READ = _calls.get("/info", ServerInfo)
WORK = _calls.score("a", {})
CHANGE = _calls.append("s", {"text": "a"}, {})
KEPT = _calls.generate_in_session("s", {"commit": True})


def call(**parts: Any) -> Call[Any]:
    return Call(**({"method": "POST", "path": "/x", "read": lambda data: data} | parts))


def test_members_that_are_none_are_not_sent() -> None:
    """The server's defaults hold for what the caller left out; falsehoods are sent."""
    body = encode({"a": None, "b": False, "c": 0, "d": "é", "e": (1, 2), "f": {"g": None}})

    assert json.loads(body) == {"b": False, "c": 0, "d": "é", "e": [1, 2], "f": {"g": None}}
    assert "é".encode() in body  # one character of text is not six of escapes


@pytest.mark.parametrize(
    ("value", "said"),
    [("a\ud83d", "D83D"), (float("nan"), "no JSON form"), (float("inf"), "no JSON form"), ({1, 2}, "set")],
)
def test_what_no_json_can_carry(value: Any, said: str) -> None:
    """Half a surrogate pair, NaN and the like are refused before anything is sent."""
    with pytest.raises(RequestError, match=said):
        encode({"value": value})


def test_what_changes_a_session_carries_a_key_and_the_version_expected() -> None:
    """Each call has a key of its own, or the caller's; If-Match is the version in quotes."""
    own = _calls.append("s", {"text": "a"}, {"idempotency_key": "mine", "if_match": 0})

    assert own.headers == {"Idempotency-Key": "mine", "If-Match": '"0"'}
    assert (
        CHANGE.headers["Idempotency-Key"] != _calls.append("s", {"text": "a"}, {}).headers["Idempotency-Key"]
    )
    assert [made.keyed for made in (READ, WORK, CHANGE, KEPT, _calls.create({}))] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert [made.changes for made in (READ, _calls.delete("/x"), CHANGE)] == [False, True, True]


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a b", "é", "a" * 129, "a\n"])
def test_an_id_that_is_none(session_id: str) -> None:
    """No id can change the path, and the error says what was wrong."""
    with pytest.raises(RequestError, match="is not a session id"):
        _calls.session_path(session_id)


@pytest.mark.parametrize("key", ["", "a b", "é", "a" * 256, "a\nb"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    """A key is visible ASCII."""
    with pytest.raises(RequestError, match="idempotency key"):
        _calls.append("s", {"text": "a"}, {"idempotency_key": key})


def test_a_misspelt_option_is_refused() -> None:
    """An option that does not exist is an error here, not a field that the server has to refuse."""
    with pytest.raises(TypeError, match=r"'tempreature'; there are .*temperature"):
        _calls.generate("a", {"tempreature": 1})


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (errors.CannotConnectError("x"), [READ, WORK, CHANGE]),
        (errors.ConnectionLostError("x", applied="unknown"), [READ, WORK, CHANGE]),
        (errors.StreamInterruptedError("x", applied="unknown"), [READ, WORK, CHANGE]),
        (errors.TimedOutError("x", applied="unknown"), [READ, CHANGE]),
        (errors.OutcomeUnknownError("x", applied="unknown"), [READ, WORK, CHANGE]),
        (errors.InFlightError("x"), [READ, WORK, CHANGE]),
        (errors.GatewayError("x", applied="unknown"), [READ, WORK, CHANGE]),
        (errors.RateLimitedError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.OverloadedError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.ConflictError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.OverloadedError("x"), []),
        (errors.RateLimitedError("x"), []),
        (errors.DurabilityNotReachedError("x", applied="yes", retry_after=1), []),
        (errors.ConflictError("x"), []),
        (errors.SessionExistsError("x"), []),
        (errors.VersionMismatchError("x"), []),
        (errors.InternalError("x"), []),
        (errors.UnreadableAnswerError("x"), []),
        (errors.RequestError("x"), []),
    ],
)
def test_what_is_repeated(error: errors.RLSTMError, calls: list[Call[Any]]) -> None:
    """Only what may go better next time, and only where it cannot happen twice."""
    assert [call for call in (READ, WORK, CHANGE) if repeatable(call, error)] == calls


@pytest.mark.parametrize("error_class", list(errors.error_classes()))
def test_what_was_applied_is_never_repeated(error_class: type[errors.APIError]) -> None:
    """An error that says ``applied: yes`` is told to the caller, whatever its kind."""
    assert not repeatable(CHANGE, error_class("x", applied="yes", retry_after=0))


def test_the_wait_doubles_and_is_spread() -> None:
    """Backoff doubles up to its bound; chance spreads it over the upper half."""
    retries = Retries(attempts=9, first_wait_s=1.0, longest_wait_s=6.0)
    lost = errors.ConnectionLostError("x")

    assert [retries.wait(WORK, lost, n, 0.0) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 3.0]
    assert [retries.wait(WORK, lost, n, 1.0) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 6.0]


@given(st.integers(1, 8), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 100))
def test_the_wait_is_bounded(attempt: int, chance: float, retry_after: float | None) -> None:
    """A wait is never shorter than the server asked for, and never longer than the bound and a half."""
    retries = Retries(attempts=6)
    wait = retries.wait(WORK, errors.OverloadedError("x", retry_after=retry_after), attempt, chance)

    if attempt >= 6 or retry_after is None or retry_after > retries.longest_wait_s:
        assert wait is None
    else:
        assert wait is not None
        assert retry_after <= wait <= 1.5 * retries.longest_wait_s
