"""Connections over real sockets: uvicorn with our protocol, around an application of a few lines."""

import asyncio
import json
import socket
import time
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvicorn
from uvicorn.server import ServerState

from rlstm_server.api.connections import protocol
from rlstm_server.api.limits import HELD, ReceivingLayer
from rlstm_server.api.tracing import KEY, Trace
from rlstm_server.errors import Overloaded
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Limits

HEAD = b"GET / HTTP/1.1\r\nhost: here\r\n"
POST = b"POST / HTTP/1.1\r\nhost: here\r\n"
LARGE = 2 << 20
ANSWERS = {"/refused": (401, b"no"), "/large": (200, b"x" * LARGE)}
SYSTEM_BYTES = 16_384  # what the system may hold of a connection, so that our own buffers show


async def application(scope, receive, send):
    """Answer at once, refuse without reading the body, or with more than anybody's buffers hold."""
    path = scope["path"]
    status, body = ANSWERS.get(path, (200, b"yes"))
    if path != "/refused":
        await receive()
    if path == "/counted":
        status, body = counted(scope[HELD])
    if path == "/slow":
        await asyncio.sleep(0.2)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


def counted(held):
    """Give a large answer where there is memory for it."""
    try:
        held.expect_bytes(LARGE)
    except Overloaded:
        return 503, b"no"
    return 200, b"x" * LARGE


@asynccontextmanager
async def served(**limits):
    """Serve the application; gives a way to connect, and the metrics."""
    given = Limits(**{"receive_seconds": 0.2, "send_seconds": 0.2, "body_bytes": 1024} | limits)
    metrics = Metrics()
    received = ReceivingLayer(application, limits=given)

    async def app(scope, receive, send):
        scope[KEY] = Trace(request_id="r", tenant="a")
        await (application if scope["path"] == "/refused" else received)(scope, receive, send)

    config = uvicorn.Config(
        app,
        http=protocol(given, metrics),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=given.idle_seconds,
    )
    config.load()
    made = partial(config.http_protocol_class, config=config, server_state=ServerState(), app_state={})
    listening = small_socket()
    listening.bind(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(made, sock=listening)
    writers = []

    async def connect():
        client = small_socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, listening.getsockname())
        reader, writer = await asyncio.open_connection(sock=client)
        writers.append(writer)
        return reader, writer

    try:
        yield connect, metrics
    finally:
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)


def small_socket():
    """A socket that holds little; those that a listening one accepts are like it."""
    made = socket.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SYSTEM_BYTES)
    return made


async def until_closed(reader, writer=None, trickle=b""):
    """Read to the end, sending a byte now and then; gives what came, and the seconds it took."""
    began = time.monotonic()

    async def send():
        for byte in trickle:
            await asyncio.sleep(0.02)
            writer.write(bytes([byte]))

    sending, received = asyncio.ensure_future(send()), b""
    with suppress(ConnectionResetError):
        while part := await asyncio.wait_for(reader.read(65_536), 10):
            received += part
    sending.cancel()
    return received, time.monotonic() - began


def cuts(metrics, reason):
    return metrics.connections_cut.labels(reason)._value.get()


@pytest.mark.parametrize(
    ("first", "trickle"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD[:4], HEAD[4:] + b"x-a: b\r\n" * 20),
        (b"", b"a" * 100),
        (POST + b"content-length: 1000\r\n\r\n", b"x" * 100),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 20),
        (POST[:6], (POST + b"content-length: 1000\r\n\r\n")[6:] + b"x" * 100),
    ],
    ids=["silent", "half a head", "head", "no line", "body", "chunks", "head, then body"],
)
async def test_a_request_must_arrive_in_time(first, trickle):
    """Headers and body together, from the connection's first moment; bytes now and then do not extend it."""
    async with served() as (connect, _):
        reader, writer = await connect()
        writer.write(first)
        received, seconds = await until_closed(reader, writer, trickle)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"receive_timeout" in received
    assert 0.15 < seconds < 1.0


async def test_a_body_that_nobody_reads_must_arrive_in_time_too():
    """Who is refused at once cannot hold the connection by going on to send."""
    async with served() as (connect, metrics):
        reader, writer = await connect()
        writer.write(POST.replace(b"/", b"/refused", 1) + b"content-length: 1000\r\n\r\n")
        received, seconds = await until_closed(reader, writer, b"x" * 100)
        assert cuts(metrics, "slow_request") == 1
    assert received.startswith(b"HTTP/1.1 401 ")
    assert seconds < 1.0


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    """Requests one after the other, each in time, go on for longer than a deadline; then silence ends it."""
    async with served(idle_seconds=1, receive_seconds=0.2) as (connect, metrics):
        reader, writer = await connect()
        for _ in range(3):
            writer.write(HEAD + b"\r\n")
            assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.15)
        received, seconds = await until_closed(reader)
        assert received == b""
        assert 0.5 < seconds < 2.0
        assert cuts(metrics, "slow_request") == 0


async def test_a_second_request_must_arrive_in_time():
    """Also when its beginning came together with the first."""
    for pause in (0.0, 0.05):
        async with served() as (connect, _):
            reader, writer = await connect()
            writer.write(HEAD + b"\r\n")
            await asyncio.sleep(pause)
            writer.write(HEAD)
            received, seconds = await until_closed(reader, writer)
        assert received.count(b"HTTP/1.1") == 2
        assert b"HTTP/1.1 408 " in received
        assert seconds < 1.0


async def test_after_an_unread_body_the_connection_goes_on():
    """The body that was not wanted is passed over, and the next request is answered."""
    async with served(idle_seconds=1) as (connect, _):
        reader, writer = await connect()
        writer.write(POST.replace(b"/", b"/refused", 1) + b"content-length: 4\r\n\r\n")
        await reader.readuntil(b"no")
        writer.write(b"body" + HEAD + b"\r\n")
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.3)
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("path", "requests"), [(b"/large", 1), (b"/", 20_000)])
async def test_a_reader_who_stops_reading_is_cut(path, requests):
    """In the midst of an answer, or of many small ones."""
    async with served() as (connect, metrics):
        _, writer = await connect()
        writer.transport.pause_reading()
        began = time.monotonic()
        writer.write((HEAD + b"\r\n").replace(b"/", path, 1) * requests)
        while not cuts(metrics, "slow_reader"):
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.05)


async def test_a_slow_reader_who_goes_on_reading_is_served():
    """However long it takes, as long as there is progress."""
    async with served() as (connect, metrics):
        reader, writer = await connect()
        writer.write((HEAD + b"connection: close\r\n\r\n").replace(b"/", b"/large", 1))
        count = 0
        while chunk := await reader.read(65_536):
            count += len(chunk)
            await asyncio.sleep(0.02)
        assert count > LARGE
        assert cuts(metrics, "slow_reader") == 0


async def test_an_answer_counts_until_it_is_read():
    """Its memory is given back when its reader has it, or has left, and not when it was written."""
    room = {"requests_bytes": 3 * LARGE, "import_bytes": 1024, "score_numbers": 8, "send_seconds": 60}
    request = (HEAD + b"\r\n").replace(b"/", b"/counted", 1)

    async with served(**room) as (connect, _):

        async def ask(*, read):
            reader, writer = await connect()
            writer.write(request)
            status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
            if read and status == 200:
                assert await reader.readexactly(LARGE) == b"x" * LARGE
            return status, writer

        assert [(await ask(read=True))[0] for _ in range(3)] == [200] * 3
        waiting = [await ask(read=False) for _ in range(4)]
        assert [status for status, _ in waiting] == [200, 200, 503, 503]
        assert (await ask(read=True))[0] == 503
        for _, writer in waiting:
            writer.transport.abort()
        await asyncio.sleep(0.05)
        assert (await ask(read=True))[0] == 200


async def test_there_may_be_so_many_connections():
    """One more is told so and closed; one that ends makes room. From one address, and in total."""
    for limits in ({"connections": 3}, {"connections_per_address": 3}):
        async with served(**limits) as (connect, metrics):
            first, *others = [await connect() for _ in range(3)]
            await asyncio.sleep(0.05)
            reader, writer = await connect()
            received, _ = await until_closed(reader)
            assert received.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after" in received
            assert json.loads(received.split(b"\r\n\r\n")[1])["applied"] == "unknown"
            assert cuts(metrics, "full") == 1
            first[1].close()
            await asyncio.sleep(0.05)
            reader, writer = await connect()
            writer.write(HEAD + b"connection: close\r\n\r\n")
            assert (await until_closed(reader))[0].startswith(b"HTTP/1.1 200 ")
            for _, open_writer in others:
                open_writer.close()
            writer.close()
            await asyncio.sleep(0.05)
            assert metrics.connections._value.get() == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\xff\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        POST + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\nx",
        POST + b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1\r\nxyz\r\n",
        HEAD + b"x-large: " + b"x" * 200_000,
        HEAD + b"x-folded: a\r\n b: c\r\n\x00: d\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_in_our_words(request_bytes):
    """400 as a problem document with our headers, and the connection is closed."""
    async with served() as (connect, _):
        reader, writer = await connect()
        writer.write(request_bytes)
        received, _ = await until_closed(reader)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-content-type-options: nosniff" in head
    assert b"\r\nserver:" not in head
    assert json.loads(body)["status"] == 400


async def test_what_is_sent_ahead_waits_outside():
    """Requests in a line are answered in turn, and the server takes no more of them than fit one read."""
    async with served(receive_seconds=5) as (connect, _):
        reader, writer = await connect()
        many = (HEAD + b"\r\n").replace(b"/", b"/slow", 1) * 100_000
        writer.write(many)
        await asyncio.sleep(0.3)
        assert len(many) - writer.transport.get_write_buffer_size() < 1 << 20
        assert await reader.readuntil(b"yes")
