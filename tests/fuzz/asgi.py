"""Requests to an application byte by byte, as a server passes them on: no client makes them presentable."""

import asyncio
from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was sent: `target` is path and query as they stand in the request line."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back, and the template of the route that it came from; None where none matched."""

    status: int
    headers: dict[str, str]
    body: bytes
    route: str | None


async def ask(app, request):
    """Send one request and read its whole answer."""
    path, _, query = request.target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "root_path": "",
        "method": request.method,
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [(name.lower(), value) for name, value in request.headers],
    }
    sent, answered, messages = False, asyncio.Event(), []

    async def receive():
        nonlocal sent
        if sent:
            await answered.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message):
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()

    await app(scope, receive, send)
    start, *rest = messages
    return Answer(
        status=start["status"],
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]},
        body=b"".join(message.get("body", b"") for message in rest),
        route=getattr(scope.get("route"), "path", None),
    )
