"""What the HTTP library is told, and what its failures become."""

import httpx
import pytest

from rlstm_client import AsyncClient, Client, _calls, _http
from rlstm_client.errors import (
    CannotConnectError,
    ConnectionLostError,
    NoAnswerError,
    RequestError,
    TimedOutError,
    UnreadableAnswerError,
)


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://host", "http://", "http://a:b", "nonsense"])
def test_an_address_that_is_none(url: str) -> None:
    """A wrong URL is an error of the caller at once, not a failed connection later."""
    with pytest.raises(RequestError, match="is not a URL"):
        Client(url)


@pytest.mark.parametrize("key", ["", "a\nb", "kéy"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    """The error does not repeat the key."""
    with pytest.raises(RequestError) as caught:
        Client("http://host", api_key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"HTTPS_PROXY": "socks5h://127.0.0.1:1"},
        {"HTTP_PROXY": "gopher://127.0.0.1:1"},
        {"ALL_PROXY": "http://127.0.0.1:port"},
        {"SSL_CERT_FILE": "/no/such/file"},
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_environment_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, kind: type, variables: dict[str, str]
) -> None:
    """It is named, in one line."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=next(iter(variables))) as refused:
        kind("http://example.org")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://localhost", False),
        ("http://[::1]:1", False),
        ("http://a.b", True),
    ],
)
def test_no_proxy_for_this_machine(url: str, trusted: bool) -> None:
    """A proxy from the environment is used for other machines only."""
    assert Client(url)._http.trust_env is trusted


@pytest.mark.parametrize(
    ("error", "error_class", "applied"),
    [
        (httpx.ConnectError("refused"), CannotConnectError, "no"),
        (httpx.ConnectTimeout("slow"), CannotConnectError, "no"),
        (httpx.PoolTimeout("busy"), CannotConnectError, "no"),
        (httpx.ReadTimeout("slow"), TimedOutError, "unknown"),
        (httpx.ReadError("cut"), ConnectionLostError, "unknown"),
        (httpx.RemoteProtocolError("cut"), ConnectionLostError, "unknown"),
        (httpx.WriteError(""), ConnectionLostError, "unknown"),
    ],
)
def test_failures(error: httpx.HTTPError, error_class: type[NoAnswerError], applied: str) -> None:
    """Whether anything was sent decides what may be believed; the address is named, its password not."""
    client = httpx.Client(base_url="http://user:secret@host:8000/v")
    made = _http.no_answer(error, _calls.append("s", {"text": "a"}, {}), client)

    assert (type(made), made.applied) == (error_class, applied)
    assert "http://host:8000" in str(made)
    assert "secret" not in str(made)
    assert _http.no_answer(error, _calls.score("a", {}), client).applied == "no"


@pytest.mark.parametrize(
    ("status", "content"), [(200, b"{"), (200, b"\xff"), (302, b"{}"), (101, b""), (200, b"[" * 100_000)]
)
def test_answers_that_cannot_be_read(status: int, content: bytes) -> None:
    """Broken JSON or a redirect is an error of its own that keeps status and request id."""
    call = _calls.score("a", {})
    with pytest.raises(UnreadableAnswerError) as caught:
        _http.answer(
            call, httpx.Response(status, content=content, headers={"content-type": "application/json"})
        )

    assert (caught.value.status, caught.value.request_id) == (status, call.request_id)
