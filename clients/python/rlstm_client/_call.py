"""A call as a value: what to send, and how its answer is read. No input, no output."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from rlstm_client import _problems
from rlstm_client.errors import RequestError, UnreadableAnswerError

T = TypeVar("T")

OCTETS = "application/octet-stream"
EVENTS = "text/event-stream"


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request and the reader of its answer; sending it again sends the same key and the same body.

    ``choices`` is how many end events a stream of its answer has. A call that is ``resumable`` makes a text
    that is kept as it comes: sent again, it goes on where it stopped.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    content: bytes | None = None
    content_type: str = "application/json"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    choices: int = 1
    resumable: bool = False
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def keyed(self) -> bool:
        """Whether the server takes it once however often it is sent."""
        return "Idempotency-Key" in self.headers

    @property
    def changes(self) -> bool:
        """Whether the server may be another one afterwards."""
        return self.keyed or self.method == "DELETE"

    def after(self, event_id: str) -> "Call[T]":
        """The same call, for what comes after an event of its stream."""
        return replace(self, headers={**self.headers, "Last-Event-ID": event_id})

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers to send."""
        content_type = {"Content-Type": self.content_type} if self.content is not None else {}
        return {**content_type, **self.headers, "X-Request-Id": self.request_id}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back; the names of the headers are in lower case, or looked up without regard to case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def new_key() -> str:
    """Return 122 random bits in hexadecimal, for an idempotency key or a request id."""
    return uuid.uuid4().hex


def answer(call: Call[T], reply: Reply) -> T:
    """Return the typed answer.

    Raises:
        APIError: the server refused or failed.
        UnreadableAnswerError: the answer is not what this client expects.
    """
    if reply.status >= 400:
        raise _problems.from_answer(reply.status, reply.headers, reply.content, call.request_id)
    try:
        if not 200 <= reply.status < 300:
            raise UnreadableAnswerError(f"unexpected status {reply.status}", applied="unknown")
        return call.read(_body(reply))
    except UnreadableAnswerError as error:
        error.status, error.request_id = reply.status, call.request_id
        raise


def _body(reply: Reply) -> Any:
    if not reply.content:
        return None
    if not reply.headers.get("content-type", "").startswith("application/json"):
        return reply.content.decode("utf-8", "replace")
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswerError(f"the answer is not JSON: {error}", applied="unknown") from error


def encode(body: Mapping[str, Any]) -> bytes:
    """Return strict JSON in UTF-8, without members that are None.

    Raises:
        RequestError: text with a lone surrogate, NaN or an infinity, or a value that JSON has no form for.
    """
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False, default=_listed).encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(error.object[error.start]):04X}"
        raise RequestError(f"the text is no text: it holds the lone surrogate {surrogate}") from error
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request has no JSON form: {error}") from error


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
