"""Bytes that no client sends, on a real connection: an answer that repeats nothing, or none."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.memory_store import MemoryStore
from uvicorn.server import ServerState

from rlstm_server.app import create_app
from rlstm_server.cli import _uvicorn_config
from rlstm_server.logs import JsonFormatter
from rlstm_server.settings import Settings

CANARY = "canary-7f3a"
C = CANARY.encode()
HOST = b"host: localhost\r\n"
JSON = b"content-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\n"
GOOD = b'POST /score HTTP/1.1\r\n%s%scontent-length: 12\r\nconnection: close\r\n\r\n{"text":"a"}' % (
    HOST,
    JSON,
)


def get(target, headers=b"", version=b"HTTP/1.1"):
    return b"GET %s %s\r\n%s%s\r\n" % (target, version, HOST, headers)


def post(headers, body=b""):
    return b"POST /score HTTP/1.1\r\n%s%s%s\r\n%s" % (HOST, JSON, headers, body)


RAW = {
    "no HTTP": b"%s\r\n\r\n" % C,
    "NULs": b"\0" * 1_000,
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00" + C,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /%s\r\n\r\n" % C,
    "another version": get(b"/score", version=b"HTTP/9.9"),
    "no version": b"GET /%s \r\n%s\r\n" % (C, HOST),
    "a long line": get(b"/%s" % (b"a" * 70_000)),
    "a long query": get(b"/info?%s" % (C * 6_000)),
    "a control character in the path": get(b"/\x01%s" % C),
    "UTF-8 in the path": get("/sessions/é".encode()),
    "NUL in the path": get(b"/sessions/%s\0" % C),
    "a whole URL": get(b"http://%s.example/info" % C),
    "an authority": get(b"%s.example:80" % C),
    "a star": b"OPTIONS * HTTP/1.1\r\n%s\r\n" % HOST,
    "CONNECT": b"CONNECT %s:443 HTTP/1.1\r\n%s\r\n" % (C, HOST),
    "a method that is none": b"%s /info HTTP/1.1\r\n%s\r\n" % (C.upper(), HOST),
    "a method in lower case": b"get /info HTTP/1.1\r\n%s\r\n" % HOST,
    "a long method": b"%s /info HTTP/1.1\r\n%s\r\n" % (b"A" * 70_000, HOST),
    "no host": b"GET /info HTTP/1.1\r\n\r\n",
    "two hosts": get(b"/info", b"host: %s\r\n" % C),
    "another host": b"GET /info HTTP/1.1\r\nhost: %s\r\n\r\n" % C,
    "a huge header": get(b"/info", b"x-a: %s\r\n" % (C * 10_000)),
    "many headers": get(b"/info", b"x-a: %s\r\n" % C * 4_000),
    "a header without a colon": get(b"/info", b"%s\r\n" % C),
    "a header without a name": get(b"/info", b": %s\r\n" % C),
    "a name with white space": get(b"/info", b"x-%s : 1\r\n" % C),
    "a name that is no token": get(b"/info", b"x(%s): 1\r\n" % C),
    "a folded header": get(b"/info", b"x-a: 1\r\n  %s\r\n" % C),
    "NUL in a header": get(b"/info", b"x-a: %s\0\r\n" % C),
    "a bare carriage return": get(b"/info", b"x-a: a\rx-%s: 1\r\n" % C),
    "a bare line feed": b"GET /info HTTP/1.1\n%s\n" % HOST.replace(b"\r", b""),
    "a split answer": get(b"/info", b"x-request-id: a\r\n\tb%s\r\n" % C),
    "a length that is none": post(b"content-length: %s\r\n" % C, b"{}"),
    "a length below 0": post(b"content-length: -1\r\n", b"{}"),
    "a length with a sign": post(b"content-length: +2\r\n", b"{}"),
    "a length in hexadecimal": post(b"content-length: 0x2\r\n", b"{}"),
    "a length of 2**64": post(b"content-length: %d\r\n" % 2**64, b"{}"),
    "a length of 5,000 digits": post(b"content-length: %s\r\n" % (b"9" * 5_000), b"{}"),
    "two lengths": post(b"content-length: 2\r\ncontent-length: 3\r\n", b"{}a"),
    "length and chunks": post(CHUNKED + b"content-length: 2\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "chunks twice": post(b"transfer-encoding: chunked, chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "another encoding": post(b"transfer-encoding: %s\r\n" % C, b"{}"),
    "a chunk that is none": post(CHUNKED, b"%s\r\n{}" % C),
    "a chunk below 0": post(CHUNKED, b"-1\r\n{}"),
    "a chunk of 2**64": post(CHUNKED, b"%x\r\n{}" % 2**64),
    "a long chunk extension": post(CHUNKED, b"2;%s\r\n{}\r\n0\r\n\r\n" % (C * 9_000)),
    "a trailer": post(CHUNKED, b"2\r\n{}\r\n0\r\nx-%s: 1\r\n\r\n" % C),
    "an upgrade": get(b"/info", UPGRADE + b"sec-websocket-key: %s\r\n" % C),
    "an upgrade to HTTP/2": get(b"/info", b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"),
    "an expectation": post(b"expect: %s\r\ncontent-length: 2\r\n" % C, b"{}"),
    "a request behind a request": post(b"content-length: 2\r\n", b"{}GET /%s HTTP/1.1\r\n\r\n" % C),
}  # fmt: skip


@asynccontextmanager
async def listening(model):
    """A server on a port of its own."""
    settings = Settings(model=str(model), limits={"receive_seconds": 0.5, "idle_seconds": 1})
    app = create_app(settings, store=MemoryStore())
    config = _uvicorn_config(app, settings)
    config.load()
    made = partial(config.http_protocol_class, config=config, server_state=ServerState(), app_state={})
    async with app.router.lifespan_context(app):
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()
        await asyncio.sleep(0.05)


async def exchange(address, data):
    """Send bytes, and read until the server closes or has nothing more to say."""
    reader, writer = await asyncio.open_connection(*address)
    heard = b""
    try:
        writer.write(data)
        async with asyncio.timeout(2):
            while part := await reader.read(65_536):
                heard += part
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return heard


@pytest.fixture
def written(caplog):
    """Gives the lines of all logs that repeat a request, or tell of a fault."""
    form = JsonFormatter()
    with caplog.at_level(logging.INFO):
        yield lambda: [
            line for record in caplog.records if CANARY in (line := form.format(record)) or record.exc_info
        ]


THE_LIBRARIES_OWN = b"Invalid HTTP request received.", b"Failed to open a WebSocket connection"
"""How uvicorn and websockets answer, with 400, what is no request or handshake: no application sees it."""


def is_problem(head, body, status):
    """Whether an answer is a problem document of its status."""
    return b"application/problem+json" in head and json.loads(body.split(b"HTTP/1.1")[0])["status"] == status


async def test_bytes_that_no_client_sends(tiny_checkpoint, written):
    """Each is refused with a status below 500, or cut off; none is repeated in an answer or the log."""
    async with listening(tiny_checkpoint) as address:
        answers = await asyncio.gather(*(exchange(address, data) for data in RAW.values()))
        good = await exchange(address, GOOD)
    wrong = {}
    for name, heard in zip(RAW, answers, strict=True):
        head, _, body = heard.partition(b"\r\n\r\n")
        if not heard or any(own in body for own in THE_LIBRARIES_OWN):
            continue
        status = int(head.split(b" ")[1])
        if status >= 500 or C in heard.lower() or (status >= 400 and not is_problem(head, body, status)):
            wrong[name] = heard[:300]
    assert not wrong
    assert sum(map(bool, answers)) > len(RAW) / 2
    assert good.startswith(b"HTTP/1.1 200 ")
    assert written() == []
