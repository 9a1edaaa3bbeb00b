"""Every call of the HTTP interface, built from its arguments. No input, no output.

Arguments that are None are not sent, so the server's own defaults hold. A call that changes a session always
carries an idempotency key.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlstm_client import _read
from rlstm_client._call import OCTETS, Call, encode, new_key
from rlstm_client.errors import RequestError
from rlstm_client.models import (
    AppendResult,
    Generation,
    Health,
    Ranking,
    ScoreResult,
    ServerInfo,
    SessionInfo,
    SessionPage,
    Snapshot,
    TokenizerInfo,
)

T = TypeVar("T")
Fields = Mapping[str, Any]

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_SNAPSHOT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def score(
    text: str | None = None,
    *,
    model: str | None = None,
    items: Sequence[Fields] | None = None,
    tokens: Sequence[int] | None = None,
    context: str | None = None,
    context_tokens: Sequence[int] | None = None,
    unit: str | None = None,
    scores: str | None = None,
    words: bool | None = None,
    top: int | None = None,
    adapt: bool | None = None,
    adaptation: Fields | None = None,
) -> Call[ScoreResult]:
    """Build ``POST /score``: one text, one list of ids, or up to 256 items."""
    body = {
        "model": model, "text": text, "items": items, "tokens": tokens, "context": context,
        "context_tokens": context_tokens, "unit": unit, "scores": scores, "words": words, "top": top,
        "adapt": adapt, "adaptation": adaptation,
    }  # fmt: skip
    return _post("/score", body, _read.score_result)


def generate(
    prompt: str | None = None, *, model: str | None = None, stream: bool = False, **options: Any
) -> Call[Generation]:
    """Build ``POST /generate``; an empty prompt starts from the beginning-of-text token."""
    body = {"model": model} | generation_body(prompt, stream=stream, **options)
    return replace(_post("/generate", body, _read.generation), choices=options.get("n") or 1)


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
    logprobs: bool | None = None,
    unit: str | None = None,
) -> dict[str, Any]:
    """Return the members of a ``generate`` body."""
    return {
        "prompt": prompt, "stream": stream or None, "tokens": tokens, "max_tokens": max_tokens,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "seed": seed, "n": n,
        "stop": stop, "logprobs": logprobs, "unit": unit,
    }  # fmt: skip


def tokenize(
    prompt: str, *, model: str | None = None, add_special_tokens: bool | None = None
) -> Call[Sequence[int]]:
    """Build ``POST /tokenize``."""
    body = {"prompt": prompt, "model": model, "add_special_tokens": add_special_tokens}
    return _post("/tokenize", body, _read.token_ids)


def detokenize(tokens: Sequence[int], *, model: str | None = None) -> Call[str]:
    """Build ``POST /detokenize``."""
    return _post("/detokenize", {"tokens": tokens, "model": model}, _read.token_text)


def tokenizer_info(*, model: str | None = None) -> Call[TokenizerInfo]:
    """Build ``GET /tokenizer_info``."""
    params = _params(model=model)
    return Call(method="GET", path="/tokenizer_info", params=params, read=_read.tokenizer_info)


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
    model: str | None = None,
    name: str | None = None,
    adaptation: Fields | None = None,
    ttl_seconds: float | None = None,
    metadata: Fields | None = None,
    text: str | None = None,
    tokens: Sequence[int] | None = None,
    scores: str | None = None,
    unit: str | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``POST /sessions``."""
    body = {
        "model": model, "name": name, "adaptation": adaptation, "ttl_seconds": ttl_seconds,
        "metadata": metadata, "text": text, "tokens": tokens, "scores": scores, "unit": unit,
    }  # fmt: skip
    return _post("/sessions", body, _read.session_info, _change_headers(idempotency_key))


def list_sessions(
    *, cursor: str | None = None, limit: int | None = None, name: str | None = None
) -> Call[SessionPage]:
    """Build ``GET /sessions``."""
    params = _params(cursor=cursor, limit=limit, name=name)
    return Call(method="GET", path="/sessions", params=params, read=_read.session_page)


def get_session(session_id: str, *, min_version: int | None = None) -> Call[SessionInfo]:
    """Build ``GET /sessions/{id}``."""
    params = _params(min_version=min_version)
    return Call(method="GET", path=session_path(session_id), params=params, read=_read.session_info)


def update_session(
    session_id: str,
    *,
    ttl_seconds: float | None = None,
    metadata: Fields | None = None,
    learning: bool | None = None,
    if_match: int | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``PATCH /sessions/{id}``."""
    body = {"ttl_seconds": ttl_seconds, "metadata": metadata, "learning": learning}
    headers = _change_headers(idempotency_key, if_match)
    call = _post(session_path(session_id), body, _read.session_info, headers)
    return replace(call, method="PATCH")


def delete_session(session_id: str) -> Call[None]:
    """Build ``DELETE /sessions/{id}``; deleting twice is no error."""
    return Call(method="DELETE", path=session_path(session_id), read=lambda _: None)


def append(
    session_id: str,
    text: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
    learn: bool | None = None,
    final: bool | None = None,
    scores: str | None = None,
    unit: str | None = None,
    if_match: int | None = None,
    idempotency_key: str | None = None,
) -> Call[AppendResult]:
    """Build ``POST /sessions/{id}/append`` for one piece of text, or of ids."""
    body = {
        "text": text, "tokens": tokens, "learn": learn, "final": final, "scores": scores, "unit": unit,
    }  # fmt: skip
    path = session_path(session_id, "append")
    return _post(path, body, _read.append_result, _change_headers(idempotency_key, if_match))


def score_candidates(
    session_id: str,
    candidates: Sequence[str | Fields],
    *,
    weights: Mapping[str, float] | None = None,
    unit: str | None = None,
    min_version: int | None = None,
) -> Call[Ranking]:
    """Build ``POST …/score``; a candidate is a text or an object with ``id``, ``text``, ``given``."""
    rows = [{"text": row} if isinstance(row, str) else row for row in candidates]
    body = {"candidates": rows, "weights": weights, "unit": unit, "min_version": min_version}
    return _post(session_path(session_id, "score"), body, _read.ranking)


def generate_in_session(
    session_id: str,
    *,
    stream: bool = False,
    commit: bool | None = None,
    learn_from_output: bool | None = None,
    min_version: int | None = None,
    idempotency_key: str | None = None,
    if_match: int | None = None,
    **options: Any,
) -> Call[Generation]:
    """Build ``POST /sessions/{id}/generate``; only a generation that is kept changes the session.

    Raises:
        RequestError: ``if_match`` or ``idempotency_key`` for a text that is not kept, where neither holds.
    """
    if not commit and (if_match is not None or idempotency_key is not None):
        raise RequestError("if_match and idempotency_key are of a text that is kept: give commit=True too")
    body = generation_body(stream=stream, **options)
    body |= {"commit": commit, "learn_from_output": learn_from_output, "min_version": min_version}
    headers = _change_headers(idempotency_key, if_match) if commit else {}
    call = _post(session_path(session_id, "generate"), body, _read.generation, headers)
    return replace(call, resumable=bool(commit))


def reset_session(
    session_id: str,
    *,
    what: str | None = None,
    if_match: int | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``POST /sessions/{id}/reset``."""
    path = session_path(session_id, "reset")
    return _post(path, {"what": what}, _read.session_info, _change_headers(idempotency_key, if_match))


def take_snapshot(
    session_id: str, name: str, *, if_match: int | None = None, idempotency_key: str | None = None
) -> Call[Snapshot]:
    """Build ``POST /sessions/{id}/snapshots``."""
    path = session_path(session_id, "snapshots")
    return _post(path, {"name": name}, _read.snapshot, _change_headers(idempotency_key, if_match))


def list_snapshots(session_id: str, *, min_version: int | None = None) -> Call[Sequence[Snapshot]]:
    """Build ``GET /sessions/{id}/snapshots``."""
    path, params = session_path(session_id, "snapshots"), _params(min_version=min_version)
    return Call(method="GET", path=path, params=params, read=_read.snapshots)


def drop_snapshot(session_id: str, name: str) -> Call[None]:
    """Build ``DELETE /sessions/{id}/snapshots/{name}``; dropping twice is no error."""
    if not _SNAPSHOT.fullmatch(name):
        raise RequestError(f"{name[:40]!r} is not the name of a snapshot")
    return Call(method="DELETE", path=session_path(session_id, f"snapshots/{name}"), read=lambda _: None)


def restore_session(
    session_id: str, snapshot: str, *, if_match: int | None = None, idempotency_key: str | None = None
) -> Call[SessionInfo]:
    """Build ``POST /sessions/{id}/restore``."""
    path, headers = session_path(session_id, "restore"), _change_headers(idempotency_key, if_match)
    return _post(path, {"snapshot": snapshot}, _read.session_info, headers)


def fork_session(
    session_id: str,
    *,
    name: str | None = None,
    snapshot: str | None = None,
    ttl_seconds: float | None = None,
    metadata: Fields | None = None,
    min_version: int | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``POST /sessions/{id}/fork``."""
    body = {
        "name": name, "snapshot": snapshot, "ttl_seconds": ttl_seconds, "metadata": metadata,
        "min_version": min_version,
    }  # fmt: skip
    return _post(session_path(session_id, "fork"), body, _read.session_info, _change_headers(idempotency_key))


def export_session(session_id: str, *, min_version: int | None = None) -> Call[None]:
    """Build ``GET /sessions/{id}/export``; the answer is a file, written as it comes."""
    path, params = session_path(session_id, "export"), _params(min_version=min_version)
    return Call(method="GET", path=path, params=params, read=lambda _: None)


def import_session(
    data: bytes,
    *,
    name: str | None = None,
    ttl_seconds: float | None = None,
    idempotency_key: str | None = None,
) -> Call[SessionInfo]:
    """Build ``POST /sessions/import`` for the bytes of an exported session."""
    return Call(
        method="POST",
        path="/sessions/import",
        params=_params(name=name, ttl_seconds=ttl_seconds),
        read=_read.session_info,
        content=data,
        content_type=OCTETS,
        headers=_change_headers(idempotency_key),
    )


def session_path(session_id: str, verb: str | None = None) -> str:
    """Return the path of a session's route; an id that no server can have made is a `RequestError`."""
    if not _SESSION_ID.fullmatch(session_id):
        raise RequestError(f"{session_id[:40]!r} is not a session id")
    return f"/sessions/{session_id}" + (f"/{verb}" if verb else "")


def _params(**given: Any) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}


def _post(
    path: str, body: Fields, read: Callable[[Any], T], headers: Mapping[str, str] | None = None
) -> Call[T]:
    return Call(method="POST", path=path, read=read, content=encode(body), headers=headers or {})


def checked_key(key: str) -> str:
    """Return an idempotency key; one that no server takes is a `RequestError`."""
    if not _KEY.fullmatch(key):
        raise RequestError("an idempotency key is 1 to 200 visible ASCII characters")
    return key


def _change_headers(key: str | None, if_match: int | None = None) -> dict[str, str]:
    headers = {"Idempotency-Key": checked_key(key) if key is not None else new_key()}
    return headers if if_match is None else {**headers, "If-Match": f'"{if_match}"'}
