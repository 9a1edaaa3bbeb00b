"""HTTP, by one library: what it is told, what its failures are called here, and where a file that comes goes.

No other module of this package imports the library, nor what reads its server-sent events.
"""

import ipaddress
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Final, Self, TypeVar

import httpx
import httpx_sse

from rlstm_client import errors
from rlstm_client._calls import Call
from rlstm_client.errors import NoAnswerError, RequestError, RLSTMError, UnreadableAnswerError
from rlstm_client.models import UnexpectedShape

T = TypeVar("T")
ClientT = TypeVar("ClientT", httpx.Client, httpx.AsyncClient)
PathOrFile = str | os.PathLike[str] | BinaryIO

AsyncHTTP = httpx.AsyncClient
HTTP = httpx.Client
Response = httpx.Response
EventSource = httpx_sse.EventSource
ServerSentEvent = httpx_sse.ServerSentEvent
FAILURES: Final = (httpx.HTTPError, httpx.StreamError)

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT: Final = 600.0
CONNECT_SECONDS: Final = 5.0
_ENVIRONMENT: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_NOTHING_WAS_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def make(
    kind: Callable[..., ClientT], url: str, api_key: str | None, timeout: float | None, transport: Any
) -> ClientT:
    """Make the library's client.

    Redirects are not followed, since they would carry the key to another host.
    """
    base_url = _checked(url)
    headers = {"User-Agent": "rlstm-client"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {_checked_key(api_key)}"
    connect = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
    try:
        return kind(
            base_url=base_url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=connect),
            trust_env=not _is_loopback(base_url.host),  # no proxy reaches this machine's own loopback
            transport=transport,
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        names = [name for name in os.environ if name.upper() in _ENVIRONMENT]
        raise RequestError(f"the environment ({', '.join(names)}) cannot be used: {error}") from error


def request(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    """Return the request of a call."""
    return client.build_request(
        call.method,
        call.path,
        params=dict(call.params) or None,
        content=call.content,
        headers=call.all_headers,
    )


def answer(call: Call[T], response: Response) -> T:
    """Return the typed answer of a response that was read whole.

    Raises:
        APIError: the server refused or failed.
        UnreadableAnswerError: the answer is not what this client expects.
    """
    _refuse(call, response)
    try:
        if not response.is_success:
            raise UnexpectedShape(f"unexpected status {response.status_code}")
        return call.read(_body(response))
    except UnexpectedShape as error:
        raise _unreadable(str(error), call, response) from error


def _body(response: Response) -> Any:
    if not response.content:
        return None
    if not response.headers.get("content-type", "").startswith("application/json"):
        return response.content.decode("utf-8", "replace")
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise UnexpectedShape(f"the answer is not JSON: {error}") from error


def is_stream(response: Response, media_type: str) -> bool:
    """Whether the body is the stream of this type, and not an error or a proxy's page."""
    content_type = response.headers.get("content-type", "")
    return response.is_success and content_type.partition(";")[0].strip() == media_type


def no_stream(call: Call[Any], response: Response, media_type: str) -> RLSTMError:
    """Return the error for an answer that is not the stream, or raise the refusal that it is."""
    _refuse(call, response)
    return _unreadable(f"the answer is not {media_type}", call, response)


def _refuse(call: Call[Any], response: Response) -> None:
    if response.is_error:
        raise errors.from_answer(response.status_code, response.headers, response.content, call.request_id)


def _unreadable(detail: str, call: Call[Any], response: Response) -> UnreadableAnswerError:
    return UnreadableAnswerError(
        detail, applied="unknown", status=response.status_code, request_id=call.request_id
    )


def no_answer(error: Exception, call: Call[Any], client: httpx.Client | httpx.AsyncClient) -> NoAnswerError:
    """Return the error for a call without an answer; one that reads cannot have changed anything."""
    server = client.base_url
    where = f"{server.scheme}://{server.netloc.decode('ascii')}"
    reason = str(error) or type(error).__name__
    if isinstance(error, _NOTHING_WAS_SENT):
        return errors.CannotConnectError(f"cannot connect to {where}: {reason}")
    applied: errors.Applied = "unknown" if call.changes else "no"
    if isinstance(error, httpx.TimeoutException):
        late = f"no answer from {where} in time"
        return errors.TimedOutError(late, applied=applied, request_id=call.request_id)
    lost = f"the connection to {where} was lost: {reason}"
    return errors.ConnectionLostError(lost, applied=applied, request_id=call.request_id)


def _checked(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise RequestError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(f"{url!r} is not a URL of the form http://host:port")
    return parsed


def _checked_key(api_key: str) -> str:
    if not api_key or not api_key.isascii() or not api_key.isprintable():
        raise RequestError("the API key is empty or holds characters that no header can carry")
    return api_key


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def websocket(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> dict[str, Any]:
    """Return address, headers and proxy of a WebSocket, as of the client's own requests."""
    base = client.base_url
    url = base.copy_with(
        scheme="wss" if base.scheme == "https" else "ws",
        raw_path=base.raw_path.rstrip(b"/") + call.path.encode("ascii"),
    )
    key = {name: client.headers[name] for name in ("authorization",) if name in client.headers}
    given: dict[str, Any] = {
        "uri": str(url),
        "additional_headers": {**key, "x-request-id": call.request_id},
        "user_agent_header": client.headers["user-agent"],
    }
    return given if client.trust_env else given | {"proxy": None}


class ArrivingFile:
    """A file on its way: `partial` takes its bytes, and `keep` puts all of them where they belong.

    What was at a path stays there until then, and for good if that never comes. An open file gets its bytes
    from where it stands, as does what is no file, such as a device; behind a link is what it leads to.
    Nothing is held in memory.
    """

    partial: IO[bytes]

    def __init__(self, to: PathOrFile) -> None:
        self._to: Path | IO[bytes] = Path(to) if isinstance(to, str | os.PathLike) else to
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        if isinstance(self._to, Path) and self._to.exists() and not self._to.is_file():
            self._to = self._opened.enter_context(self._to.open("wb"))
        if isinstance(self._to, Path):
            self._to = Path(os.path.realpath(self._to))
            try:
                self.partial = tempfile.NamedTemporaryFile(
                    dir=self._to.parent, prefix=f".{self._to.name}.", delete=False
                )
            except OSError as error:
                error.filename = str(self._to)
                raise
        else:
            self.partial = tempfile.TemporaryFile()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.partial.close()  # a full disk refuses what is still to be written
            self._opened.close()
        finally:
            if isinstance(self._to, Path):
                Path(self.partial.name).unlink(missing_ok=True)

    def restart(self) -> None:
        """Drop what has come: it comes again from its beginning."""
        self.partial.seek(0)
        self.partial.truncate()

    def keep(self) -> None:
        """Put the bytes in their place; none comes after them."""
        self.partial.flush()
        if isinstance(self._to, Path):
            os.fsync(self.partial.fileno())  # or a crash could leave the name with nothing behind it
            Path(self.partial.name).replace(self._to)
        else:
            self.partial.seek(0)
            shutil.copyfileobj(self.partial, self._to)


def read_file(source: PathOrFile) -> bytes:
    """Read an open file, or the one at a path, to its end."""
    return Path(source).read_bytes() if isinstance(source, str | os.PathLike) else source.read()
