"""What users send stays in their sessions: no log, metric or error of the server or its store holds it."""

import hashlib
import json
import os
import signal

import pytest

pytestmark = pytest.mark.faults

CANARY = "Canary7f3a"
KEY = f"{CANARY}-of-the-key"
TOKENS = list(CANARY.encode())
TRACES = [CANARY.encode(), CANARY.lower().encode(), json.dumps(TOKENS)[1:-1].encode()]
TRACES += [json.dumps(TOKENS, separators=(",", ":"))[1:-1].encode(), CANARY.encode().hex().encode()]

BODIES = [
    {"text": CANARY, "scores": "tokens"},
    {"tokens": TOKENS},
    {"prompt": CANARY, "stop": CANARY, "max_tokens": 3},
    {"prompt": CANARY, "max_tokens": 3, "stream": True},
    {"max_tokens": 3, "commit": True, "stream": True},
    {"candidates": [{"id": CANARY, "text": CANARY}]},
    {"name": CANARY, "metadata": {CANARY: CANARY}, "text": CANARY},
    {"metadata": {CANARY: CANARY}},
    {"name": CANARY},
    {"snapshot": CANARY},
    {"what": CANARY},
    {f"{CANARY} ": CANARY},  # a wrong field is named only where it looks like one of ours
    {"text": f"{CANARY}\ud83d"},
    {"adaptation": {"kind": CANARY}},
]
HEADERS = [
    {},
    {"authorization": f"Bearer {CANARY}"},
    {"authorization": CANARY},
    {"idempotency-key": CANARY},
    {"idempotency-key": f"{CANARY} {CANARY}"},
    {"if-match": CANARY},
    {"x-request-id": f"<{CANARY}>"},
    {"content-type": CANARY},
    {"last-event-id": CANARY},
    {"cookie": CANARY, "user-agent": CANARY, "referer": CANARY, "x-forwarded-for": CANARY},
]


def requests(routes, session):
    """Every route with everything that could be told of it, by the right names and by wrong ones."""
    for method, template in routes:
        path = template.replace("{session_id}", session).replace("{snapshot}", CANARY)
        for body in BODIES if method in {"POST", "PATCH"} else BODIES[:1]:
            yield method, path, body, {}
        for headers in HEADERS:
            yield method, path, BODIES[0], headers
        yield method, f"{path}/{CANARY}?{CANARY}={CANARY}", BODIES[0], {}
    for text in (f'{{"text":"{CANARY}', f'{{"{CANARY}":1,"{CANARY}":2}}', f"{CANARY}"):
        yield "POST", "/score", text, {}
    yield CANARY.upper(), f"/{CANARY}", {}, {}


def test_no_text_is_found_outside_the_sessions(start, tmp_path):
    """Text, tokens, names, metadata, keys and headers on every route; then the store dies, and again."""
    refusals, asked = [], 0
    environment = {
        "RLSTM_API_KEYS": KEY,
        "RLSTM_LOG_LEVEL": "debug",
        "RLSTM_AUDIT_FILE": str(tmp_path / "audit"),
        "RLSTM_LIMITS__FAILED_LOGINS": "1000",
    }
    with start(data_dir=tmp_path / "data", **environment) as server, server.client() as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        documented = client.get("/openapi.json").json()["paths"]
        routes = [(method.upper(), path) for path, item in documented.items() for method in item]
        routes.sort(key=lambda route: route[0] == "DELETE")
        for round_ in range(2):
            session = client.post("/sessions", json={"text": CANARY}).json().get("id", "0" * 32)
            for method, path, body, headers in requests(routes[:: 1 + 8 * round_], session):
                content = body if isinstance(body, str) else json.dumps(body)
                headers = {"content-type": "application/json"} | headers
                answer = client.request(method, path, content=content, headers=headers)
                asked += 1
                if answer.status_code >= 400:
                    refusals.append(answer.content + str(answer.headers).encode())
            pid = json.loads((tmp_path / "data" / "store.json").read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
        metrics = client.get("/metrics").content
        code, _ = server.end()
        assert code == 0
        written = {
            "log": server.log.read_bytes(),
            "standard output": (server.greeting + server.process.stdout.read()).encode(),
            "metrics": metrics,
            "audit log": (tmp_path / "audit").read_bytes(),
            "store's log": b"".join(path.read_bytes() for path in (tmp_path / "data").glob("store*.log*")),
            "refusals": b"\n".join(refusals),
        }
    hits = [(name, trace) for name, text in written.items() for trace in TRACES if trace in text]
    size = sum(len(text) for text in written.values()) / 2**20
    print(f"\n{asked} requests, {len(refusals)} refused: {len(hits)} hits in {size:.2f} MB")
    assert hits == []
    assert asked > 400
    assert len(refusals) > 200
    assert min(len(text) for text in written.values()) > 0
    assert hashlib.sha256(KEY.encode()).hexdigest()[:8].encode() in written["audit log"]
