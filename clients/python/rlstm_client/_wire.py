"""Every call of the HTTP interface as a value: what to send, and how to read the answer. No input, no output.

A `Call` is built by one of the functions below and read by `answer`; the two clients only carry it. Arguments
that are None are not sent, so the server's own defaults hold.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rlstm_client import _problems, _read
from rlstm_client.errors import RequestError, UnreadableAnswerError
from rlstm_client.models import (
    AppendResult,
    Generation,
    Health,
    Ranking,
    ScoreResult,
    SessionInfo,
    SessionPage,
    ServerInfo,
)

T = TypeVar("T")
Fields = Mapping[str, Any]

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request and the reader of its answer; sending it again sends the same key and the same body."""

    method: str
    path: str
    read: Callable[[Any], T]
    content: bytes | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = field(default_factory=lambda: new_key())

    @property
    def keyed(self) -> bool:
        """Whether the server takes it once however often it is sent."""
        return "Idempotency-Key" in self.headers

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers to send."""
        json_type = {"Content-Type": "application/json"} if self.content is not None else {}
        return {**json_type, **self.headers, "X-Request-Id": self.request_id}


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
    except ValueError as error:
        raise UnreadableAnswerError(f"the answer is not JSON: {error}", applied="unknown") from error


def score(
    text: str | None = None,
    *,
    items: Sequence[Fields] | None = None,
    tokens: Sequence[int] | None = None,
    context: str | None = None,
    unit: str | None = None,
    scores: str | None = None,
    words: bool | None = None,
    top: int | None = None,
    adapt: bool | None = None,
    adaptation: Fields | None = None,
) -> Call[ScoreResult]:
    """Build ``POST /score``: one text, one list of ids, or up to 256 items."""
    body = {
        "text": text, "items": items, "tokens": tokens, "context": context, "unit": unit, "scores": scores,
        "words": words, "top": top, "adapt": adapt, "adaptation": adaptation,
    }  # fmt: skip
    return _post("/score", body, _read.score_result)


def generate(prompt: str | None = None, *, stream: bool = False, **options: Any) -> Call[Generation]:
    """Build ``POST /generate``; an empty prompt starts from the beginning-of-text token."""
    return _post("/generate", generation_body(prompt, stream=stream, **options), _read.generation)


def generation_body(
    prompt: str | None = None,
    *,
    stream: bool = False,
    tokens: Sequence[int] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    logprobs: bool | int | None = None,
    unit: str | None = None,
) -> dict[str, Any]:
    """Return the members of a ``generate`` body."""
    return {
        "prompt": prompt, "stream": stream or None, "tokens": tokens, "max_tokens": max_tokens,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "seed": seed, "n": n,
        "stop": [stop] if isinstance(stop, str) else stop, "logprobs": logprobs, "unit": unit,
    }  # fmt: skip


def info() -> Call[ServerInfo]:
    """Build ``GET /info``."""
    return Call(method="GET", path="/info", read=_read.server_info)


def live() -> Call[Health]:
    """Build ``GET /health/live``."""
    return Call(method="GET", path="/health/live", read=_read.health)


def ready() -> Call[Health]:
    """Build ``GET /health/ready``."""
    return Call(method="GET", path="/health/ready", read=_read.health)


def metrics() -> Call[str]:
    """Build ``GET /metrics``; the answer is Prometheus' text format."""
    return Call(method="GET", path="/metrics", read=str)


def create_session(
    *,
    name: str | None = None,
    adaptation: Fields | None = None,
    ttl_seconds: float | None = None,
    metadata: Fields | None = None,
    text: str | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``POST /sessions``."""
    body = {
        "name": name, "adaptation": adaptation, "ttl_seconds": ttl_seconds, "metadata": metadata, "text": text,
    }  # fmt: skip
    return _post("/sessions", body, _read.session_info, _change_headers(idempotency_key))


def list_sessions(*, cursor: str | None = None, limit: int | None = None) -> Call[SessionPage]:
    """Build ``GET /sessions``."""
    given = {"cursor": cursor, "limit": limit}
    params = {name: str(value) for name, value in given.items() if value is not None}
    return Call(method="GET", path="/sessions", params=params, read=_read.session_page)


def get_session(session_id: str) -> Call[SessionInfo]:
    """Build ``GET /sessions/{id}``."""
    return Call(method="GET", path=session_path(session_id), read=_read.session_info)


def delete_session(session_id: str) -> Call[None]:
    """Build ``DELETE /sessions/{id}``; deleting twice is no error."""
    return Call(method="DELETE", path=session_path(session_id), read=lambda _: None)


def append(
    session_id: str,
    text: str,
    *,
    learn: bool | None = None,
    final: bool | None = None,
    scores: str | None = None,
    unit: str | None = None,
    if_match: int | None = None,
    idempotency_key: str | None = None,
) -> Call[AppendResult]:
    """Build ``POST /sessions/{id}/append`` for one piece of text."""
    body = {"text": text, "learn": learn, "final": final, "scores": scores, "unit": unit}
    path = session_path(session_id, "append")
    return _post(path, body, _read.append_result, _change_headers(idempotency_key, if_match))


def score_candidates(
    session_id: str,
    candidates: Sequence[str | Fields],
    *,
    weights: Mapping[str, float] | None = None,
    unit: str | None = None,
) -> Call[Ranking]:
    """Build ``POST /sessions/{id}/score``; a candidate is a text, or an object with ``id``, ``text``, ``given``."""
    rows = [{"text": row} if isinstance(row, str) else row for row in candidates]
    body = {"candidates": rows, "weights": weights, "unit": unit}
    return _post(session_path(session_id, "score"), body, _read.ranking)


def generate_in_session(
    session_id: str,
    *,
    stream: bool = False,
    commit: bool | None = None,
    learn_from_output: bool | None = None,
    idempotency_key: str | None = None,
    if_match: int | None = None,
    **options: Any,
) -> Call[Generation]:
    """Build ``POST /sessions/{id}/generate``; only a generation that is kept changes the session."""
    body = generation_body(stream=stream, **options)
    body |= {"commit": commit, "learn_from_output": learn_from_output}
    headers = _change_headers(idempotency_key, if_match) if commit else {}
    return _post(session_path(session_id, "generate"), body, _read.generation, headers)


def reset_session(
    session_id: str, *, what: str | None = None, if_match: int | None = None, idempotency_key: str | None = None
) -> Call[SessionInfo]:
    """Build ``POST /sessions/{id}/reset``."""
    path = session_path(session_id, "reset")
    return _post(path, {"what": what}, _read.session_info, _change_headers(idempotency_key, if_match))


def session_path(session_id: str, verb: str | None = None) -> str:
    """Return the path of a session's route; an id that no server can have made is a `RequestError`."""
    if not _SESSION_ID.fullmatch(session_id):
        raise RequestError(f"{session_id[:40]!r} is not a session id")
    return f"/sessions/{session_id}" + (f"/{verb}" if verb else "")


def _post(
    path: str, body: Fields, read: Callable[[Any], T], headers: Mapping[str, str] | None = None
) -> Call[T]:
    return Call(method="POST", path=path, read=read, content=encode(body), headers=headers or {})


def _change_headers(key: str | None, if_match: int | None = None) -> dict[str, str]:
    if key is not None and not _KEY.fullmatch(key):
        raise RequestError("an idempotency key is 1 to 255 visible ASCII characters")
    headers = {"Idempotency-Key": key if key is not None else new_key()}
    return headers if if_match is None else {**headers, "If-Match": f'"{if_match}"'}


def encode(body: Fields) -> bytes:
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
