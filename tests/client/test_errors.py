"""The tree of errors, and how a server's answer becomes one of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import errors
from rlstm_client.errors import APIError, VersionMismatchError, error_classes


def read(status: int, body: Any, headers: dict[str, str] | None = None) -> errors.APIError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return errors.from_answer(status, headers or {}, content, "mine")


def test_what_an_error_says() -> None:
    """The sentence of the server, then what a person needs to look it up."""
    error = APIError("it broke", status=500, applied="unknown", request_id="r1")

    assert str(error) == "it broke (500, applied: unknown, request r1)"
    assert str(errors.RequestError("no text")) == "no text"


@pytest.mark.parametrize(("facts", "version"), [({"version": 7}, 7), ({}, None), ({"version": "7"}, None)])
def test_the_current_version(facts: dict[str, Any], version: int | None) -> None:
    """A failed If-Match tells the version to go on from."""
    assert VersionMismatchError("moved", facts=facts).current_version == version


@pytest.mark.parametrize("error_class", [c for c in error_classes() if c.type])
def test_every_type_has_its_class(error_class: type[errors.APIError]) -> None:
    """The server's word decides, as a bare word and at the end of a URI."""
    for prefix in ("", "urn:rlstm:problem:", "https://example.org/problems/", "about:#"):
        body = {"type": prefix + error_class.type, "status": error_class.status}
        assert type(read(error_class.status or 0, body)) is error_class


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, errors.BadRequestError),
        (404, errors.NotFoundError),
        (409, errors.StateConflictError),
        (410, errors.GoneError),
        (418, errors.APIError),
        (502, errors.GatewayError),
        (503, errors.UnavailableError),
        (504, errors.OutcomeUnknownError),
    ],
)
def test_an_unknown_type_falls_back_on_the_status(status: int, error_class: type[errors.APIError]) -> None:
    """A newer server's word, or none at all, still gives the class of the status."""
    assert type(read(status, {"type": "brand_new"})) is error_class
    assert type(read(status, b"<html>bad gateway</html>")) is error_class


def test_everything_the_server_said_is_kept() -> None:
    """Detail, applied, request id, Retry-After, and every member beyond the standard's."""
    body = {
        "type": "urn:rlstm:problem:too_large",
        "detail": "65,537 given",
        "applied": "no",
        "request_id": "theirs",
        "given": 65_537,
        "limit": 65_536,
    }
    error = read(413, body, {"retry-after": "3"})

    assert (error.detail, error.applied, error.request_id) == ("65,537 given", "no", "theirs")
    assert (error.status, error.retry_after) == (413, 3.0)
    assert error.facts == {"given": 65_537, "limit": 65_536}


def test_an_answer_without_a_document() -> None:
    """A proxy's page: its text is quoted shortly, the change may have happened, our request id is kept."""
    error = read(502, b"<h1>Bad\n gateway</h1>" + b"x" * 10_000)

    assert error.detail.startswith("the server answered 502 without a problem document: <h1>Bad gateway</h1>")
    assert len(error.detail) < 400
    assert (error.applied, error.request_id) == ("unknown", "mine")
    assert read(404, b"").applied == "no"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("soon", None), ("-1", None), ("inf", None), ("nan", None)],
)
def test_retry_after(header: str, seconds: float | None) -> None:
    """Only a finite number of seconds is a time to wait."""
    assert read(503, {}, {"retry-after": header}).retry_after == seconds


@given(st.integers(400, 599), st.binary() | st.dictionaries(st.text(), st.none() | st.integers() | st.text()))
def test_any_answer_makes_an_error(status: int, body: Any) -> None:
    """Whatever an error's body holds, there is an API error with its status."""
    error = read(status, body)

    assert isinstance(error, errors.APIError)
    assert error.status == status
    assert str(error)
