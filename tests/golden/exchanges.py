"""A request and an answer of every route and of every error that a caller can cause, of real servers.

Errors that need a race or a broken disk are the unit tests'.
"""

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.golden.numbers import ENGLISH, MIXED, SEA
from tests.golden.recorder import Recorder, masked, running
from tests.servers import Server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

LEARNERS = [
    *(
        {"kind": kind, "experts": experts}
        for kind in ("subspace", "full", "output_bias")
        for experts in (1, 4)
    ),
    {"experts": 2, "rate_scale": 3.0},
    {"experts": 1, "static": False},
    {"rate_scale": 0.0},
]
KEYS = {
    "all-of-it": {"tenant": "one", "scopes": ["score", "generate", "sessions", "admin"]},
    "only-score": {"tenant": "one", "scopes": ["score"]},
    "other-one": {"tenant": "two", "scopes": ["score", "generate", "sessions", "admin"]},
    "little-of-it": {
        "tenant": "three",
        "scopes": ["score", "generate", "sessions"],
        "quotas": {"tokens_per_second": 5.0, "sessions": 1},
    },
}


def record(models: dict[str, str], work: Path) -> list[dict[str, Any]]:
    """All exchanges, in order."""
    kept: list[dict[str, Any]] = []
    named = [place if name == place else f"{name}={place}" for name, place in models.items()]
    with running(work / "open", *named) as server:
        ask = Recorder(server, kept)
        _operations(ask)
        _scores(ask, list(models))
        _generations(ask)
        _openai(ask)
        _sessions(ask)
        _learners(ask)
        _copies(ask)
        _stream(server, ask, kept)
        _wrong(ask)
        staying = ask(
            "create to be read after a restart", "POST", "/sessions", {"model": "tiny", "text": SEA}
        )
        other = ask("create of another model", "POST", "/sessions", {"model": "words-small", "text": SEA})
    with running(work / "open", f"tiny={models['tiny']}") as server:
        ask = Recorder(server, kept)
        ask("append after a restart", "POST", f"/sessions/{staying['id']}/append", {"text": SEA})
        ask("a model that is not served", "POST", f"/sessions/{other['id']}/append", {"text": SEA})
        _store_down(server, ask, staying["id"])
    _keys(models, work, kept)
    return kept


def document(models: dict[str, str], work: Path) -> Any:
    """The document of a server."""
    with running(work / "document", f"tiny={models['tiny']}") as server:
        return server.client().get("/openapi.json").json()


def _operations(ask: Recorder) -> None:
    for path in ("/health/live", "/health/ready", "/info", "/metrics", "/", "/v1/models", "/v1/models/tiny"):
        ask(f"GET {path}", "GET", path)
    for model in ("tiny", "words-small", "subwords", "bytes-small"):
        ask(f"tokenizer of {model}", "GET", f"/tokenizer_info?model={model}")
        told = ask(f"tokenize {model}", "POST", "/tokenize", {"model": model, "prompt": SEA})
        ask(f"detokenize {model}", "POST", "/detokenize", {"model": model, "tokens": told["tokens"]})
    ask("tokenize with bos", "POST", "/tokenize", {"prompt": "a", "add_special_tokens": True})
    ask("detokenize what is no text", "POST", "/detokenize", {"tokens": [200]})
    ask("HEAD", "HEAD", "/health/ready")
    ask("OPTIONS", "OPTIONS", "/score")


def _scores(ask: Recorder, models: list[str]) -> None:
    for model in models:
        items = [{"id": "a", "text": ENGLISH}, {"text": MIXED, "context": SEA}, {"text": "x"}]
        ask(f"score {model}", "POST", "/score", {"model": model, "items": items, "top": 2, "words": True})
        ask(f"score {model} adapted", "POST", "/score", {"model": model, "text": SEA * 3, "adapt": True})
    for index, learner in enumerate(LEARNERS):
        body = {"model": "tiny", "text": SEA * 3, "adaptation": learner, "unit": "bits"}
        ask(f"score as learner {index}", "POST", "/score", body)
    for unit in ("nats", "bits", "log10"):
        body = {"text": "the sea", "unit": unit, "top": 1, "model": "tiny"}
        ask(f"score in {unit}", "POST", "/score", body)
    ask("score totals", "POST", "/score", {"text": SEA, "scores": "totals", "model": "tiny"})
    ask("score of ids", "POST", "/score", {"tokens": [97, 98], "context_tokens": [99], "model": "tiny"})
    ask("score bytes that are no text", "POST", "/score", {"tokens": [200, 97], "model": "tiny"})


def _generations(ask: Recorder) -> None:
    sampled = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    plans: dict[str, dict[str, Any]] = {
        "plain": {"prompt": "the sea ", "max_tokens": 30},
        "greedy": {"prompt": "the sea ", "max_tokens": 30, "temperature": 0, "unit": "bits"},
        "sampled": {"prompt": "It was ", "max_tokens": 30, **sampled},
        "several": {"prompt": "It was ", "max_tokens": 10, "n": 3, "logprobs": False},
        "stopped": {"prompt": "It was the best", "max_tokens": 200, "stop": ["e", "t"]},
        "of ids": {"tokens": [97, 32], "max_tokens": 5},
        "of nothing": {"max_tokens": 5},
        "streamed": {"prompt": "It was ", "max_tokens": 8, "n": 2, "stream": True},
    }
    for model in ("bytes-small", "tiny"):
        for name, body in plans.items():
            ask(f"generate {name} by {model}", "POST", "/generate", {"model": model, "seed": 11, **body})
    for model in ("words-small", "subwords"):
        ask(f"generate by {model}", "POST", "/generate", {"model": model, "seed": 1, "max_tokens": 12})


def _openai(ask: Recorder) -> None:
    plans: dict[str, dict[str, Any]] = {
        "plain": {"prompt": "It was", "max_tokens": 10},
        "echoed": {"prompt": ["It was", "the sea"], "max_tokens": 0, "echo": True, "logprobs": 2},
        "both": {"prompt": "It was", "max_tokens": 4, "echo": True, "logprobs": 1, "n": 2},
        "with ids": {"prompt": "It was", "max_tokens": 4, "logprobs": 1, "return_token_ids": True},
        "of ids": {"prompt": [[97, 98], [99]], "max_tokens": 3, "logprobs": 0},
        "with bos": {"prompt": "It", "echo": True, "logprobs": 1, "add_special_tokens": True},
        "streamed": {"prompt": "It", "stream": True, "stream_options": {"include_usage": True}},
        "stopped": {"prompt": "It was", "max_tokens": 60, "stop": "e", "temperature": 0.9, "top_p": 0.9},
        "with a field that is ignored": {"prompt": "It", "max_tokens": 2, "user": "me"},
    }
    for model in ("bytes-small", "tiny", "tiny:adapt"):
        for name, body in plans.items():
            body = {"model": model, "seed": 3, **body}
            ask(f"completion {name} by {model}", "POST", "/v1/completions", body)
        body = {"context": SEA, "continuation": "the sea"}
        ask(f"logprob by {model}", "POST", f"/v1/engines/{model}/logprob", body)
    wrong: dict[str, Any] = {
        "unknown model": {"model": "none", "prompt": "a"},
        "no prompt": {"model": "tiny"},
        "not built": {"model": "tiny", "prompt": "a", "suffix": "b"},
        "best_of": {"model": "tiny", "prompt": "a", "best_of": 3},
        "id outside": {"model": "tiny", "prompt": [999]},
        "empty stop": {"model": "tiny", "prompt": "a", "stop": [""]},
        "too many": {"model": "tiny", "prompt": "a", "max_tokens": 60_000, "n": 16},
        "a lone surrogate": {"model": "tiny", "prompt": "\ud800"},
        "a number": 3,
    }
    for name, body in wrong.items():
        ask(f"completion refused: {name}", "POST", "/v1/completions", body)
    ask("completion not JSON", "POST", "/v1/completions", raw=b"{")
    ask("completion of another type", "POST", "/v1/completions", raw=b"{}", content_type="text/plain")
    ask("completion by GET", "GET", "/v1/completions")
    ask("no such model", "GET", "/v1/models/none")
    ask("no such route under v1", "GET", "/v1/nothing")


def _sessions(ask: Recorder) -> None:
    body: dict[str, Any] = {"model": "tiny", "name": "first", "metadata": {"a": 1, "b": None, "c": "x"}}
    made = ask("create", "POST", "/sessions", body, idempotency_key="k-create")
    ask("create again", "POST", "/sessions", body, idempotency_key="k-create")
    ask("create, same name", "POST", "/sessions", body)
    path = f"/sessions/{made['id']}"
    ask("info", "GET", path)
    ask("append", "POST", f"{path}/append", {"text": ENGLISH}, idempotency_key="k1", if_match='"0"')
    ask("append again", "POST", f"{path}/append", {"text": ENGLISH}, idempotency_key="k1")
    ask("append other, same key", "POST", f"{path}/append", {"text": "b"}, idempotency_key="k1")
    ask("append at another version", "POST", f"{path}/append", {"text": "b"}, if_match='"9"')
    ask("append with a strange match", "POST", f"{path}/append", {"text": "b"}, if_match="x")
    for scores in ("tokens", "totals", "none"):
        body = {"text": MIXED, "scores": scores, "unit": "bits"}
        ask(f"append for {scores}", "POST", f"{path}/append", body)
    ask("append without learning", "POST", f"{path}/append", {"text": SEA, "learn": False, "final": True})
    ask("append ids", "POST", f"{path}/append", {"tokens": [104, 105, 32]})
    candidates = [{"id": "x", "text": "the sea"}, {"text": "xyz", "given": -2.5}, {"tokens": [97, 98]}]
    weights = {"lm": 0.8, "length": 0.5, "given": 1.0}
    ask("rank", "POST", f"{path}/score", {"candidates": candidates})
    ask(
        "rank weighed",
        "POST",
        f"{path}/score",
        {"candidates": candidates, "weights": weights, "unit": "log10"},
    )
    _continuations(ask, path)
    _versions(ask, path)
    ask("delete", "DELETE", path)
    ask("delete again", "DELETE", path)
    ask("append to the deleted", "POST", f"{path}/append", {"text": "a"})
    ask("unknown session", "GET", f"/sessions/{'0' * 32}")
    short = ask("create for a second", "POST", "/sessions", {"model": "tiny", "ttl_seconds": 1})
    time.sleep(2.5)
    ask("append to the expired", "POST", f"/sessions/{short['id']}/append", {"text": "a"})


def _continuations(ask: Recorder, path: str) -> None:
    for name, body in {
        "plain": {"max_tokens": 12, "seed": 2},
        "streamed": {"max_tokens": 5, "seed": 2, "stream": True},
        "kept": {"max_tokens": 12, "seed": 2, "commit": True},
        "kept and learned": {"max_tokens": 12, "seed": 2, "commit": True, "learn_from_output": True},
        "kept, streamed": {"max_tokens": 12, "seed": 4, "commit": True, "stream": True},
    }.items():
        ask(
            f"continue {name}",
            "POST",
            f"{path}/generate",
            body,
            idempotency_key=f"k {name}".replace(" ", "-"),
        )
    body = {"max_tokens": 12, "seed": 2, "commit": True}
    ask("continue again", "POST", f"{path}/generate", body, idempotency_key="k-kept")
    body = {"max_tokens": 12, "seed": 4, "commit": True, "stream": True}
    ask("continue, streamed again", "POST", f"{path}/generate", body, idempotency_key="k-kept,-streamed")


def _versions(ask: Recorder, path: str) -> None:
    ask("snapshot", "POST", f"{path}/snapshots", {"name": "one"})
    ask("append after it", "POST", f"{path}/append", {"text": SEA})
    ask("snapshot of the same name", "POST", f"{path}/snapshots", {"name": "one"})
    ask("snapshots", "GET", f"{path}/snapshots")
    ask("restore", "POST", f"{path}/restore", {"snapshot": "one"})
    ask("append the same after it", "POST", f"{path}/append", {"text": SEA})
    ask("restore what is not there", "POST", f"{path}/restore", {"snapshot": "two"})
    for what in ("fast_weights", "recurrent", "both"):
        ask(f"reset {what}", "POST", f"{path}/reset", {"what": what})
        ask(f"append after reset of {what}", "POST", f"{path}/append", {"text": SEA})
    ask("update", "PATCH", path, {"ttl_seconds": 5000, "metadata": {"d": 2.5}, "learning": False})
    ask("append without learning allowed", "POST", f"{path}/append", {"text": SEA})
    ask("update nothing", "PATCH", path, {})
    ask("info at a version", "GET", f"{path}?min_version=5")
    ask("info at a later version", "GET", f"{path}?min_version=9000")
    ask("list", "GET", "/sessions?limit=5")
    ask("list by name", "GET", "/sessions?name=first")
    ask("list nothing", "GET", "/sessions?name=none")
    ask("drop a snapshot", "DELETE", f"{path}/snapshots/one")
    ask("drop it again", "DELETE", f"{path}/snapshots/one")


def _learners(ask: Recorder) -> None:
    for index, learner in enumerate(
        [*LEARNERS, {"kind": "sparse"}, {"kind": "subspace", "num_fast_weights": 5}]
    ):
        body = {"model": "tiny", "adaptation": learner, "text": ENGLISH, "unit": "bits"}
        made = ask(f"create as learner {index}", "POST", "/sessions", body)
        if "id" in made:
            ask(f"append as learner {index}", "POST", f"/sessions/{made['id']}/append", {"text": SEA * 2})
    for model in ("bytes-small", "words-small", "subwords"):
        made = ask(f"create by {model}", "POST", "/sessions", {"model": model, "text": ENGLISH})
        if "id" not in made:
            continue
        path = f"/sessions/{made['id']}"
        for text in (SEA, MIXED, SEA):
            ask(f"append by {model}", "POST", f"{path}/append", {"text": text})
        body = {"max_tokens": 12, "seed": 6, "commit": True, "learn_from_output": True}
        ask(f"continue by {model}", "POST", f"{path}/generate", body)
        ask(f"append by {model} after it", "POST", f"{path}/append", {"text": SEA})


def _copies(ask: Recorder) -> None:
    made = ask("create a source", "POST", "/sessions", {"model": "tiny", "text": SEA})
    path = f"/sessions/{made['id']}"
    ask("snapshot of the source", "POST", f"{path}/snapshots", {"name": "then"})
    ask("append to the source", "POST", f"{path}/append", {"text": ENGLISH})
    for name, body in {"now": {"name": "copy"}, "then": {"snapshot": "then", "metadata": {}}}.items():
        fork = ask(f"fork {name}", "POST", f"{path}/fork", body, idempotency_key=f"k-fork-{name}")
        ask(f"append to fork {name}", "POST", f"/sessions/{fork['id']}/append", {"text": SEA})
    ask("fork what is not there", "POST", f"{path}/fork", {"snapshot": "none"})
    file = ask("export", "GET", f"{path}/export")
    octets = {"content_type": "application/octet-stream"}
    again = ask("import", "POST", "/sessions/import?name=back", raw=file, **octets)
    ask("append to the imported", "POST", f"/sessions/{again['id']}/append", {"text": SEA})
    ask("append to its source", "POST", f"{path}/append", {"text": SEA})
    ask("import half of it", "POST", "/sessions/import", raw=file[: len(file) // 2], **octets)
    ask("import what is no file", "POST", "/sessions/import", raw=b"nothing", **octets)
    ask("import as JSON", "POST", "/sessions/import", {"a": 1})


def _stream(server: Server, ask: Recorder, kept: list[dict[str, Any]]) -> None:
    made = ask("create for a stream", "POST", "/sessions", {"model": "tiny"})
    query = "?stream=mine&unit=bits"
    frames: list[Any] = [
        [{"seq": 1, "text": SEA}, {"seq": 2, "text": MIXED, "learn": False}, {"seq": 3, "tokens": [97]}],
        [{"seq": 3, "tokens": [97]}, {"seq": 4, "text": "the end", "final": True}, {"seq": 9, "text": "x"}],
        [{"seq": 3, "text": "another text"}],
        [{"seq": "one"}],
        ["{"],
        [{"seq": 1, "text": "x" * 70_000}],
    ]
    url = f"{(server.url or '').replace('http', 'ws')}/sessions/{made['id']}/stream{query}"
    for number, sent in enumerate(frames):
        told: list[Any] = []
        try:
            with connect(url, subprotocols=["rlstm.v1"], compression=None, max_size=None) as socket:  # type: ignore[list-item]
                told.append(json.loads(socket.recv(timeout=60)))
                for frame in sent:
                    socket.send(frame if isinstance(frame, str) else json.dumps(frame))
                    told.append(json.loads(socket.recv(timeout=60)))
        except ConnectionClosed as closed:
            told.append({"closed": closed.rcvd.code if closed.rcvd else None})
        sizes = [frame if len(str(frame)) < 1000 else f"{len(str(frame))} characters" for frame in sent]
        kept.append({"name": f"stream {number}", "request": sizes, "answer": masked(told)})
    try:
        with connect(url.replace(made["id"], "0" * 32)):
            pass
    except InvalidStatus as refused:
        body = json.loads(refused.response.body or b"null")
        told = [refused.response.status_code, masked(body)]
        kept.append({"name": "stream of no session", "request": "", "answer": told})
    ask("stream without a WebSocket", "GET", f"/sessions/{made['id']}/stream")


def _wrong(ask: Recorder) -> None:
    bodies: dict[str, Any] = {
        "an unknown field": {"text": "a", "more": 1},
        "nothing to score": {},
        "both": {"text": "a", "tokens": [1]},
        "an empty text": {"text": ""},
        "a number for a text": {"text": 1},
        "an unknown unit": {"text": "a", "unit": "bans"},
        "an unknown model": {"text": "a", "model": "none"},
        "too many alternatives": {"text": "a", "top": 101},
        "no such experts": {"text": "a", "adaptation": {"experts": 3}},
        "experts without static": {"text": "a", "adaptation": {"experts": 2, "static": False}},
        "no such number of fast weights": {"text": "a", "adaptation": {"num_fast_weights": 7}},
        "an id outside the vocabulary": {"tokens": [70_000], "model": "tiny"},
        "too many items": {"items": [{"text": "a"}] * 257},
        "several faults": {"items": [{"text": 1}, {"tokens": []}, {"id": 3, "text": "a"}], "unit": 1},
        "a list": [],
    }
    for name, body in bodies.items():
        ask(f"score refused: {name}", "POST", "/score", body)
    raws = {
        "half": b'{"text": "a"',
        "twice": b'{"text": "a", "text": "b"}',
        "not a number": b'{"text": "a", "top": NaN}',
        "a lone surrogate": b'{"text": "\\ud800"}',
        "not UTF-8": b'{"text": "\xff"}',
        "deep": b"[" * 2000,
        "empty": b"",
    }
    for name, raw in raws.items():
        ask(f"score refused: {name}", "POST", "/score", raw=raw)
    ask("score of another type", "POST", "/score", raw=b"{}", content_type="text/plain")
    ask(
        "score with a charset",
        "POST",
        "/score",
        raw=b'{"text": "a"}',
        content_type="application/json; charset=latin-1",
    )
    ask("score by GET", "GET", "/score")
    ask("no such route", "GET", "/nothing")
    ask("a key that is none", "POST", "/sessions", {}, idempotency_key="a b")
    ask("a name that is none", "POST", "/sessions", {"name": "a b"})
    ask("metadata too long", "POST", "/sessions", {"metadata": {str(n): "x" * 512 for n in range(40)}})
    ask("a session's id that is none", "GET", "/sessions/abc")
    ask("a limit that is none", "GET", "/sessions?limit=x")
    ask("a cursor that is none", "GET", "/sessions?cursor=x")
    ask("an unknown parameter", "GET", "/sessions?more=1")
    ask("too much to generate", "POST", "/generate", {"n": 16, "max_tokens": 65_536})
    ask(
        "learning from what is not kept",
        "POST",
        f"/sessions/{'0' * 32}/generate",
        {"learn_from_output": True},
    )


def _store_down(server: Server, ask: Recorder, session: str) -> None:
    """The store's process is stopped, and goes on."""
    listed = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    for pid in listed:
        os.kill(int(pid), signal.SIGSTOP)
    try:
        if listed:
            ask("append while the store is stopped", "POST", f"/sessions/{session}/append", {"text": "a"})
            ask("ready while the store is stopped", "GET", "/health/ready")
    finally:
        for pid in listed:
            os.kill(int(pid), signal.SIGCONT)


def _keys(models: dict[str, str], work: Path, kept: list[dict[str, Any]]) -> None:
    file = work / "keys.json"
    entries = [{"sha256": hashlib.sha256(key.encode()).hexdigest(), **rest} for key, rest in KEYS.items()]
    file.write_text(json.dumps(entries))
    limits = {"RLSTM_LIMITS__BODY_BYTES": "4096", "RLSTM_LIMITS__RECEIVE_SECONDS": "1"}
    limits |= {"RLSTM_LIMITS__APPEND_TOKENS": "100", "RLSTM_LIMITS__FAILED_LOGINS": "3"}
    with running(work / "keyed", f"tiny={models['tiny']}", "--api-keys-file", str(file), **limits) as server:
        asks = {key: Recorder(server, kept, key) for key in KEYS}
        ask = asks["all-of-it"]
        made = ask("create with a key", "POST", "/sessions", {"text": "a"})
        path = f"/sessions/{made['id']}"
        asks["other-one"]("another tenant's", "GET", path)
        file_bytes = ask("export with a key", "GET", f"{path}/export")
        octets = {"content_type": "application/octet-stream"}
        ask("import with a key", "POST", "/sessions/import", raw=file_bytes, **octets)
        only = asks["only-score"]
        only("score with its scope", "POST", "/score", {"text": "a"})
        only("session without its scope", "GET", path)
        only("metrics without its scope", "GET", "/metrics")
        only("completion with its scope", "POST", "/v1/completions", {"model": "tiny", "prompt": "a"})
        little = asks["little-of-it"]
        little("one session of one", "POST", "/sessions", {})
        little("two sessions of one", "POST", "/sessions", {})
        for _ in range(2):
            little("more tokens than the quota", "POST", "/score", {"text": "a" * 400})
        little("the same under v1", "POST", "/v1/completions", {"model": "tiny", "prompt": "a" * 400})
        ask("a body over the limit", "POST", "/score", {"text": "a" * 5000})
        ask("the same under v1", "POST", "/v1/completions", {"model": "tiny", "prompt": "a" * 5000})
        ask("an append over the limit", "POST", f"{path}/append", {"text": "a" * 101})
        ask("deleted with a key", "DELETE", path)
        nobody = Recorder(server, kept)
        nobody("no key", "POST", "/score", {"text": "a"})
        nobody("no key under v1", "POST", "/v1/completions", {"model": "tiny", "prompt": "a"})
        nobody("open without a key", "GET", "/health/ready")
        wrong = Recorder(server, kept, "wrong-key")
        for _ in range(5):
            wrong("a wrong key", "GET", "/info")
