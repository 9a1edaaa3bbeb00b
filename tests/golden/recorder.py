"""Requests to real servers, kept with their answers. Ids, times and waits are masked."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.servers import Server, clean_environment

MASKED = [re.compile(text) for text in (r"\b[0-9a-f]{32}\b", r"\bcmpl-[0-9a-f]+", r"127\.0\.0\.1:\d+")]
TIMES = range(1_600_000_000, 2_300_000_000)
DROPPED = {"date", "content-length", "x-request-id", "server-timing", "connection", "keep-alive"}


def masked(value: Any) -> Any:
    """The same nest without what differs from run to run."""
    if isinstance(value, dict):
        return {name: masked(part) for name, part in value.items()}
    if isinstance(value, list):
        return [masked(part) for part in value]
    if isinstance(value, int | float) and int(value) in TIMES:
        return "<time>"
    if isinstance(value, str):
        for pattern in MASKED:
            value = pattern.sub("<id>", value)
    return value


class Recorder:
    """Sends requests to one server and keeps what was said, in order."""

    def __init__(self, server: Server, kept: list[dict[str, Any]], key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url, self.kept = server.url, kept
        self.client = httpx.Client(base_url=server.url, timeout=120, headers=headers)

    def __call__(
        self, name: str, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Any:
        """One request. `body` is sent as JSON, `raw` as it is; gives the parsed answer, or its bytes."""
        told = {key.replace("_", "-"): value for key, value in headers.items()}
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if body is not None or (raw is not None and "content-type" not in told):
            told.setdefault("content-type", "application/json")
        answer = self.client.request(method, path, content=content, headers=told)
        request = {"method": method, "path": masked(path), "headers": told}
        request["body"] = body if raw is None else f"{len(raw)} bytes"
        self.kept.append({"name": name, "request": masked(request), "answer": _answer(answer)})
        return _parsed(answer)


def _answer(answer: httpx.Response) -> dict[str, Any]:
    headers = {name: value for name, value in answer.headers.items() if name not in DROPPED}
    if answer.status_code == 429:
        headers |= {"retry-after": "<wait>"} if "retry-after" in headers else {}
    parsed = _parsed(answer)
    if isinstance(parsed, dict) and parsed.get("status") == 429:
        parsed = {**parsed, **({"retry_after": "<wait>"} if "retry_after" in parsed else {})}
        parsed["detail"] = re.sub(r"[\d.]+", "<n>", parsed["detail"])
    if isinstance(parsed, bytes):
        parsed = "<bytes>"
    return masked({"status": answer.status_code, "headers": headers, "body": parsed})


def _parsed(answer: httpx.Response) -> Any:
    kind = answer.headers.get("content-type", "")
    if "json" in kind and answer.content:
        return answer.json()
    if kind.startswith("text/event-stream"):
        return [_event(event) for event in answer.text.split("\n\n") if event and event[0] != ":"]
    if kind.startswith(("text/plain", "application/openmetrics-text")):
        return sorted(line for line in answer.text.splitlines() if line.startswith("# "))
    if kind.startswith(("text/", "application/javascript", "image/")):
        return f"<{kind}>"
    return answer.content


def _event(text: str) -> dict[str, Any]:
    """One server-sent event by its fields; its id without the digest of the stream's own key."""
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    if "id" in fields:
        fields["id"] = re.sub(r"[0-9a-f]{16}$", "<id>", fields["id"])
    return {name: json.loads(part) if part.startswith("{") else part for name, part in fields.items()}


@contextmanager
def running(folder: Path, *arguments: str, **variables: str) -> Iterator[Server]:
    """A server with its data in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(
        [*arguments, "--port", "0", "--data-dir", str(folder / "data"), "--threads", "1"],
        clean_environment(**variables),
        folder / "log",
    )
    try:
        if server.url is None:
            raise RuntimeError(f"the server did not start: {server.errors()[-2000:]}")
        yield server
    finally:
        if server.process.poll() is None:
            server.end()
        server.close()
