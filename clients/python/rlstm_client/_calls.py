"""Calls as values: what to send, how the answer is read, and when to send it again. No input, no output.

Arguments that are left out, or None, are not sent, so the server's own defaults hold. A call that changes a
session always carries an idempotency key: a repeat has the same key and the same body, and takes effect once.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from rlstm_client import errors, models, options
from rlstm_client.errors import RequestError, RLSTMError
from rlstm_client.models import (
    AnswerT,
    AppendResult,
    Generation,
    Ranking,
    ScoreResult,
    SessionInfo,
    UnexpectedShape,
)

T = TypeVar("T")
Options = Mapping[str, Any]

OCTETS: Final = "application/octet-stream"
EVENTS: Final = "text/event-stream"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


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
        """Whether it may change something at the server."""
        return self.keyed or self.method == "DELETE"

    def after(self, event_id: str) -> "Call[T]":
        """The same call, for what comes after an event of its stream."""
        return replace(self, headers={**self.headers, "Last-Event-ID": event_id})

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers to send."""
        content_type = {"Content-Type": self.content_type} if self.content is not None else {}
        return {**content_type, **self.headers, "X-Request-Id": self.request_id}


def new_key() -> str:
    """Return 122 random bits in hexadecimal, for an idempotency key or a request id."""
    return uuid.uuid4().hex


def encode(body: Options) -> bytes:
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


# ---- how calls are built ----------------------------------------------------------------------------------


def get(path: str, kind: type[AnswerT], **params: Any) -> Call[AnswerT]:
    """Build a call that reads."""
    return Call(method="GET", path=path, params=_params(params), read=partial(models.decode, kind))


def post(path: str, read: Callable[[Any], T], body: Options, headers: Options | None = None) -> Call[T]:
    """Build a call with a JSON body."""
    return Call(method="POST", path=path, read=read, content=encode(body), headers=headers or {})


def change(
    path: str, kind: type[AnswerT], given: Options, allowed: Any, *, method: str = "POST", **fixed: Any
) -> Call[AnswerT]:
    """Build a call that changes a session. Among what is given are its key and the version expected."""
    body, headers = changing(checked(given, allowed))
    return replace(post(path, partial(models.decode, kind), fixed | body, headers), method=method)


def delete(path: str) -> Call[None]:
    """Build a call that removes something; removing twice is no error."""
    return Call(method="DELETE", path=path, read=lambda _: None)


def session_path(session_id: str, *verb: str) -> str:
    """Return the path of a session's route; an id that no server can have made is a `RequestError`."""
    if not _SESSION_ID.fullmatch(session_id):
        raise RequestError(f"{session_id[:40]!r} is not a session id")
    return "/".join(("/sessions", session_id, *verb))


def snapshot_path(session_id: str, name: str) -> str:
    """Return the path of a named snapshot; a name that none can have is a `RequestError`."""
    if not _NAME.fullmatch(name):
        raise RequestError(f"{name[:40]!r} is not the name of a snapshot")
    return session_path(session_id, "snapshots", name)


def checked(given: Options, allowed: Any) -> Options:
    """Return options of which each is one of a TypedDict's; a misspelt one is a `TypeError`."""
    for name in given:
        if name not in allowed.__annotations__:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(allowed.__annotations__)}")
    return given


def changing(given: Options) -> tuple[dict[str, Any], dict[str, str]]:
    """Part the members of a body from the headers of a change: its key, drawn where none is given."""
    body = {name: of for name, of in given.items() if name not in ("idempotency_key", "if_match")}
    key, version = given.get("idempotency_key"), given.get("if_match")
    if key is not None and not _KEY.fullmatch(key):
        raise RequestError("an idempotency key is 1 to 200 visible ASCII characters")
    headers = {"Idempotency-Key": new_key() if key is None else key}
    return body, headers if version is None else {**headers, "If-Match": f'"{version}"'}


def _params(given: Options) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}


# ---- calls that are more than a path and a body -----------------------------------------------------------


def score(text: str | None, given: Options) -> Call[ScoreResult]:
    """Build ``POST /score``: one text, one list of ids, or up to 256 items."""
    return post("/score", _score_result, {"text": text, **checked(given, options.ScoreOptions)})


def _score_result(data: Any) -> ScoreResult:
    result = models.decode(ScoreResult, data)
    for item in result.items:
        models.check_columns(item, item.totals.tokens)
    return result


def generate(prompt: str | None, given: Options, *, stream: bool = False) -> Call[Generation]:
    """Build ``POST /generate``; an empty prompt starts from the beginning-of-text token."""
    body = {"prompt": prompt, "stream": stream or None, **checked(given, options.GenerateOptions)}
    call = post("/generate", partial(models.decode, Generation), body)
    return replace(call, choices=given.get("n") or 1)


def generate_in_session(session_id: str, given: Options, *, stream: bool = False) -> Call[Generation]:
    """Build ``POST /sessions/{id}/generate``; only a generation that is kept changes the session.

    Raises:
        RequestError: ``if_match`` or ``idempotency_key`` for a text that is not kept, where neither holds.
    """
    kept = bool(given.get("commit"))
    if not kept and (given.get("if_match") is not None or given.get("idempotency_key") is not None):
        raise RequestError("if_match and idempotency_key are of a text that is kept: give commit=True too")
    body, headers = changing(checked(given, options.SessionGenerateOptions))
    read = partial(_stored, Generation)
    path = session_path(session_id, "generate")
    call = post(path, read, {"stream": stream or None, **body}, headers if kept else None)
    return replace(call, resumable=kept)


def append(session_id: str, body: Options, given: Options) -> Call[AppendResult]:
    """Build ``POST /sessions/{id}/append`` for one piece of text, or of ids."""
    more, headers = changing(checked(given, options.AppendOptions))
    read = partial(read_append, given.get("scores"))
    return post(session_path(session_id, "append"), read, {**body, **more}, headers)


def read_append(scores: str | None, data: Any) -> AppendResult:
    """Read the answer of an append; of a repeat that came without its scores ``scores_stored`` is false."""
    result = models.decode(AppendResult, data)
    tokens = None if result.totals is None else result.totals.tokens
    models.check_columns(result, tokens)
    complete = scores == "none" or tokens == 0 or (tokens is not None if scores == "totals" else result.ids)
    if not complete and not result.replayed:
        raise UnexpectedShape("the answer lacks the scores that were asked for")
    return replace(result, scores_stored=bool(complete))


def create(given: Options) -> Call[SessionInfo]:
    """Build ``POST /sessions``, with a first append where a text is given."""
    body, headers = changing(checked(given, options.CreateOptions))
    return post("/sessions", partial(_created, given), body, headers)


def _created(given: Options, data: Any) -> SessionInfo:
    info = models.decode(SessionInfo, data)
    if info.append is None:
        return info
    first = read_append(given.get("scores"), models.as_object(data)["append"])
    return replace(info, append=first)


def _stored(kind: type[AnswerT], data: Any) -> AnswerT:
    """Read an answer that a repeat may get without what it was about."""
    if models.as_object(data).get("scores_stored") is False:
        raise scores_not_stored(data)
    return models.decode(kind, data)


def scores_not_stored(facts: Options) -> errors.ScoresNotStoredError:
    """The error for a repeat whose scores are no longer stored."""
    told = {name: facts[name] for name in ("version", "position") if name in facts}
    return errors.ScoresNotStoredError("applied; its scores are no longer stored", applied="yes", facts=told)


def score_candidates(session_id: str, candidates: Sequence[str | Options], given: Options) -> Call[Ranking]:
    """Build ``POST …/score``; a candidate is a text or an object with ``id``, ``text``, ``given``."""
    rows = [{"text": row} if isinstance(row, str) else row for row in candidates]
    path = session_path(session_id, "score")
    return post(path, partial(models.decode, Ranking), {"candidates": rows, **given})


def import_session(data: bytes, given: Options) -> Call[SessionInfo]:
    """Build ``POST /sessions/import`` for the bytes of an exported session."""
    params, headers = changing(checked(given, options.ImportOptions))
    read = partial(models.decode, SessionInfo)
    call = Call(method="POST", path="/sessions/import", read=read, params=_params(params), headers=headers)
    return replace(call, content=data, content_type=OCTETS)


# ---- when to send a call again ----------------------------------------------------------------------------

_WAIT_WHEN_TOLD = {409, 429, 503}
_INTERRUPTIONS = (
    errors.DrainingError,
    errors.OverloadedError,
    errors.StoreUnavailableError,
    errors.SlowConsumerError,
    errors.OutcomeUnknownError,
)
_OPEN = (errors.NoAnswerError, errors.InFlightError, errors.OutcomeUnknownError, errors.GatewayError)


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often and how long; ``Retries(attempts=1)`` sends everything once.

    attempts          how often a call is sent at most
    first_wait_s      seconds before the second attempt, doubled for each further one
    longest_wait_s    a server that asks for more is not waited for; its error is raised
    """

    attempts: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 30.0

    def wait(self, call: Call[Any], error: RLSTMError, attempt: int, chance: float) -> float | None:
        """Return the seconds to wait after failed ``attempt`` (1 is the first), or None to give up.

        ``chance`` in [0, 1) spreads clients that failed together over the wait's upper half, and over half
        as much again where the server named the time.
        """
        if attempt >= self.attempts or not repeatable(call, error):
            return None
        backoff: float = min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s)
        if error.retry_after is None:
            return backoff * (1 + chance) / 2
        if error.retry_after > self.longest_wait_s:
            return None
        return error.retry_after + backoff * chance / 2


def repeatable(call: Call[Any], error: RLSTMError) -> bool:
    """Whether the same call may succeed later and cannot do harm.

    That is so where it reads, or has a key. A stream is repeated before its first event; afterwards it goes
    on where the server keeps its text.
    """
    if call.resumable and isinstance(error, _INTERRUPTIONS):
        return True
    if error.applied == "yes":
        return False
    if isinstance(error, errors.TimedOutError):
        # Work without a key would be done from the start again: repeating it adds load and no chance.
        return call.keyed or call.method != "POST"
    if isinstance(error, _OPEN):
        return True
    return error.status in _WAIT_WHEN_TOLD and error.retry_after is not None


def still_open(error: RLSTMError, before: bool) -> bool:
    """Whether it is open, after this error too, if the call took effect; the error then says so.

    An attempt that reached no server tells nothing of one before it; a server that answers has looked.
    """
    if before and isinstance(error, errors.NoAnswerError) and error.applied == "no":
        error.applied = "unknown"
    return error.applied == "unknown"


DEFAULT_RETRIES = Retries()
