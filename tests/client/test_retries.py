"""When a call is sent again."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import Client, _wire, errors
from rlstm_client._call import Call
from rlstm_client._problems import error_classes
from rlstm_client._retries import Retries, repeatable, still_open

READ = _wire.info()
WORK = _wire.score("a")
CHANGE = _wire.append("s", "a")
KEPT = _wire.generate_in_session("s", commit=True)


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
        (errors.QuotaError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.OverloadedError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.ConflictError("x", retry_after=1), [READ, WORK, CHANGE]),
        (errors.OverloadedError("x"), []),
        (errors.QuotaError("x"), []),
        (errors.DurabilityError("x", applied="yes", retry_after=1), []),
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


@pytest.mark.parametrize("error_class", list(error_classes()))
def test_what_was_applied_is_never_repeated(error_class: type[errors.APIError]) -> None:
    """An error that says ``applied: yes`` is told to the caller, whatever its kind."""
    assert not repeatable(CHANGE, error_class("x", applied="yes", retry_after=0))


@pytest.mark.parametrize(
    "error_class",
    [
        errors.DrainingError,
        errors.OverloadedError,
        errors.StoreUnavailableError,
        errors.SlowConsumerError,
        errors.OutcomeUnknownError,
    ],
)
def test_a_kept_text_goes_on_after_an_interruption(error_class: type[errors.APIError]) -> None:
    """Part of it is applied, and the same call brings the rest; of a text that nobody keeps it would not."""
    assert repeatable(KEPT, error_class("x", applied="yes"))
    assert not repeatable(_wire.generate_in_session("s"), error_class("x", applied="yes"))


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


def test_one_attempt_is_one_attempt() -> None:
    """``attempts=1`` sends everything once."""
    assert Retries(attempts=1).wait(READ, errors.CannotConnectError("x"), 1, 0.0) is None


def test_a_lost_answer_is_not_forgotten_over_attempts_that_reach_nobody() -> None:
    """Only a server that answers can say that nothing was applied."""
    lost, refused = errors.ConnectionLostError("x", applied="unknown"), errors.CannotConnectError("x")
    assert not still_open(errors.CannotConnectError("x"), False)
    assert still_open(lost, False)
    assert still_open(refused, True)
    assert refused.applied == "unknown"
    known = errors.OverloadedError("x")
    assert not still_open(known, True)
    assert known.applied == "no"


def test_a_client_says_so() -> None:
    """The answer is lost, then the server is: whether the text was appended is open."""
    faults = iter([httpx.ReadError("cut"), httpx.ConnectError("refused"), httpx.ConnectError("refused")])

    def answer(request: httpx.Request) -> httpx.Response:
        raise next(faults)

    retries = Retries(attempts=3, first_wait_s=0)
    with (
        Client("http://host", transport=httpx.MockTransport(answer), retries=retries) as client,
        pytest.raises(errors.CannotConnectError) as raised,
    ):
        client.sessions.get("s").append("a")
    assert raised.value.applied == "unknown"
