"""Every route that there is, by everybody who may or may not use it. New routes are covered as they come."""

import inspect
from urllib.parse import unquote

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route, WebSocketRoute

from rlstm_server.store.memory_store import MemoryStore

UNKNOWN = "0" * 32
OPEN = {
    (method, path)
    for method in ("GET", "HEAD")
    for path in ("/health/live", "/health/ready", "/", "/page/{file}")
}
"""Written down here too: a server that opens more must not decide what is looked at."""

UNDOCUMENTED = {
    *OPEN - {("GET", "/health/live"), ("GET", "/health/ready")},
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    ("WS", "/sessions/{session_id}/stream"),
}
"""What the document leaves out."""

BODIES = [
    {"max_tokens": 1},
    {},
    {"text": "a"},
    {"name": "other"},
    {"snapshot": "one"},
    {"learning": True},
    {"candidates": [{"text": "a"}]},
    {"model": "tiny", "prompt": "a", "max_tokens": 1},
    {"continuation": "a"},
    {"prompt": "a"},
    {"tokens": [97]},
]
"""One of them is what a route takes, but for a file."""


def leaves(routes, prefix=""):
    """Each route's method and path, whatever it is wrapped in. A kind that nobody knows here is a fault."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from leaves(inner.routes, prefix)
        else:
            if isinstance(route, WebSocketRoute):
                yield "WS", prefix + route.path
                continue
            assert isinstance(route, Route | APIRoute), f"teach this test what {route!r} answers"
            yield from ((method, prefix + route.path) for method in sorted(route.methods))


class SpiedStore(MemoryStore):
    """Remembers which calls were made."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        """Note coroutines as they are looked up."""
        value = super().__getattribute__(name)
        if inspect.iscoroutinefunction(value):
            self.calls.append(name)
        return value


@pytest.fixture
def keys(key_file):
    """A file with a key of each of two tenants."""
    scopes = ["score", "generate", "sessions", "admin"]
    return key_file({f"{name}-key": {"tenant": name, "scopes": scopes} for name in ("alice", "bob")})


def filled(template, session):
    """The path of a route: of this session, a snapshot that every session has, and a file that there is."""
    return template.replace("{session_id}", session).replace("{snapshot}", "one").replace("{file}", "main.js")


def bearer(name):
    return {"authorization": f"Bearer {name}-key", "x-request-id": "same"}


def disguises(method, path):
    """The route, and other ways to ask for it."""
    yield method, path
    yield from ((other, path) for other in ("GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "BREW"))
    for spelt in (
        f"{path}/",
        f"/{path}",
        f"{path}//",
        path.upper(),
        f"/.{path}",
        f"{path}/%2e%2e",
        f"{path}%2f",
        f"{path}%0a",
    ):
        yield method, spelt
    yield method, f"{path}?key=alice-key&authorization=alice-key"


async def shake_hands(app, path, headers):
    """Ask for a WebSocket, and say how that was answered; one that is opened is closed at once."""
    path, _, query = path.partition("?")
    scope = {
        "type": "websocket",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), *((n.encode(), v.encode()) for n, v in headers.items())],
        "subprotocols": [],
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "extensions": {"websocket.http.response": {}},
    }
    said = []

    async def send(message):
        said.append(message)

    incoming = iter(({"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}))

    async def receive():
        return next(incoming)

    await app(scope, receive, send)
    return httpx.Response(
        said[0].get("status", 200),
        headers=said[0].get("headers", []),
        content=said[1]["body"] if said[0]["type"].startswith("websocket.http") else b"",
    )


async def test_every_route_by_everybody(serve, keys, capsys):
    """No key and a wrong one open nothing, another's session is not there, and the right key may."""
    store = SpiedStore()
    async with serve(api_keys_file=keys, store=store, limits={"failed_logins": 10_000}) as client:

        async def send(method, path, headers, body=None):
            if method == "WS":
                return await shake_hands(client.app, path, headers)
            return await client.request(method, f"http://localhost{path}", headers=headers, json=body)

        async def new_session():
            made = (await client.post("/sessions", json={"text": "a"}, headers=bearer("alice"))).json()["id"]
            await client.post(f"/sessions/{made}/snapshots", json={"name": "one"}, headers=bearer("alice"))
            return made

        walked, opened, differing, closed = 0, [], [], []
        for method, template in leaves(client.app.routes):
            walked += 1
            session = await new_session() if "{session_id}" in template else UNKNOWN
            path = filled(template, session)
            path = path.replace("{model_id}", "tiny")
            if (method, template) not in OPEN:
                wrong = {"authorization": "Bearer alice-kez"}
                asked = [(method, path, wrong), *((*one, {}) for one in disguises(method, path))]
                answers = [(await send(*one)).status_code for one in asked]
                opened += [one for one, status in zip(asked, answers, strict=True) if status != 401]
            if "{session_id}" in template:
                for body in BODIES:
                    heard = []
                    for named in (session, UNKNOWN):
                        store.calls.clear()
                        url = filled(template, named)
                        answer = await send(method, url, bearer("bob"), body)
                        heard.append(
                            (answer.status_code, answer.content, dict(answer.headers), store.calls[:])
                        )
                    if heard[0] != heard[1] or heard[0][0] < 400:
                        differing.append((method, template, heard))
                    if heard[0][0] == 404:
                        break
                else:
                    differing.append((method, template, "no body is answered with 404"))
            statuses = [500]
            for body in BODIES:
                if min(statuses) >= 300:
                    statuses.append((await send(method, path, bearer("alice"), body)).status_code)
            if {401, 403, 405} & set(statuses) or min(statuses) == 404:
                closed.append((method, template, statuses))
    with capsys.disabled():
        identical = "identical" if not differing else "different"
        print(f"\n{walked} routes x 4: {len(opened)} open, 404 bodies {identical}")
    assert (opened, differing, closed) == ([], [], [])
    documented = {
        (method.upper(), path)
        for path, operations in client.app.openapi()["paths"].items()
        for method in operations
    }
    assert set(leaves(client.app.routes)) - UNDOCUMENTED == documented - UNDOCUMENTED
    assert walked == len(set(leaves(client.app.routes)))


async def test_a_line_end_is_no_part_of_a_route(serve, keys):
    """Whoever writes one behind a route, and may use that, has asked for nothing."""
    async with serve(api_keys_file=keys) as client:
        session = (await client.post("/sessions", json={}, headers=bearer("alice"))).json()["id"]
        statuses = {
            (method, path): (
                await client.request(method, f"{filled(path, session)}%0a", json={}, headers=bearer("alice"))
            ).status_code
            for method, path in leaves(client.app.routes)
            if method != "WS"
        }
    assert {route for route, status in statuses.items() if status != 404} == set()
