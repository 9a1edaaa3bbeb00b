"""A small server that keeps the promises the client relies on, and breaks the connection when told to."""

import asyncio
import inspect
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from hypothesis import settings

from rlstm_client import AsyncClient, Client, Retries

# A busy machine is no fault of the example; examples are not kept between runs.
settings.register_profile("client", deadline=None, database=None)
settings.load_profile("client")

Answer = tuple[int, dict[str, str], bytes]
Fault = Callable[[httpx.Request], httpx.Response]


@dataclass
class FakeServer:
    """Sessions of one nat a byte, two without learning. ``faults`` are used up, one a request."""

    requests: list[httpx.Request] = field(default_factory=list)
    faults: deque[Fault] = field(default_factory=deque)
    texts: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    operations: dict[str, tuple[bytes, Answer]] = field(default_factory=dict)
    snapshots: dict[str, dict[str, str]] = field(default_factory=dict)

    @staticmethod
    def frame(event: str, data: dict[str, Any]) -> bytes:
        """Write one server-sent event."""
        return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()

    @staticmethod
    def event_stream(frames: list[bytes], *, cut: bool = False) -> httpx.Response:
        """Answer with these frames, whole or cut off by a lost connection."""
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Frames(frames, cut))

    def refuse(self, status: int, slug: str, *, retry_after: float | None = None, **facts: Any) -> None:
        """Refuse the next request with this problem."""
        response = _problem(status, slug, f"refused: {slug}", **facts)
        if retry_after is not None:
            response.headers["retry-after"] = str(retry_after)
        self.faults.append(lambda _: response)

    def let_pass(self) -> None:
        """Answer the next request as it should be."""
        self.faults.append(self.respond)

    def lose(self, what: str) -> None:
        """Break the connection of the next request: before it is seen, or (``answer``) after it was done."""

        def lost(request: httpx.Request) -> httpx.Response:
            if what == "answer":
                self.respond(request)
            raise httpx.ReadError("the connection was cut")

        self.faults.append(lost)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a request, or do what the next fault says."""
        self.requests.append(request)
        if self.faults:
            return self.faults.popleft()(request)
        return self.respond(request)

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Answer a request; a repeated idempotency key gets the first answer again."""
        key = request.headers.get("idempotency-key")
        if key in self.operations:
            body, (status, headers, content) = self.operations[key]
            if body != request.content:
                return _problem(422, "idempotency_mismatch", "the key was used with another body")
            replay = json.dumps({**json.loads(content), "replayed": True}).encode()
            return httpx.Response(status, headers=headers, content=replay)
        response = self._route(request)
        if key is not None and response.is_success and not isinstance(response.stream, _Frames):
            self.operations[key] = (
                request.content,
                (response.status_code, dict(response.headers), response.content),
            )
        return response

    def _route(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/sessions/import":
            return self._made(request.content.decode().removeprefix("file "))
        body = json.loads(request.content or b"{}")
        match (request.method, *request.url.path.strip("/").split("/")):
            case ("GET", "info"):
                return _json(
                    {"model": {"name": "fake"}, "version": "9", "limits": {"items": 256}, "novel": 1}
                )
            case ("GET", "health", _):
                return _json({"status": "ready"})
            case ("GET", "metrics"):
                return httpx.Response(200, headers={"content-type": "text/plain"}, content=b"up 1\n")
            case ("POST", "score"):
                return _json(self._scores(body))
            case ("POST", "generate") | ("POST", "sessions", _, "generate"):
                return _generation(body)
            case ("POST", "sessions"):
                return self._create(body)
            case ("GET", "sessions"):
                return self._page(request.url.params.get("cursor"), request.url.params.get("name"))
            case (method, "sessions", session, *verb):
                return self._session(method, session, verb, body, request.headers)
        return _problem(404, "not_found", "there is no such route")

    def _create(self, body: dict[str, Any]) -> httpx.Response:
        return self._made("", name=body.get("name"))

    def _made(self, text: str, **members: Any) -> httpx.Response:
        session = f"s{len(self.texts)}"
        self.texts[session] = text
        return _json(self._info(session) | members, 201)

    def _page(self, cursor: str | None, name: str | None) -> httpx.Response:
        """Two sessions a page; or the one that is called so: here each by its id."""
        if name is not None:
            found = [{**self._info(name), "name": name}] if name in self.texts else []
            return _json({"sessions": found, "cursor": None})
        names, start = list(self.texts), int(cursor or 0)
        more = str(start + 2) if start + 2 < len(names) else None
        return _json({"sessions": [self._info(s) for s in names[start : start + 2]], "cursor": more})

    def _session(
        self, method: str, session: str, verb: list[str], body: dict[str, Any], headers: httpx.Headers
    ) -> httpx.Response:
        if session in self.gone and method != "DELETE":
            return _problem(410, "session_deleted", "the session is gone: deleted", reason="deleted")
        if session not in self.texts:
            return _problem(404, "not_found", "there is no such session")
        match method, verb:
            case "DELETE", []:
                self.gone.add(session)
                return httpx.Response(204)
            case "GET", []:
                return _json(self._info(session))
            case "POST", ["append"]:
                return self._append(session, body, headers.get("if-match"))
            case "POST", ["score"]:
                return _json({"version": self._version(session), "candidates": _ranked(body["candidates"])})
            case "POST", ["reset"]:
                return _json(self._info(session))
            case "PATCH", []:
                return _json(self._info(session) | body)
            case "GET", ["export"]:
                content = f"file {self.texts[session]}".encode()
                return httpx.Response(
                    200, headers={"content-type": "application/octet-stream"}, content=content
                )
            case "POST", ["fork"]:
                ancestor = {"session": session, "version": self._version(session)}
                return self._made(self._text_at(session, body.get("snapshot")), forked_from=ancestor)
            case _, ["snapshots" | "restore", *_]:
                return self._snapshots(method, session, verb[1:], body)
        return _problem(405, "method_not_allowed", "the route does not take this method")

    def _text_at(self, session: str, snapshot: str | None) -> str:
        return self.texts[session] if snapshot is None else self.snapshots[session][snapshot]

    def _snapshots(self, method: str, session: str, name: list[str], body: dict[str, Any]) -> httpx.Response:
        named = self.snapshots.setdefault(session, {})
        if method == "DELETE":
            named.pop(name[0], None)
            return httpx.Response(204)
        if method == "GET":
            return _json({"snapshots": [_snapshot(name, text) for name, text in named.items()]})
        if "name" in body:
            named[body["name"]] = self.texts[session]
            return _json(_snapshot(body["name"], named[body["name"]]), 201)
        if body["snapshot"] not in named:
            return _problem(404, "not_found", "the session has no such snapshot")
        self.texts[session] = named[body["snapshot"]]
        return _json(self._info(session))

    def _append(self, session: str, body: dict[str, Any], if_match: str | None) -> httpx.Response:
        version, text = self._version(session), body["text"]
        if if_match is not None and if_match != f'"{version}"':
            return _problem(412, "version_mismatch", f"the session is at version {version}", version=version)
        if not text:
            return _problem(422, "invalid_field", "text: is empty", field="text")
        start = len(self.texts[session])
        self.texts[session] += text
        self.operations[f"version of {session}"] = (b"", (version + 1, {}, b""))
        size = len(text.encode())
        return _json(
            {
                "version": version + 1,
                "position": start + size,
                "durability": "fsync",
                "replayed": False,
                "updates": 1,
                "guards": {"projected": 1},
                "weights": [0.25, 0.75],
                "norm_ratio": 0.125,
                "pending": 0,
                "unit": body.get("unit", "nats"),
                "ids": list(text.encode()),
                "logprobs": [-1.0] * size,
                "static_logprobs": [-2.0] * size,
                "totals": _totals(size),
                "expires_at": 10.0,
            }
        )

    def _version(self, session: str) -> int:
        return self.operations.get(f"version of {session}", (b"", (0, {}, b"")))[1][0]

    def _info(self, session: str) -> dict[str, Any]:
        size = len(self.texts[session].encode())
        return {
            "id": session,
            "name": None,
            "version": self._version(session),
            "position": size,
            "adaptation": {
                "kind": "subspace",
                "num_fast_weights": 1234,
                "experts": 2,
                "rate_scale": 1.0,
                "static": True,
                "rates": [0.0, 0.003],
            },
            "weights": [0.25, 0.75],
            "norm_ratio": 0.125,
            "totals": {"tokens": size, "bytes": size, "static_bits": 2.0, "adapted_bits": 1.0, "gain": 1.0},
        }

    def _scores(self, body: dict[str, Any]) -> dict[str, Any]:
        items = body.get("items") or [{"text": body.get("text"), "tokens": body.get("tokens")}]
        return {
            "model": "fake",
            "fingerprint": "f00d",
            "numerics": "n1",
            "unit": body.get("unit", "nats"),
            "items": [_item(index, item, body) for index, item in enumerate(items)],
        }


def _item(index: int, item: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    ids = item.get("tokens") or list(item["text"].encode())
    columns = {
        "ids": ids,
        "logprobs": [-1.0] * len(ids),
        "starts": list(range(len(ids))),
        "ends": list(range(1, len(ids) + 1)),
    }
    return {
        "id": item.get("id", str(index)),
        "first_token": "bos",
        "totals": _totals(len(ids)),
        **(columns if body.get("scores", "tokens") == "tokens" else {}),
    }


def _snapshot(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "version": 1, "position": len(text), "created_at": 1.0}


def _totals(size: int) -> dict[str, Any]:
    return {
        "logprob": -1.0 * size,
        "static_logprob": -2.0 * size,
        "tokens": size,
        "bytes": size,
        "words": 1,
        "unknown": 0,
        "perplexity": 2.718281828,
        "bits_per_byte": 1.4426950408889634,
        "static_bits_per_byte": 2.8853900817779268,
        "gain": 1.0 * size,
    }


def _ranked(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank the shortest first; without adaptation it would be the last."""
    order = sorted(range(len(candidates)), key=lambda index: len(candidates[index]["text"]))
    return [
        {
            "id": candidate.get("id", str(index)),
            "logprob": -1.0 * len(candidate["text"]),
            "static_logprob": len(candidate["text"]) - 70.0,
            "gain": 70.0 - 2.0 * len(candidate["text"]),
            "tokens": len(candidate["text"]),
            "score": -1.0 * len(candidate["text"]),
            "static_score": len(candidate["text"]) - 70.0,
            "rank": order.index(index) + 1,
            "static_rank": len(order) - order.index(index),
        }
        for index, candidate in enumerate(candidates)
    ]


def _generation(body: dict[str, Any]) -> httpx.Response:
    text, choices = "héllo", body.get("n", 1)
    if not body.get("stream"):
        usage = {"prompt_tokens": 1, "completion_tokens": len(text)}
        answer = {"text": text, "ids": [1], "logprobs": None, "finish_reason": "length", "usage": usage}
        return _json(answer | {"seed": body.get("seed", 3)})
    frames = [
        FakeServer.frame("token", {"index": 0, "step": i, "id": i, "text": c}) for i, c in enumerate(text)
    ]
    frames += [
        FakeServer.frame("end", {"index": choice, "finish_reason": "length"}) for choice in range(choices)
    ]
    return FakeServer.event_stream(frames)


class _Frames(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, frames: list[bytes], cut: bool) -> None:
        self._frames, self._cut = frames, cut

    def __iter__(self) -> Iterator[bytes]:
        yield from self._frames
        if self._cut:
            raise httpx.ReadError("the connection was cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def _json(body: dict[str, Any], status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body)


def _problem(status: int, slug: str, detail: str, **facts: Any) -> httpx.Response:
    named = {"type": f"urn:rlstm:problem:{slug}", "status": status, "detail": detail, "applied": "no"}
    headers = {"content-type": "application/problem+json"}
    return httpx.Response(status, headers=headers, content=json.dumps(named | facts).encode())


class _Driven:
    """An asynchronous object whose methods block, so that one test holds for both clients."""

    def __init__(self, inner: Any, run: Callable[[Any], Any]) -> None:
        self._inner, self._run = inner, run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._call(value) if callable(value) else self._wrapped(value)

    def __iter__(self) -> Iterator[Any]:
        while (item := self._run(anext(self._inner, None))) is not None:
            yield item

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self._wrapped(self._run(result) if inspect.iscoroutine(result) else result)

        return call

    def _wrapped(self, value: Any) -> Any:
        module = type(value).__module__
        live = module.startswith("rlstm_client.async_") or inspect.isasyncgen(value)
        return _Driven(value, self._run) if live else value


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def waits() -> list[float]:
    """The seconds that the client of the test has slept for."""
    return []


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: pytest.FixtureRequest, server: FakeServer, waits: list[float]) -> Iterator[Any]:
    """Each client in turn, on the fake server, with a clock that does not wait."""
    settings: dict[str, Any] = {"retries": Retries(attempts=4), "chance": lambda: 0.0}
    if request.param == "blocking":
        with Client(transport=httpx.MockTransport(server), sleep=waits.append, **settings) as blocking:
            yield blocking
        return

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with asyncio.Runner() as runner:
        inner = AsyncClient(transport=httpx.MockTransport(server), sleep=sleep, **settings)
        yield _Driven(inner, runner.run)
        runner.run(inner.close())


@pytest.fixture
def address(server: FakeServer) -> Iterator[str]:
    """The fake server on a real port, for the command line."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            url = f"http://fake{self.path}"
            response = server(httpx.Request(self.command, url, headers=dict(self.headers), content=body))
            content = b"".join(response.stream) if isinstance(response.stream, _Frames) else response.content
            self.send_response(response.status_code)
            self.send_header("content-type", response.headers.get("content-type", ""))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_PATCH = _do

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()
